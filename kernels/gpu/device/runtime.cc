/* A device of NVIDIA's: its memory, and streams. Functions of the driver are looked up by version, so
 * that the shared object loads where there is no driver and says so. */
#include "simt.h"

#include "kernels/gpu/args_ring.h"
#include "kernels/gpu/graph_list.h"
#include "kernels/gpu/ipc_note.h"
#include "kernels/gpu/placed.h"
#include "kernels/gpu/unfit.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cassert>
#include <cstdio>
#include <pthread.h>
#include <unistd.h>

extern "C" {
#include "shared/base/clock.h"
}

/* How a buffer's memory is freed. */
enum handle {
	HANDLE_NONE,
	HANDLE_OWN,
	HANDLE_HOST,
	HANDLE_REGISTERED,
	HANDLE_COPY,
	HANDLE_MAPPED,
	HANDLE_IPC
};
static constexpr unsigned EVENTS = 256; /* tickets whose events are kept apart */

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

struct runtime {
	int number;
	struct backend_device device;
	struct driver driver;
	char what[128];
	struct placed_list placed;
	pthread_mutex_t mutex; /* of `failed` and `why` */
	cudaError_t failed; /* the first failure of a stream */
	struct error why;
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

/* The UUID as nvidia-smi prints it. */
static void write_uuid(const cudaUUID_t *uuid, char out[48])
{
	static const char digits[] = "0123456789abcdef";
	char *to = out + sprintf(out, "GPU-");

	for (unsigned i = 0; i < 16; i++) {
		unsigned char byte = static_cast<unsigned char>(uuid->bytes[i]);

		if (i == 4 || i == 6 || i == 8 || i == 10)
			*to++ = '-';
		*to++ = digits[byte >> 4];
		*to++ = digits[byte & 15];
	}
	*to = 0;
}

/* The device of this number, or UUID. -EINVAL lists what there is. */
static int find_device(const char *device, int n, int *out, struct error *err)
{
	char *end, text[512], uuid[48];
	long number = strtol(device, &end, 10);
	size_t used = 0;

	if (!*end && number >= 0 && number < n) {
		*out = static_cast<int>(number);
		return 0;
	}
	for (int i = 0; i < n; i++) {
		struct cudaDeviceProp prop;

		if (cudaGetDeviceProperties(&prop, i) != cudaSuccess)
			continue;
		write_uuid(&prop.uuid, uuid);
		if (strcmp(uuid, device) == 0) {
			*out = i;
			return 0;
		}
		if (used < sizeof(text))
			used += static_cast<size_t>(snprintf(text + used, sizeof(text) - used,
				"%s%d (%s, %s)", i ? ", " : "", i, prop.name, uuid));
	}
	return error_set(
		err, EINVAL, "there is no GPU \"%s\"; there is %s", device, used ? text : "none");
}

/* Says that there is no usable GPU: none at all, no driver, or one that is older than the toolkit. */
static int no_device(cudaError_t rc, struct error *err)
{
	int driver = 0, toolkit = 0;

	(void)cudaDriverGetVersion(&driver);
	(void)cudaRuntimeGetVersion(&toolkit);
	if (driver == 0 || rc == cudaErrorInsufficientDriver)
		return unfit_driver(driver, toolkit, err);
	return error_set(err, ENODEV, "there is no usable GPU: %s (%s)", cudaGetErrorString(rc),
		cudaGetErrorName(rc));
}

/* An attribute that the driver does not know is 0. */
static int attribute(enum cudaDeviceAttr which, int device)
{
	int value = 0;

	if (cudaDeviceGetAttribute(&value, which, device) == cudaSuccess)
		return value;
	(void)cudaGetLastError();
	return 0;
}

static int check_sharing(int device, struct error *err)
{
	char name[32];
	int mode = attribute(cudaDevAttrComputeMode, device);

	snprintf(name, sizeof(name), "GPU %d", device);
	return unfit_sharing(name, attribute(cudaDevAttrMpsEnabled, device) != 0,
		mode == cudaComputeModeDefault	    ? MODE_SHARED
		: mode == cudaComputeModeProhibited ? MODE_PROHIBITED
						    : MODE_EXCLUSIVE,
		err);
}

static int open_device(struct runtime *rt, const char *device, struct error *err)
{
	struct cudaDeviceProp prop;
	int n = 0, version = 0;
	cudaError_t rc = cudaGetDeviceCount(&n);

	if (rc != cudaSuccess)
		return no_device(rc, err);
	int found = find_device(*device ? device : "0", n, &rt->number, err);
	if (found < 0)
		return found;
	found = check_sharing(rt->number, err);
	if (found < 0)
		return found;
	if ((rc = cudaSetDevice(rt->number)) != cudaSuccess ||
		(rc = cudaGetDeviceProperties(&prop, rt->number)) != cudaSuccess)
		return failed(err, rc, "a GPU cannot be used");
	if (!look_up_all(&rt->driver))
		return error_set(err, ENOSYS, "the driver of the GPU is too old");
	(void)cudaDriverGetVersion(&version);
	write_version(version, rt->device.driver, sizeof(rt->device.driver));
	write_uuid(&prop.uuid, rt->device.uuid);
	snprintf(rt->device.name, sizeof(rt->device.name), "%.90s", prop.name);
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
	placed_init(&rt->placed);
	int rc = open_device(rt, device, err);
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
	for (size_t i = 0; i < rt->placed.n; i++)
		(void)cudaFree(rt->placed.of[i].device);
	placed_exit(&rt->placed);
	pthread_mutex_destroy(&rt->mutex);
	free(rt);
}

const struct backend_device *runtime_device(const struct runtime *rt)
{
	return &rt->device;
}

void runtime_memory(const struct runtime *rt, struct backend_memory *out)
{
	size_t left = 0, all = 0;

	(void)cudaSetDevice(rt->number);
	if (cudaMemGetInfo(&left, &all) != cudaSuccess)
		left = all = 0;
	*out = {all, left};
}

/* Notes the first failure of a stream, or of a copy of weights. Most of CUDA's are sticky: nothing
 * runs after them. */
static void note_failure(struct runtime *rt, cudaError_t rc, const char *where)
{
	pthread_mutex_lock(&rt->mutex);
	if (rt->failed == cudaSuccess) {
		char why[160];

		rt->failed = rc;
		snprintf(why, sizeof(why), "%.90s (%s); the kernel's log may name an Xid",
			cudaGetErrorString(rc), cudaGetErrorName(rc));
		(void)lost_text(rt->device.name, where, why, &rt->why);
	}
	pthread_mutex_unlock(&rt->mutex);
}

int runtime_failure(struct runtime *rt, struct error *err)
{
	int rc = 0;

	pthread_mutex_lock(&rt->mutex);
	if (rt->failed != cudaSuccess)
		rc = error_set(err, ENODEV, "%s", rt->why.text);
	pthread_mutex_unlock(&rt->mutex);
	return rc;
}

/* ---- Memory. ---- */

static int no_memory(const struct runtime *rt, size_t bytes, struct error *err)
{
	struct backend_memory memory;

	runtime_memory(rt, &memory);
	return backend_no_memory(err, rt->device.name, bytes, &memory);
}

/* Memory of the device's. */
static int allocate(struct runtime *rt, size_t bytes, void **out, struct error *err)
{
	(void)cudaSetDevice(rt->number);
	cudaError_t rc = cudaMalloc(out, bytes);
	if (rc == cudaSuccess)
		return 0;
	*out = nullptr;
	/* Such a failure is not sticky, but would be found at the next launch. */
	(void)cudaGetLastError();
	return rc == cudaErrorMemoryAllocation ? no_memory(rt, bytes, err)
					       : failed(err, rc, "no memory of the GPU");
}

/* A copy of weights in memory of the device's; cudaMalloc aligns it to 256 bytes. */
static int copied(
	struct runtime *rt, const void *from, size_t bytes, unsigned char **out, struct error *err)
{
	void *at;
	int rc = allocate(rt, bytes, &at, err);

	if (rc == 0) {
		cudaError_t code = cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice);
		if (code != cudaSuccess) {
			(void)cudaFree(at);
			at = nullptr;
			note_failure(rt, code, "a copy of weights");
			rc = runtime_failure(rt, err);
		}
	}
	*out = static_cast<unsigned char *>(at);
	return rc;
}

static CUmemAllocationProp properties(const struct runtime *rt)
{
	CUmemAllocationProp prop = {};

	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = rt->number;
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

/* Without exports: memory that CUDA's IPC shares. */
static int alloc_ipc(struct runtime *rt, size_t bytes, struct buffer *out, struct error *err)
{
	struct ipc_note note = {IPC_NOTE_MAGIC, bytes, {}};
	cudaIpcMemHandle_t handle;
	void *at;
	int rc = allocate(rt, bytes, &at, err);

	if (rc < 0)
		return rc;
	static_assert(sizeof(handle) == sizeof(note.handle), "CUDA's handles");
	cudaError_t code = cudaIpcGetMemHandle(&handle, at);
	if (code == cudaSuccess) {
		memcpy(note.handle, &handle, sizeof(handle));
		rc = ipc_note_write(&note, err);
	} else {
		(void)cudaGetLastError();
		rc = failed(err, code, "memory of the GPU cannot be shared with processes");
	}
	if (rc < 0) {
		(void)cudaFree(at);
		return rc;
	}
	out->fd = rc;
	out->bytes = bytes;
	out->device = static_cast<unsigned char *>(at);
	out->handle = HANDLE_OWN;
	out->ends_with_maker = true;
	return 0;
}

static int import_ipc(
	const struct ipc_note *note, size_t bytes, struct buffer *out, struct error *err)
{
	cudaIpcMemHandle_t handle;
	void *at;

	if (note->bytes < bytes)
		return error_set(err, EINVAL,
			"a buffer of %zu bytes was asked for, but its memory has %llu", bytes,
			static_cast<unsigned long long>(note->bytes));
	memcpy(&handle, note->handle, sizeof(handle));
	cudaError_t rc = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess);
	if (rc != cudaSuccess) {
		(void)cudaGetLastError();
		return error_set(err, ESTALE,
			"memory of the GPU has ended with its process, or cannot be shared: %s",
			cudaGetErrorString(rc));
	}
	out->device = static_cast<unsigned char *>(at);
	out->bytes = bytes;
	out->handle = HANDLE_IPC;
	out->ends_with_maker = true;
	return 0;
}

static int alloc_shared(struct runtime *rt, size_t bytes, struct buffer *out, struct error *err)
{
	const CUmemAllocationProp prop = properties(rt);
	CUmemGenericAllocationHandle handle;
	int rc = granular(rt, &bytes, err);

	if (rc < 0)
		return rc;
	/* Where exports are refused, either of the two fails. */
	CUresult made = rt->driver.create(&handle, bytes, &prop, 0);
	if (made == CUDA_ERROR_OUT_OF_MEMORY)
		return no_memory(rt, bytes, err);
	if (made != CUDA_SUCCESS)
		return alloc_ipc(rt, bytes, out, err);
	if (rt->driver.export_fd(&out->fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) !=
		CUDA_SUCCESS) {
		(void)rt->driver.release(handle);
		out->fd = -1;
		return alloc_ipc(rt, bytes, out, err);
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
	(void)cudaSetDevice(rt->number);
	if (kind == BUFFER_SHARED)
		return alloc_shared(rt, bytes, out, err);
	if (kind == BUFFER_OWN) {
		int rc = allocate(rt, bytes, &at, err);
		out->device = static_cast<unsigned char *>(at);
		out->handle = HANDLE_OWN;
		return rc;
	}
	cudaError_t rc = cudaHostAlloc(&at, bytes, cudaHostAllocPortable);
	if (rc != cudaSuccess)
		return failed(err, rc, "memory of the host that the GPU sees cannot be allocated");
	out->host = out->device = static_cast<unsigned char *>(at);
	out->handle = HANDLE_HOST;
	memset(at, 0, bytes);
	return 0;
}

/* Registers memory of the host, which kernels then read and write across the bus. A page can be
 * registered once. What is mapped for reading only must be registered so. */
int runtime_wrap(
	struct runtime *rt, void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	static const unsigned ways[] = {cudaHostRegisterPortable | cudaHostRegisterMapped,
		cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly};
	cudaError_t rc = cudaErrorUnknown;
	void *at = nullptr;

	*out = {};
	out->fd = -1;
	(void)cudaSetDevice(rt->number);
	for (unsigned i = 0; rc != cudaSuccess && i < 2; i++)
		rc = cudaHostRegister(memory, bytes, ways[i]);
	(void)cudaGetLastError();
	if (rc != cudaSuccess)
		return failed(err, rc, "memory of the host cannot be mapped for the GPU");
	rc = cudaHostGetDevicePointer(&at, memory, 0);
	if (rc != cudaSuccess) {
		(void)cudaHostUnregister(memory);
		return failed(err, rc, "memory of the host cannot be mapped for the GPU");
	}
	out->host = static_cast<unsigned char *>(memory);
	out->bytes = bytes;
	out->handle = HANDLE_REGISTERED;
	out->device = static_cast<unsigned char *>(at);
	return 0;
}

int runtime_wrap_weights(
	struct runtime *rt, const void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	*out = {};
	out->fd = -1;
	int rc = copied(rt, memory, bytes, &out->device, err);
	if (rc < 0)
		return rc;
	out->host = static_cast<unsigned char *>(const_cast<void *>(memory));
	out->bytes = bytes;
	out->handle = HANDLE_COPY;
	return 0;
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
	(void)cudaSetDevice(rt->number);
	struct ipc_note note;
	if (ipc_note_read(fd, &note))
		return import_ipc(&note, bytes, out, err);
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
	case HANDLE_IPC:
		(void)cudaIpcCloseMemHandle(buffer->device);
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

int runtime_place(struct runtime *rt, const void *at, size_t bytes, struct error *err)
{
	struct placed_list *list = &rt->placed;
	int rc = 0;

	pthread_mutex_lock(&list->mutex);
	struct placed *p = placed_exactly(list, at, bytes);
	if (p) {
		p->times++;
	} else {
		unsigned char *device;
		rc = copied(rt, at, bytes, &device, err);
		if (rc == 0 && placed_add(list, at, bytes, device) < 0) {
			rc = error_set(err, ENOMEM, "no memory for a list of tensors");
			(void)cudaFree(device);
		}
	}
	pthread_mutex_unlock(&list->mutex);
	return rc;
}

void runtime_forget(struct runtime *rt, const void *at, size_t bytes)
{
	struct placed_list *list = &rt->placed;

	pthread_mutex_lock(&list->mutex);
	struct placed *p = placed_exactly(list, at, bytes);
	if (p && --p->times == 0) {
		(void)cudaSetDevice(rt->number);
		(void)cudaFree(p->device);
		placed_remove(list, p);
	}
	pthread_mutex_unlock(&list->mutex);
}

const void *runtime_weights(struct runtime *rt, const void *at, size_t bytes)
{
	const void *device = at ? placed_find(&rt->placed, at, bytes) : nullptr;

	if (at && !device)
		note_failure(rt, cudaErrorInvalidHostPointer, "the search for weights");
	return device;
}

/* ---- Streams. ---- */

struct stream {
	struct runtime *rt;
	cudaStream_t cuda;
	cudaEvent_t events[EVENTS]; /* of ticket t: t % EVENTS */
	ticket issued;
	/* Of stream_watch, and of marks; made by the first stream_watch. */
	cudaEvent_t began, *marks;
	uint64_t began_ns; /* 0: there are not all of them */
	struct args_ring args;
	struct graph_list graphs; /* of cudaGraphExec_t */
	bool records; /* a graph */
	uint64_t key; /* of the graph that is recorded or replayed */
	cudaGraphExec_t graph; /* the one that is replayed, or null */
};

cudaStream_t stream_cuda(struct stream *s)
{
	return s->cuda;
}

static void note(struct stream *s, cudaError_t rc, const char *where)
{
	if (rc != cudaSuccess)
		note_failure(s->rt, rc, where);
}

void stream_launched(struct stream *s, const char *name)
{
	note(s, cudaGetLastError(), name);
}

void stream_failed(struct stream *s, const char *name)
{
	note(s, cudaErrorUnknown, name);
}

/* What they queued must have ended. */
static void forget_graphs(struct stream *s)
{
	for (unsigned i = 0; i < s->graphs.n; i++)
		(void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(s->graphs.of[i].graph));
	s->graphs.n = 0;
	s->graphs.used = 0;
}

int stream_create(struct runtime *rt, struct stream **out, struct error *err)
{
	struct stream *s = static_cast<struct stream *>(calloc(1, sizeof(*s)));
	void *args = nullptr;

	if (!s)
		return error_set(err, ENOMEM, "no memory for a stream");
	s->rt = rt;
	(void)cudaSetDevice(rt->number);
	cudaError_t rc = cudaStreamCreateWithFlags(&s->cuda, cudaStreamNonBlocking);
	if (rc == cudaSuccess)
		rc = cudaHostAlloc(&args, args_ring_bytes(), cudaHostAllocPortable);
	s->args.memory = static_cast<unsigned char *>(args);
	args = nullptr;
	if (rc == cudaSuccess)
		rc = cudaHostAlloc(&args, GRAPH_ARGS_BYTES, cudaHostAllocPortable);
	s->graphs.memory = static_cast<unsigned char *>(args);
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
	forget_graphs(s);
	for (unsigned i = 0; i < EVENTS; i++)
		if (s->events[i])
			(void)cudaEventDestroy(s->events[i]);
	for (unsigned i = 0; s->marks && i < STREAM_MARKS; i++)
		if (s->marks[i])
			(void)cudaEventDestroy(s->marks[i]);
	free(s->marks);
	if (s->began)
		(void)cudaEventDestroy(s->began);
	if (s->cuda)
		(void)cudaStreamDestroy(s->cuda);
	(void)cudaFreeHost(s->args.memory);
	(void)cudaFreeHost(s->graphs.memory);
	free(s);
}

size_t stream_bytes(void)
{
	return sizeof(struct stream) + args_ring_bytes() + GRAPH_ARGS_BYTES;
}

void *stream_args(struct stream *s, size_t bytes)
{
	return s->records ? graph_list_take(&s->graphs, bytes) : args_ring_take(&s->args, s, bytes);
}

/* Relaxed: other threads, and this one, may allocate meanwhile. */
bool stream_graph_begin(struct stream *s, uint64_t key)
{
	s->key = key;
	s->graph = static_cast<cudaGraphExec_t>(graph_list_find(&s->graphs, key));
	if (s->graph)
		return false;
	if (graph_list_full(&s->graphs)) {
		note(s, cudaStreamSynchronize(s->cuda), "the end of graphs");
		forget_graphs(s);
	}
	note(s, cudaStreamBeginCapture(s->cuda, cudaStreamCaptureModeRelaxed),
		"the beginning of a graph");
	s->records = true;
	return true;
}

/* Nothing of a graph that cannot be made has run: the pass fails, with what to do. */
static void make_graph(struct stream *s)
{
	static const char where[] = "the making of a graph (OUTRIDER_GRAPHS=off does without)";
	cudaGraph_t graph = nullptr;
	cudaGraphExec_t exec = nullptr;
	cudaError_t rc = cudaStreamEndCapture(s->cuda, &graph);

	s->records = false;
	if (rc == cudaSuccess)
		rc = cudaGraphInstantiate(&exec, graph, 0);
	if (graph)
		(void)cudaGraphDestroy(graph);
	note(s, rc, where);
	if (rc != cudaSuccess)
		return;
	graph_list_add(&s->graphs, s->key, exec);
	s->graph = exec;
}

void stream_graph_end(struct stream *s)
{
	if (s->records)
		make_graph(s);
	if (s->graph)
		note(s, cudaGraphLaunch(s->graph, s->cuda), "a graph");
	s->graph = nullptr;
}

void stream_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
	note(s, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->cuda), "a copy");
}

void stream_wait_value(struct stream *s, const uint32_t *word, uint32_t value)
{
	CUresult rc = s->rt->driver.wait32(
		s->cuda, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ);

	note(s, rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown, "a flag");
}

void stream_write_value(struct stream *s, uint32_t *word, uint32_t value)
{
	CUresult rc = s->rt->driver.write32(
		s->cuda, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT);

	note(s, rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown, "a flag");
}

void stream_call(struct stream *s, void (*fn)(void *arg), void *arg)
{
	note(s, cudaLaunchHostFunc(s->cuda, fn, arg), "a call");
}

/* The event of a ticket serves again EVENTS tickets later, when it tells of a later point: then the
 * older ticket is reached too, if a little late. */
ticket stream_ticket(struct stream *s)
{
	s->issued++;
	note(s, cudaEventRecord(s->events[s->issued % EVENTS], s->cuda), "a ticket");
	return s->issued;
}

bool stream_reached(struct stream *s, ticket t)
{
	return cudaEventQuery(s->events[t % EVENTS]) != cudaErrorNotReady;
}

int stream_wait(struct stream *s, ticket t)
{
	assert(t <= s->issued);
	note(s, cudaEventSynchronize(s->events[t % EVENTS]), "a kernel");
	return runtime_failure(s->rt, nullptr);
}

/* ---- Marks: events with times ("CUDA Runtime API", cudaEventElapsedTime: about 0.5 us). ---- */

static bool make_marks(struct stream *s)
{
	cudaError_t rc = s->began ? cudaSuccess : cudaEventCreate(&s->began);

	if (!s->marks)
		s->marks = static_cast<cudaEvent_t *>(calloc(STREAM_MARKS, sizeof(*s->marks)));
	if (!s->marks)
		return false;
	for (unsigned i = 0; rc == cudaSuccess && i < STREAM_MARKS; i++)
		if (!s->marks[i])
			rc = cudaEventCreate(&s->marks[i]);
	if (rc != cudaSuccess)
		(void)cudaGetLastError();
	return rc == cudaSuccess;
}

/* Nothing else runs in the stream: the event comes between the two clock readings. */
bool stream_watch(struct stream *s)
{
	if (s->began_ns == 0 && !make_marks(s))
		return false;
	note(s, cudaStreamSynchronize(s->cuda), "the beginning of times");
	uint64_t before_ns = clock_ns();
	note(s, cudaEventRecord(s->began, s->cuda), "the beginning of times");
	note(s, cudaEventSynchronize(s->began), "the beginning of times");
	s->began_ns = before_ns + (clock_ns() - before_ns) / 2;
	return true;
}

void stream_mark(struct stream *s, unsigned mark)
{
	note(s, cudaEventRecord(s->marks[mark], s->cuda), "a mark");
}

uint64_t stream_marked(struct stream *s, unsigned mark)
{
	float ms = 0;

	if (cudaEventElapsedTime(&ms, s->began, s->marks[mark]) == cudaSuccess)
		return s->began_ns + static_cast<uint64_t>(static_cast<double>(ms) * 1e6);
	(void)cudaGetLastError();
	return 0;
}
