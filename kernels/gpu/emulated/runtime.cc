/* The emulated device and its memory. "Device" memory is the process's own. Weights are copied to it,
 * as a device must: the emulation ends the process when a step asks for weights that were not placed, or hands their address in the
 * host's memory to a kernel. OUTRIDER_SIMT_MEMORY limits the device's memory (bytes, or with K, M or
 * G); OUTRIDER_SIMT_TAKEN=BYTES[,N] is how much other programs have of it, from the N-th allocation on.
 * OUTRIDER_SIMT_LOST says at which launch the device is lost, OUTRIDER_SIMT_LOST_COPY at which copy,
 * OUTRIDER_SIMT_LOST_WEIGHTS at which copy of weights, and OUTRIDER_SIMT_LOST_WHY why.
 * OUTRIDER_SIMT_UNFIT says why it cannot be used: no-driver, old-driver, mps, exclusive. OUTRIDER_SIMT_UUID is its UUID; without it nobody knows one. With
 * OUTRIDER_SIMT_EXPORT=refused its memory cannot be exported, and is shared as by CUDA's IPC. */
#include "kernels/gpu/ipc_note.h"
#include "kernels/gpu/unfit.h"
#include "machine.h"

#include <cassert>
#include <cstdio>
#include <fcntl.h>

extern "C" {
#include "kernels/host_buffer.h"
}

enum {
	/* Own memory up to this size begins as NaNs, so that what nobody has written is seen. */
	MARKED_BYTES = 16 << 20,
	PAGE = 4096,
	/* In buffer.handle: the bytes count as memory of the device. */
	COUNTED = 0x100,
};

/* A number from the environment, with K, M or G; `other` when there is none. *second: a number behind a
 * comma, or 0. */
static uint64_t number_of(const char *name, uint64_t other, uint64_t *second = nullptr)
{
	const char *text = getenv(name);
	char *end;

	if (!text)
		return other;
	uint64_t n = strtoull(text, &end, 10);
	const char *comma = strchr(end, ',');
	if (second && comma)
		*second = strtoull(comma + 1, nullptr, 10);
	switch (*end) {
	case 'G':
		n <<= 10;
		[[fallthrough]];
	case 'M':
		n <<= 10;
		[[fallthrough]];
	case 'K':
		n <<= 10;
	}
	return n;
}

static const char NAME[] = "the emulated GPU";

static int check_fit(struct error *err)
{
	const char *unfit = getenv("OUTRIDER_SIMT_UNFIT");

	if (!unfit)
		return 0;
	if (strcmp(unfit, "no-driver") == 0)
		return unfit_driver(0, 13000, err);
	if (strcmp(unfit, "old-driver") == 0)
		return unfit_driver(12040, 13000, err);
	return unfit_sharing(NAME, strcmp(unfit, "mps") == 0,
		strcmp(unfit, "exclusive") == 0 ? MODE_EXCLUSIVE : MODE_SHARED, err);
}

int runtime_open(const char *device, unsigned seed, struct runtime **out, const char **what,
	struct error *err)
{
	(void)device;
	int rc = check_fit(err);
	if (rc < 0)
		return rc;
	struct runtime *rt = static_cast<struct runtime *>(calloc(1, sizeof(*rt)));
	if (!rt)
		return error_set(err, ENOMEM, "no memory for a back end");
	rt->seed = seed;
	const char *uuid = getenv("OUTRIDER_SIMT_UUID");
	snprintf(rt->device.name, sizeof(rt->device.name), NAME);
	snprintf(rt->device.uuid, sizeof(rt->device.uuid), "%.47s", uuid ? uuid : "");
	rt->memory = number_of("OUTRIDER_SIMT_MEMORY", static_cast<uint64_t>(1) << 40);
	rt->taken = number_of("OUTRIDER_SIMT_TAKEN", 0, &rt->taken_from);
	rt->lost_at = number_of("OUTRIDER_SIMT_LOST", 0);
	rt->lost_at_copy = number_of("OUTRIDER_SIMT_LOST_COPY", 0);
	rt->lost_at_weights = number_of("OUTRIDER_SIMT_LOST_WEIGHTS", 0);
	placed_init(&rt->placed);
	placed_init(&rt->wrapped);
	*what = "emulated";
	*out = rt;
	return 0;
}

void runtime_close(struct runtime *rt)
{
	for (size_t i = 0; i < rt->placed.n; i++)
		free(rt->placed.of[i].device);
	placed_exit(&rt->placed);
	placed_exit(&rt->wrapped);
	free(rt);
}

const struct backend_device *runtime_device(const struct runtime *rt)
{
	return &rt->device;
}

/* What is left beside these bytes. */
static struct backend_memory left_beside(const struct runtime *rt, uint64_t used)
{
	if (rt->allocations.load(std::memory_order_relaxed) >= rt->taken_from)
		used += rt->taken;
	return {rt->memory, used < rt->memory ? rt->memory - used : 0};
}

void runtime_memory(const struct runtime *rt, struct backend_memory *out)
{
	*out = left_beside(rt, rt->used.load(std::memory_order_relaxed));
}

int runtime_failure(struct runtime *rt, struct error *err)
{
	const char *in = rt->lost_in.load(std::memory_order_acquire), *why;
	char kernel[128];

	if (!in)
		return 0;
	why = getenv("OUTRIDER_SIMT_LOST_WHY");
	snprintf(kernel, sizeof(kernel), "kernel %s", in);
	return lost_text(
		rt->device.name, in == COPY ? "a copy" : kernel, why ? why : "it was told to", err);
}

/* ---- Memory. ---- */

/* Counts bytes of the device's memory. -ENOMEM. */
static int count(struct runtime *rt, size_t bytes, struct error *err)
{
	rt->allocations.fetch_add(1, std::memory_order_relaxed);
	uint64_t before = rt->used.fetch_add(bytes, std::memory_order_relaxed);
	const struct backend_memory left = left_beside(rt, before);

	if (bytes <= left.free)
		return 0;
	rt->used.fetch_sub(bytes, std::memory_order_relaxed);
	return backend_no_memory(err, rt->device.name, bytes, &left);
}

static void uncount(struct runtime *rt, size_t bytes)
{
	rt->used.fetch_sub(bytes, std::memory_order_relaxed);
}

/* Memory of the process plays the device's. As on a device, the host does not see what is the back
 * end's own. */
static int as_device(struct buffer *out, bool host_sees_it, int rc)
{
	out->device = out->host;
	if (!host_sees_it)
		out->host = nullptr;
	return rc;
}

/* In place of CUDA's handle: which descriptor of which process it is. It can be opened as long as the
 * process lives. */
static int refuse_export(struct buffer *out, struct error *err)
{
	struct ipc_note note = {IPC_NOTE_MAGIC, out->bytes, {}};

	snprintf(reinterpret_cast<char *>(note.handle), sizeof(note.handle), "/proc/%d/fd/%d",
		static_cast<int>(getpid()), out->fd);
	int fd = ipc_note_write(&note, err);
	if (fd < 0)
		return fd;
	/* The memory's own descriptor stays open until the buffer is freed. */
	out->fd = fd;
	out->ends_with_maker = true;
	return 0;
}

static void close_refused(const struct buffer *buffer)
{
	struct ipc_note note;
	int fd;

	if (ipc_note_read(buffer->fd, &note) &&
		sscanf(reinterpret_cast<const char *>(note.handle), "/proc/%*d/fd/%d", &fd) == 1)
		close(fd);
}

int runtime_alloc(struct runtime *rt, size_t bytes, enum buffer_kind kind, struct buffer *out,
	struct error *err)
{
	bool counted = kind != BUFFER_HOST;
	int rc = counted ? count(rt, bytes, err) : 0;

	*out = {};
	out->fd = -1;
	if (rc < 0)
		return rc;
	rc = as_device(out, kind == BUFFER_HOST, host_buffer_alloc(bytes, kind, out, err));
	if (rc < 0 && counted)
		uncount(rt, bytes);
	if (rc < 0)
		return rc;
	/* A shared buffer may be larger than was asked for. */
	if (counted) {
		rt->used.fetch_add(out->bytes - bytes, std::memory_order_relaxed);
		out->handle |= COUNTED;
	}
	if (kind == BUFFER_OWN && bytes <= MARKED_BYTES)
		memset(out->device, 0xff, bytes);
	const char *export_wanted = getenv("OUTRIDER_SIMT_EXPORT");
	if (kind == BUFFER_SHARED && export_wanted && strcmp(export_wanted, "refused") == 0)
		rc = refuse_export(out, err);
	if (rc < 0)
		runtime_free(rt, out);
	return rc;
}

static bool overlaps(const struct placed *p, const unsigned char *at, size_t bytes)
{
	return p->host < at + bytes && at < p->host + p->bytes;
}

/* The whole pages of host memory that a device maps. */
static void pages_of(const void *memory, size_t bytes, unsigned char **first, size_t *n)
{
	uintptr_t at = reinterpret_cast<uintptr_t>(memory), from = at / PAGE * PAGE;

	*first = reinterpret_cast<unsigned char *>(from);
	*n = (at + bytes - from + PAGE - 1) / PAGE * PAGE;
}

/* As on a device, a page can be registered once. */
int runtime_wrap(
	struct runtime *rt, void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	struct placed_list *list = &rt->wrapped;
	unsigned char *first;
	size_t n;
	int rc = 0;

	pages_of(memory, bytes, &first, &n);
	pthread_mutex_lock(&list->mutex);
	for (size_t i = 0; rc == 0 && i < list->n; i++)
		if (overlaps(&list->of[i], first, n))
			rc = error_set(err, EBUSY,
				"%zu bytes of memory cannot be mapped for the GPU: another buffer "
				"lies in the same page",
				bytes);
	if (rc == 0 && placed_add(list, first, n, nullptr) < 0)
		rc = error_set(err, ENOMEM, "no memory for a list of buffers");
	pthread_mutex_unlock(&list->mutex);
	host_buffer_wrap(memory, bytes, out);
	if (rc < 0)
		out->host = nullptr;
	return as_device(out, true, rc);
}

static void unwrap(struct runtime *rt, const struct buffer *buffer)
{
	unsigned char *first;
	size_t n;

	pages_of(buffer->host, buffer->bytes, &first, &n);
	pthread_mutex_lock(&rt->wrapped.mutex);
	struct placed *p = placed_exactly(&rt->wrapped, first, n);
	if (p)
		placed_remove(&rt->wrapped, p);
	pthread_mutex_unlock(&rt->wrapped.mutex);
}

/* A copy of weights. Null: there is no memory, or no device any more. */
static unsigned char *copied(
	struct runtime *rt, const void *from, size_t bytes, struct error *err, int *rc)
{
	*rc = count(rt, bytes, err);
	if (*rc < 0)
		return nullptr;
	void *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
	if (!at) {
		uncount(rt, bytes);
		*rc = error_set(err, ENOMEM, "no memory for %zu bytes of weights", bytes);
		return nullptr;
	}
	if (rt->lost_at_weights != 0 && ++rt->weights == rt->lost_at_weights)
		rt->lost_in.store(COPY, std::memory_order_release);
	*rc = runtime_failure(rt, err);
	if (*rc < 0) {
		uncount(rt, bytes);
		free(at);
		return nullptr;
	}
	memcpy(at, from, bytes);
	return static_cast<unsigned char *>(at);
}

int runtime_wrap_weights(
	struct runtime *rt, const void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	int rc;

	*out = {};
	out->fd = -1;
	out->device = copied(rt, memory, bytes, err, &rc);
	if (rc < 0)
		return rc;
	out->host = static_cast<unsigned char *>(const_cast<void *>(memory));
	out->bytes = bytes;
	out->handle = COUNTED;
	return 0;
}

static int import_ipc(const struct ipc_note *note, size_t bytes, bool write, struct buffer *out,
	struct error *err)
{
	char path[sizeof(note->handle) + 1] = "";

	memcpy(path, note->handle, sizeof(note->handle));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return error_set(err, ESTALE,
			"memory of the GPU has ended with its process, or cannot be shared: %s",
			strerror(errno));
	int rc = host_buffer_import(fd, bytes, write, out, err);
	close(fd);
	out->ends_with_maker = true;
	return rc;
}

int runtime_export(const struct buffer *buffer, struct error *err)
{
	return host_buffer_export(buffer, err);
}

int runtime_import(
	struct runtime *rt, int fd, size_t bytes, bool write, struct buffer *out, struct error *err)
{
	struct ipc_note note;

	(void)rt;
	*out = {};
	out->fd = -1;
	if (ipc_note_read(fd, &note))
		return as_device(out, false, import_ipc(&note, bytes, write, out, err));
	return as_device(out, false, host_buffer_import(fd, bytes, write, out, err));
}

void runtime_free(struct runtime *rt, struct buffer *buffer)
{
	bool counted = buffer->handle & COUNTED;

	if (counted)
		uncount(rt, buffer->bytes);
	if (buffer->ends_with_maker && buffer->fd >= 0)
		close_refused(buffer);
	if (counted && buffer->host) { /* runtime_wrap_weights */
		free(buffer->device);
		*buffer = {};
		buffer->fd = -1;
		return;
	}
	/* Other memory that the host sees and that is not wrapped is not in the list. */
	if (buffer->host)
		unwrap(rt, buffer);
	buffer->handle &= ~COUNTED;
	buffer->host = buffer->device;
	host_buffer_free(buffer);
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
		unsigned char *device = copied(rt, at, bytes, err, &rc);
		if (rc == 0 && placed_add(list, at, bytes, device) < 0) {
			rc = error_set(err, ENOMEM, "no memory for a list of tensors");
			free(device);
			uncount(rt, bytes);
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
		free(p->device);
		uncount(rt, bytes);
		placed_remove(list, p);
	}
	pthread_mutex_unlock(&list->mutex);
}

const void *runtime_weights(struct runtime *rt, const void *at, size_t bytes)
{
	const void *device = at ? placed_find(&rt->placed, at, bytes) : nullptr;

	if (at && !device)
		simt::die("%zu bytes of weights at %p were not placed", bytes, at);
	return device;
}
