/* A device of NVIDIA's: its memory, and streams. Functions of the driver are looked up by version, so
 * that the shared object loads where there is no driver and says so. */
#include "simt.h"

#include "kernels/gpu/args_ring.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cassert>
#include <cstdio>
#include <pthread.h>
#include <unistd.h>

/* How a buffer's memory is freed. */
enum handle { HANDLE_NONE, HANDLE_OWN, HANDLE_HOST, HANDLE_REGISTERED, HANDLE_COPY, HANDLE_MAPPED };
static constexpr unsigned EVENTS = 256; /* tickets whose events are kept apart */
static constexpr size_t WEIGHTS_MAX = 1 << 16; /* tensors on the device */

/* The driver's functions. */
struct driver {
	PFN_cuMemCreate_v10020 create;
	PFN_cuMemExportToShareableHandle_v10020 export_fd;
	PFN_cuMemImportFromShareableHandle_v10020 import_fd;
	PFN_cuMemAddressReserve_v10020 reserve;
	PFN_cuMemAddressFree_v10020 unreserve;
	PFN_cuMemMap_v10020 map;
	PFN_cuMemUnmap_v10020 unmap;
	PFN_cuMemSetAccess_v10020 access;
	PFN_cuMemRelease_v10020 release;
	PFN_cuMemGetAllocationGranularity_v10020 granularity;
	PFN_cuStreamWaitValue32_v11070 wait32;
	PFN_cuStreamWriteValue32_v11070 write32;
};

/* A tensor that was copied to the device: where the host has it, and the copy. */
struct placed {
	const void *host;
	size_t bytes;
	unsigned char *device;
};

struct runtime {
	int device;
	struct driver driver;
	char what[128];
	pthread_mutex_t mutex; /* of `placed` */
	struct placed *placed; /* [WEIGHTS_MAX], a hash table by `host` */
	size_t n_placed;
};

/* What failed, with CUDA's name of it. */
static int failed(struct error *err, cudaError_t code, const char *what)
{
	int rc = code == cudaErrorMemoryAllocation ? ENOMEM : EIO;

	return error_set(
		err, rc, "%s: %s (%s)", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

static bool look_up(const char *name, unsigned version, void *to)
{
	enum cudaDriverEntryPointQueryResult result;

	return cudaGetDriverEntryPointByVersion(name, static_cast<void **>(to), version,
		       cudaEnableDefault, &result) == cudaSuccess &&
	       result == cudaDriverEntryPointSuccess;
}

static bool look_up_all(struct driver *d)
{
	return look_up("cuMemCreate", 10020, &d->create) &&
	       look_up("cuMemExportToShareableHandle", 10020, &d->export_fd) &&
	       look_up("cuMemImportFromShareableHandle", 10020, &d->import_fd) &&
	       look_up("cuMemAddressReserve", 10020, &d->reserve) &&
	       look_up("cuMemAddressFree", 10020, &d->unreserve) &&
	       look_up("cuMemMap", 10020, &d->map) && look_up("cuMemUnmap", 10020, &d->unmap) &&
	       look_up("cuMemSetAccess", 10020, &d->access) &&
	       look_up("cuMemRelease", 10020, &d->release) &&
	       look_up("cuMemGetAllocationGranularity", 10020, &d->granularity) &&
	       look_up("cuStreamWaitValue32", 11070, &d->wait32) &&
	       look_up("cuStreamWriteValue32", 11070, &d->write32);
}

static int open_device(struct runtime *rt, const char *device, struct error *err)
{
	struct cudaDeviceProp prop;
	char *end;
	long number = strtol(device, &end, 10);
	int n = 0;
	cudaError_t rc = cudaGetDeviceCount(&n);

	if (rc != cudaSuccess)
		return error_set(err, ENODEV, "there is no usable GPU: %s (%s)",
			cudaGetErrorString(rc), cudaGetErrorName(rc));
	if (*end || number < 0 || number >= n)
		return error_set(
			err, EINVAL, "device \"%s\": there are %d, counted from 0", device, n);
	rt->device = static_cast<int>(number);
	if ((rc = cudaSetDevice(rt->device)) != cudaSuccess ||
		(rc = cudaGetDeviceProperties(&prop, rt->device)) != cudaSuccess)
		return failed(err, rc, "a GPU cannot be used");
	if (!look_up_all(&rt->driver))
		return error_set(err, ENOSYS, "the driver of the GPU is too old");
	snprintf(rt->what, sizeof(rt->what), "%.100s, sm_%d", prop.name,
		prop.major * 10 + prop.minor);
	return 0;
}

int runtime_open(const char *device, unsigned seed, struct runtime **out, const char **what,
	struct error *err)
{
	struct runtime *rt = static_cast<struct runtime *>(calloc(1, sizeof(*rt)));

	(void)seed;
	if (!rt)
		return error_set(err, ENOMEM, "no memory for a back end");
	pthread_mutex_init(&rt->mutex, nullptr);
	rt->placed = static_cast<struct placed *>(calloc(WEIGHTS_MAX, sizeof(*rt->placed)));
	int rc = rt->placed ? open_device(rt, device, err)
			    : error_set(err, ENOMEM, "no memory for a table of tensors");
	if (rc < 0) {
		runtime_close(rt);
		return rc;
	}
	*what = rt->what;
	*out = rt;
	return 0;
}

void runtime_close(struct runtime *rt)
{
	for (size_t i = 0; rt->placed && i < WEIGHTS_MAX; i++)
		if (rt->placed[i].device)
			(void)cudaFree(rt->placed[i].device);
	pthread_mutex_destroy(&rt->mutex);
	free(rt->placed);
	free(rt);
}

/* ---- Memory. ---- */

static CUmemAllocationProp properties(const struct runtime *rt)
{
	CUmemAllocationProp prop = {};

	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = rt->device;
	return prop;
}

/* Maps an allocation, which is released: it lives as long as the mapping and the descriptors. */
static int map_handle(struct runtime *rt, CUmemGenericAllocationHandle handle, size_t bytes,
	bool write, struct buffer *out, struct error *err)
{
	const struct driver *d = &rt->driver;
	CUmemAccessDesc access = {};
	CUdeviceptr at = 0;

	access.location = properties(rt).location;
	access.flags = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
	CUresult rc = d->reserve(&at, bytes, 0, 0, 0);
	if (rc == CUDA_SUCCESS && (rc = d->map(at, bytes, 0, handle, 0)) != CUDA_SUCCESS) {
		(void)d->unreserve(at, bytes);
	} else if (rc == CUDA_SUCCESS && (rc = d->access(at, bytes, &access, 1)) != CUDA_SUCCESS) {
		(void)d->unmap(at, bytes);
		(void)d->unreserve(at, bytes);
	}
	(void)d->release(handle);
	if (rc != CUDA_SUCCESS)
		return error_set(err, EIO,
			"%zu bytes of the GPU's memory cannot be mapped: error %d", bytes,
			static_cast<int>(rc));
	out->device = reinterpret_cast<unsigned char *>(at);
	out->bytes = bytes;
	out->handle = HANDLE_MAPPED;
	return 0;
}

static int granular(struct runtime *rt, size_t *bytes, struct error *err)
{
	const CUmemAllocationProp prop = properties(rt);
	size_t each;

	if (rt->driver.granularity(&each, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
		return error_set(err, EIO, "the GPU does not say how its memory is divided");
	*bytes = (*bytes + each - 1) / each * each;
	return 0;
}

static int alloc_shared(struct runtime *rt, size_t bytes, struct buffer *out, struct error *err)
{
	const CUmemAllocationProp prop = properties(rt);
	CUmemGenericAllocationHandle handle;
	int rc = granular(rt, &bytes, err);

	if (rc < 0)
		return rc;
	if (rt->driver.create(&handle, bytes, &prop, 0) != CUDA_SUCCESS)
		return error_set(
			err, ENOMEM, "the GPU has no memory for a buffer of %zu bytes", bytes);
	if (rt->driver.export_fd(&out->fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) !=
		CUDA_SUCCESS) {
		(void)rt->driver.release(handle);
		return error_set(err, EIO, "memory of the GPU cannot be shared with processes");
	}
	return map_handle(rt, handle, bytes, true, out, err);
}

int runtime_alloc(struct runtime *rt, size_t bytes, enum buffer_kind kind, struct buffer *out,
	struct error *err)
{
	void *at = nullptr;

	*out = {};
	out->bytes = bytes;
	out->fd = -1;
	(void)cudaSetDevice(rt->device);
	if (kind == BUFFER_SHARED)
		return alloc_shared(rt, bytes, out, err);
	cudaError_t rc = kind == BUFFER_HOST ? cudaHostAlloc(&at, bytes, cudaHostAllocPortable)
					     : cudaMalloc(&at, bytes);
	if (rc != cudaSuccess)
		return error_set(err, ENOMEM, "no memory for a buffer of %zu bytes: %s", bytes,
			cudaGetErrorString(rc));
	out->device = static_cast<unsigned char *>(at);
	out->handle = kind == BUFFER_HOST ? HANDLE_HOST : HANDLE_OWN;
	if (kind == BUFFER_HOST) {
		memset(at, 0, bytes);
		out->host = out->device;
	}
	return 0;
}

/* Memory that cannot be registered, such as the mapping of a file, is copied: wrapped memory holds
 * weights, which do not change. */
int runtime_wrap(
	struct runtime *rt, void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	void *at = nullptr;

	*out = {};
	out->host = static_cast<unsigned char *>(memory);
	out->bytes = bytes;
	out->fd = -1;
	(void)cudaSetDevice(rt->device);
	if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess &&
		cudaHostGetDevicePointer(&at, memory, 0) == cudaSuccess) {
		out->handle = HANDLE_REGISTERED;
		out->device = static_cast<unsigned char *>(at);
		return 0;
	}
	(void)cudaGetLastError();
	cudaError_t rc = cudaMalloc(&at, bytes);
	if (rc == cudaSuccess)
		rc = cudaMemcpy(at, memory, bytes, cudaMemcpyHostToDevice);
	out->handle = HANDLE_COPY;
	out->device = static_cast<unsigned char *>(at);
	return rc == cudaSuccess ? 0 : failed(err, rc, "memory cannot be copied to the GPU");
}

int runtime_export(const struct buffer *buffer, struct error *err)
{
	if (buffer->fd < 0)
		return error_set(err, ENOTSUP, "a private buffer has no descriptor");
	int fd = dup(buffer->fd);
	return fd >= 0 ? fd
		       : error_set(err, errno, "a buffer's descriptor cannot be duplicated: %s",
				 strerror(errno));
}

int runtime_import(
	struct runtime *rt, int fd, size_t bytes, bool write, struct buffer *out, struct error *err)
{
	CUmemGenericAllocationHandle handle;

	*out = {};
	out->fd = -1;
	(void)cudaSetDevice(rt->device);
	int rc = granular(rt, &bytes, err);
	if (rc < 0)
		return rc;
	if (rt->driver.import_fd(&handle, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
		    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS)
		return error_set(err, EINVAL, "a descriptor is not of the GPU's memory");
	return map_handle(rt, handle, bytes, write, out, err);
}

void runtime_free(struct runtime *rt, struct buffer *buffer)
{
	CUdeviceptr at = reinterpret_cast<CUdeviceptr>(buffer->device);

	switch (buffer->handle) {
	case HANDLE_OWN:
	case HANDLE_COPY:
		(void)cudaFree(buffer->device);
		break;
	case HANDLE_HOST:
		(void)cudaFreeHost(buffer->device);
		break;
	case HANDLE_REGISTERED:
		(void)cudaHostUnregister(buffer->host);
		break;
	case HANDLE_MAPPED:
		(void)rt->driver.unmap(at, buffer->bytes);
		(void)rt->driver.unreserve(at, buffer->bytes);
		break;
	default:
		break;
	}
	if (buffer->fd >= 0)
		close(buffer->fd);
	*buffer = {};
	buffer->fd = -1;
}

/* Copies a tensor to the device when it is first asked for; cudaMalloc aligns it to 256 bytes. */
const void *runtime_weights(struct runtime *rt, const void *at, size_t bytes)
{
	size_t slot = (reinterpret_cast<uintptr_t>(at) >> 5) * 0x9e3779b97f4a7c15u % WEIGHTS_MAX;
	void *device = nullptr;

	if (!at)
		return nullptr;
	pthread_mutex_lock(&rt->mutex);
	while (rt->placed[slot].host &&
		(rt->placed[slot].host != at || rt->placed[slot].bytes < bytes))
		slot = (slot + 1) % WEIGHTS_MAX;
	struct placed *p = &rt->placed[slot];
	/* A failure here is the device's: what runs after it fails too, and the wait says so. */
	if (!p->host && rt->n_placed < WEIGHTS_MAX / 2 &&
		cudaMalloc(&device, bytes) == cudaSuccess &&
		cudaMemcpy(device, at, bytes, cudaMemcpyHostToDevice) == cudaSuccess) {
		*p = {at, bytes, static_cast<unsigned char *>(device)};
		rt->n_placed++;
	}
	device = p->device;
	pthread_mutex_unlock(&rt->mutex);
	return device;
}

/* ---- Streams. ---- */

struct stream {
	struct runtime *rt;
	cudaStream_t cuda;
	cudaEvent_t events[EVENTS]; /* of ticket t: t % EVENTS */
	ticket issued;
	cudaError_t error; /* the first of a launch */
	struct args_ring args;
};

cudaStream_t stream_cuda(struct stream *s)
{
	return s->cuda;
}

static void note(struct stream *s, cudaError_t rc)
{
	if (rc != cudaSuccess && s->error == cudaSuccess)
		s->error = rc;
}

void stream_launched(struct stream *s, const char *name)
{
	cudaError_t rc = cudaGetLastError();

	if (rc != cudaSuccess && s->error == cudaSuccess)
		fprintf(stderr, "outrider: kernel %s: %s\n", name, cudaGetErrorString(rc));
	note(s, rc);
}

int stream_create(struct runtime *rt, struct stream **out, struct error *err)
{
	struct stream *s = static_cast<struct stream *>(calloc(1, sizeof(*s)));
	void *args = nullptr;

	if (!s)
		return error_set(err, ENOMEM, "no memory for a stream");
	s->rt = rt;
	(void)cudaSetDevice(rt->device);
	cudaError_t rc = cudaStreamCreateWithFlags(&s->cuda, cudaStreamNonBlocking);
	if (rc == cudaSuccess)
		rc = cudaHostAlloc(&args, args_ring_bytes(), cudaHostAllocPortable);
	s->args.memory = static_cast<unsigned char *>(args);
	for (unsigned i = 0; rc == cudaSuccess && i < EVENTS; i++)
		rc = cudaEventCreateWithFlags(&s->events[i], cudaEventDisableTiming);
	if (rc != cudaSuccess) {
		stream_destroy(s);
		return failed(err, rc, "a stream cannot be created");
	}
	*out = s;
	return 0;
}

void stream_destroy(struct stream *s)
{
	if (s->cuda)
		(void)cudaStreamSynchronize(s->cuda);
	for (unsigned i = 0; i < EVENTS; i++)
		if (s->events[i])
			(void)cudaEventDestroy(s->events[i]);
	if (s->cuda)
		(void)cudaStreamDestroy(s->cuda);
	(void)cudaFreeHost(s->args.memory);
	free(s);
}

size_t stream_bytes(void)
{
	return sizeof(struct stream) + args_ring_bytes();
}

void *stream_args(struct stream *s, size_t bytes)
{
	return args_ring_take(&s->args, s, bytes);
}

void stream_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
	note(s, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->cuda));
}

void stream_wait_value(struct stream *s, const uint32_t *word, uint32_t value)
{
	CUresult rc = s->rt->driver.wait32(
		s->cuda, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ);

	note(s, rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown);
}

void stream_write_value(struct stream *s, uint32_t *word, uint32_t value)
{
	CUresult rc = s->rt->driver.write32(
		s->cuda, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT);

	note(s, rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown);
}

void stream_call(struct stream *s, void (*fn)(void *arg), void *arg)
{
	note(s, cudaLaunchHostFunc(s->cuda, fn, arg));
}

/* The event of a ticket serves again EVENTS tickets later, when it tells of a later point: then the
 * older ticket is reached too, if a little late. */
ticket stream_ticket(struct stream *s)
{
	s->issued++;
	note(s, cudaEventRecord(s->events[s->issued % EVENTS], s->cuda));
	return s->issued;
}

bool stream_reached(struct stream *s, ticket t)
{
	return cudaEventQuery(s->events[t % EVENTS]) != cudaErrorNotReady;
}

int stream_wait(struct stream *s, ticket t)
{
	assert(t <= s->issued);
	note(s, cudaEventSynchronize(s->events[t % EVENTS]));
	return s->error == cudaSuccess ? 0 : -EIO;
}
