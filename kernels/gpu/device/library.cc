/*
 * cuBLAS, loaded when it is asked for: nothing links it. "cuBLAS Library", section 2.1.4 (results
 * reproducibility): a version of it gives the same bits in every run on GPUs of one architecture with
 * as many multiprocessors, as long as one stream at a time uses a handle. So a stream has a handle, and
 * a workspace, of its own.
 */
#include "kernels/gpu/library.h"

#include "simt.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <cstdio>

extern "C" {
#include "kernels/tensor.h"
}

enum { WORKSPACE = 32 << 20 }; /* what cuBLAS itself takes on sm_90 */

/* Written out, because the name is overloaded for C++. */
typedef cublasStatus_t gemm_ex(cublasHandle_t handle, cublasOperation_t op_a,
	cublasOperation_t op_b, int m, int n, int k, const void *alpha, const void *a,
	cudaDataType a_type, int lda, const void *b, cudaDataType b_type, int ldb, const void *beta,
	void *c, cudaDataType c_type, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algo);

static struct {
	decltype(&cublasCreate_v2) create;
	decltype(&cublasDestroy_v2) destroy;
	decltype(&cublasGetProperty) property;
	decltype(&cublasSetStream_v2) set_stream;
	decltype(&cublasSetWorkspace_v2) set_workspace;
	decltype(&cublasSetMathMode) set_math;
	gemm_ex *gemm;
} blas;

struct library {
	struct stream *stream;
	cublasHandle_t handle;
};

static bool look_up(void *file, const char *name, void *to)
{
	void *symbol = dlsym(file, name);

	memcpy(to, &symbol, sizeof(symbol));
	return symbol != nullptr;
}

/* Never closed: what it gave is used until the process ends. */
static void *open_library(void)
{
	static const char *const names[] = {"libcublas.so.13", "libcublas.so.12",
		"/usr/local/cuda/lib64/libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.12"};
	void *file = nullptr;

	for (unsigned i = 0; !file && i < sizeof(names) / sizeof(names[0]); i++)
		file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	return file;
}

/* What the bits depend on: cublasGemmEx chooses by the version, and by the device. */
static int write_name(struct runtime *rt, char name[BACKEND_FAST_NAME], struct error *err)
{
	int version[3] = {}, number = 0, multiprocessors = 0;

	for (int i = 0; i < 3; i++)
		if (blas.property(static_cast<libraryPropertyType>(i), &version[i]) !=
			CUBLAS_STATUS_SUCCESS)
			return error_set(err, EIO, "libcublas does not say its version");
	if (cudaGetDevice(&number) != cudaSuccess ||
		cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, number) !=
			cudaSuccess)
		return error_set(err, EIO, "the GPU does not say how many multiprocessors it has");
	snprintf(name, BACKEND_FAST_NAME, "cuBLAS %d.%d.%d, %.60s, %d multiprocessors", version[0],
		version[1], version[2], runtime_device(rt)->name, multiprocessors);
	return 0;
}

int library_load(struct runtime *rt, char name[BACKEND_FAST_NAME], struct error *err)
{
	void *file = open_library();

	if (!file)
		return error_set(err, ENOENT,
			"NVIDIA's cuBLAS (libcublas.so.13 or .12) cannot be loaded: install it, or "
			"set arithmetic = exact (%s)",
			dlerror());
	if (!look_up(file, "cublasCreate_v2", &blas.create) ||
		!look_up(file, "cublasDestroy_v2", &blas.destroy) ||
		!look_up(file, "cublasGetProperty", &blas.property) ||
		!look_up(file, "cublasSetStream_v2", &blas.set_stream) ||
		!look_up(file, "cublasSetWorkspace_v2", &blas.set_workspace) ||
		!look_up(file, "cublasSetMathMode", &blas.set_math) ||
		!look_up(file, "cublasGemmEx", &blas.gemm))
		return error_set(err, ENOEXEC, "libcublas lacks a function: %s", dlerror());
	return write_name(rt, name, err);
}

size_t library_bytes(void)
{
	return WORKSPACE;
}

static int set_up(struct library *l, void *memory)
{
	cublasStatus_t rc = blas.set_stream(l->handle, stream_cuda(l->stream));

	/* In this order: setting a stream takes the handle's own workspace again. */
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = blas.set_workspace(l->handle, memory, WORKSPACE);
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = blas.set_math(
			l->handle, static_cast<cublasMath_t>(
					   CUBLAS_DEFAULT_MATH |
					   CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
	return rc;
}

int library_open(struct runtime *rt, struct stream *stream, void *memory, struct library **out,
	struct error *err)
{
	struct library *l = static_cast<struct library *>(calloc(1, sizeof(*l)));

	(void)rt;
	if (!l)
		return error_set(err, ENOMEM, "no memory for a handle of cuBLAS");
	l->stream = stream;
	int rc = blas.create(&l->handle);
	if (rc == CUBLAS_STATUS_SUCCESS)
		rc = set_up(l, memory);
	if (rc != CUBLAS_STATUS_SUCCESS) {
		library_close(l);
		return error_set(err, EIO, "cuBLAS cannot be used: status %d", rc);
	}
	*out = l;
	return 0;
}

void library_close(struct library *l)
{
	if (l->handle)
		(void)blas.destroy(l->handle);
	free(l);
}

/* cuBLAS counts columns first: its A is w, turned, and its result is y with its rows as columns. */
void library_multiply(struct library *l, const struct library_product *p)
{
	cudaDataType type = p->type == TENSOR_F16 ? CUDA_R_16F : CUDA_R_16BF;
	int rows = static_cast<int>(p->rows), cols = static_cast<int>(p->cols);
	const float none = 0;

	cublasStatus_t rc = blas.gemm(l->handle, CUBLAS_OP_T, CUBLAS_OP_N, rows,
		static_cast<int>(p->n), cols, &p->scale, p->w, type, cols, p->x, type, cols, &none,
		p->y, CUDA_R_32F, rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
	if (rc != CUBLAS_STATUS_SUCCESS)
		stream_failed(l->stream, "cublasGemmEx");
	stream_launched(l->stream, "cublasGemmEx");
}
