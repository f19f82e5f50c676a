/* The emulation: "device" memory is the process's own, and a stream is a thread that takes launches,
 * copies and flags from a ring, in order. */
#include "kernels/gpu/runtime.h"

#include "fibers.h"

#include <atomic>
#include <cassert>
#include <ctime>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" {
#include "shared/base/huge_pages.h"
}

/* How a buffer's memory is freed. */
enum handle { HANDLE_CALLERS, HANDLE_HEAP, HANDLE_MAPPING };
enum {
	RING_BYTES = 1 << 20,
	SEGMENTS = 4, /* of the memory for arrays of descriptors */
	/* Own memory up to this size begins as NaNs, so that what nobody has written is seen. */
	MARKED_BYTES = 16 << 20,
};

struct runtime {
	unsigned seed;
};

int runtime_open(const char *device, unsigned seed, struct runtime **out, const char **what,
	struct error *err)
{
	struct runtime *rt = static_cast<struct runtime *>(calloc(1, sizeof(*rt)));

	(void)device;
	if (!rt)
		return error_set(err, ENOMEM, "no memory for a back end");
	rt->seed = seed;
	*what = "emulated";
	*out = rt;
	return 0;
}

void runtime_close(struct runtime *rt)
{
	free(rt);
}

/* ---- Memory. ---- */

static int alloc_shared(size_t bytes, struct buffer *out, struct error *err)
{
	struct huge_pages pages;
	void *memory;
	int rc = huge_pages_memfd("outrider-buffer", bytes, &pages, &out->fd, &memory, err);

	if (rc < 0)
		return rc;
	out->device = static_cast<unsigned char *>(memory);
	out->bytes = pages.bytes;
	out->handle = HANDLE_MAPPING;
	return 0;
}

/* As on a device, the host does not see memory that is the back end's own. */
int runtime_alloc(struct runtime *rt, size_t bytes, enum buffer_kind kind, struct buffer *out,
	struct error *err)
{
	(void)rt;
	*out = {};
	out->bytes = bytes;
	out->fd = -1;
	out->handle = HANDLE_HEAP;
	if (kind == BUFFER_SHARED)
		return alloc_shared(bytes, out, err);
	out->device = static_cast<unsigned char *>(huge_pages_alloc(bytes));
	if (!out->device)
		return error_set(err, ENOMEM, "no memory for a buffer of %zu bytes", bytes);
	if (kind == BUFFER_HOST)
		out->host = out->device;
	else if (bytes <= MARKED_BYTES)
		memset(out->device, 0xff, bytes);
	return 0;
}

int runtime_wrap(
	struct runtime *rt, void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	(void)rt;
	(void)err;
	*out = {};
	out->host = out->device = static_cast<unsigned char *>(memory);
	out->bytes = bytes;
	out->handle = HANDLE_CALLERS;
	out->fd = -1;
	return 0;
}

int runtime_export(const struct buffer *buffer, struct error *err)
{
	if (buffer->fd < 0)
		return error_set(err, ENOTSUP, "a private buffer has no descriptor");
	int fd = fcntl(buffer->fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return error_set(err, errno, "a buffer's descriptor cannot be duplicated: %s",
			strerror(errno));
	return fd;
}

int runtime_import(
	struct runtime *rt, int fd, size_t bytes, bool write, struct buffer *out, struct error *err)
{
	struct stat status;

	(void)rt;
	*out = {};
	out->fd = -1;
	if (fstat(fd, &status) < 0)
		return error_set(
			err, errno, "a buffer's descriptor cannot be used: %s", strerror(errno));
	if (bytes == 0 || status.st_size < 0 || static_cast<uint64_t>(status.st_size) < bytes)
		return error_set(err, EINVAL,
			"a buffer of %zu bytes was asked for, but its memory has %lld", bytes,
			static_cast<long long>(status.st_size));
	void *memory =
		mmap(nullptr, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return error_set(err, errno, "a buffer of %zu bytes cannot be mapped: %s", bytes,
			strerror(errno));
	out->device = static_cast<unsigned char *>(memory);
	out->bytes = bytes;
	out->handle = HANDLE_MAPPING;
	return 0;
}

void runtime_free(struct runtime *rt, struct buffer *buffer)
{
	(void)rt;
	if (!buffer->device)
		return;
	if (buffer->handle == HANDLE_HEAP)
		free(buffer->device);
	else if (buffer->handle == HANDLE_MAPPING)
		munmap(buffer->device, buffer->bytes);
	if (buffer->fd >= 0)
		close(buffer->fd);
	*buffer = {};
	buffer->fd = -1;
}

const void *runtime_weights(struct runtime *rt, const void *at, size_t bytes)
{
	(void)rt;
	(void)bytes;
	return at;
}

/* ---- Streams. ---- */

/* Before each record of the ring. run null: go on at the ring's beginning. */
struct record {
	void (*run)(void *at, unsigned seed);
	size_t bytes; /* with this struct */
};

struct stream {
	unsigned seed;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool ends;
	unsigned char *ring;
	/* Bytes put in and taken out, counted from the beginning. Changed under the mutex. */
	uint64_t in, out;
	uint64_t pushed; /* what `in` becomes at stream_commit */
	ticket issued;
	std::atomic<ticket> reached;
	unsigned char *args;
	size_t args_used; /* in the segment */
	unsigned segment;
	ticket left[SEGMENTS]; /* tickets that were taken when a segment was left */
};

/* Waits for a record; null: the stream ends. */
static struct record *next_record(struct stream *s)
{
	struct record *r = nullptr;

	pthread_mutex_lock(&s->mutex);
	while (s->in == s->out && !s->ends)
		pthread_cond_wait(&s->changed, &s->mutex);
	if (s->in != s->out)
		r = reinterpret_cast<struct record *>(s->ring + s->out % RING_BYTES);
	pthread_mutex_unlock(&s->mutex);
	return r;
}

static void *stream_main(void *arg)
{
	struct stream *s = static_cast<struct stream *>(arg);
	struct record *r;

	while ((r = next_record(s)) != nullptr) {
		size_t bytes = r->bytes;

		if (r->run)
			r->run(r + 1, s->seed);
		pthread_mutex_lock(&s->mutex);
		s->out += bytes;
		pthread_cond_broadcast(&s->changed);
		pthread_mutex_unlock(&s->mutex);
	}
	simt::end_thread();
	return nullptr;
}

/* Waits until the ring has room for `bytes`. */
static void wait_room(struct stream *s, size_t bytes)
{
	pthread_mutex_lock(&s->mutex);
	while (s->in + bytes - s->out > RING_BYTES)
		pthread_cond_wait(&s->changed, &s->mutex);
	pthread_mutex_unlock(&s->mutex);
}

static void publish(struct stream *s, size_t bytes)
{
	pthread_mutex_lock(&s->mutex);
	s->in += bytes;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mutex);
}

void *stream_push(struct stream *s, size_t bytes, void (*run)(void *at, unsigned seed))
{
	size_t all = (sizeof(struct record) + bytes + 63) / 64 * 64;
	size_t left = RING_BYTES - s->in % RING_BYTES;

	assert(all <= RING_BYTES / 2);
	if (left < all) {
		wait_room(s, left);
		*reinterpret_cast<struct record *>(s->ring + s->in % RING_BYTES) = {nullptr, left};
		publish(s, left);
	}
	wait_room(s, all);
	struct record *r = reinterpret_cast<struct record *>(s->ring + s->in % RING_BYTES);
	*r = {run, all};
	s->pushed = all;
	return r + 1;
}

void stream_commit(struct stream *s)
{
	publish(s, s->pushed);
}

int stream_create(struct runtime *rt, struct stream **out, struct error *err)
{
	struct stream *s = static_cast<struct stream *>(calloc(1, sizeof(*s)));

	if (!s)
		return error_set(err, ENOMEM, "no memory for a stream");
	s->seed = rt->seed;
	s->ring = static_cast<unsigned char *>(aligned_alloc(64, RING_BYTES));
	s->args = static_cast<unsigned char *>(
		aligned_alloc(64, static_cast<size_t>(SEGMENTS) * STREAM_ARGS_BYTES));
	pthread_mutex_init(&s->mutex, nullptr);
	pthread_cond_init(&s->changed, nullptr);
	int rc = s->ring && s->args ? 0 : error_set(err, ENOMEM, "no memory for a stream");
	if (rc == 0)
		rc = -pthread_create(&s->thread, nullptr, stream_main, s);
	if (rc < 0) {
		if (s->ring && s->args)
			rc = error_thread(err, -rc, "a stream's thread cannot be started");
		free(s->ring);
		free(s->args);
		free(s);
		return rc;
	}
	*out = s;
	return 0;
}

void stream_destroy(struct stream *s)
{
	pthread_mutex_lock(&s->mutex);
	s->ends = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mutex);
	pthread_join(s->thread, nullptr);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->mutex);
	free(s->ring);
	free(s->args);
	free(s);
}

size_t stream_bytes(void)
{
	return sizeof(struct stream) + RING_BYTES +
	       static_cast<size_t>(SEGMENTS) * STREAM_ARGS_BYTES;
}

/* A segment may be used again when everything has run that was queued before the segment behind it
 * was left: what used the end of the one may have been queued while arrays were taken from the
 * other. */
void *stream_args(struct stream *s, size_t bytes)
{
	size_t all = (bytes + 63) / 64 * 64;

	assert(all <= STREAM_ARGS_BYTES);
	if (s->args_used + all > STREAM_ARGS_BYTES) {
		s->left[s->segment] = stream_ticket(s);
		s->segment = (s->segment + 1) % SEGMENTS;
		s->args_used = 0;
		if (s->left[(s->segment + 1) % SEGMENTS])
			(void)stream_wait(s, s->left[(s->segment + 1) % SEGMENTS]);
	}
	void *at = s->args + static_cast<size_t>(s->segment) * STREAM_ARGS_BYTES + s->args_used;
	s->args_used += all;
	return at;
}

/* ---- Copies, flags and tickets, as records. ---- */

struct copy_record {
	void *to;
	const void *from;
	size_t bytes;
};

static void run_copy(void *at, unsigned seed)
{
	const struct copy_record *c = static_cast<const struct copy_record *>(at);

	(void)seed;
	if (c->from)
		memmove(c->to, c->from, c->bytes);
	else
		memset(c->to, 0, c->bytes);
}

static void push_copy(struct stream *s, struct copy_record copy)
{
	*static_cast<struct copy_record *>(stream_push(s, sizeof(copy), run_copy)) = copy;
	stream_commit(s);
}

void stream_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
	push_copy(s, {to, from, bytes});
}

void stream_zero(struct stream *s, void *to, size_t bytes)
{
	push_copy(s, {to, nullptr, bytes});
}

struct flag_record {
	uint32_t *word;
	uint32_t value;
};

/* The word may be written by another process, which wakes nobody. Acquire pairs with the writer's
 * release: what was written before the word is visible after the wait. */
static void run_wait_value(void *at, unsigned seed)
{
	const struct flag_record *f = static_cast<const struct flag_record *>(at);
	const struct timespec nap = {0, 20000};

	(void)seed;
	while (static_cast<int32_t>(__atomic_load_n(f->word, __ATOMIC_ACQUIRE) - f->value) < 0)
		nanosleep(&nap, nullptr);
}

static void run_write_value(void *at, unsigned seed)
{
	const struct flag_record *f = static_cast<const struct flag_record *>(at);

	(void)seed;
	__atomic_store_n(f->word, f->value, __ATOMIC_RELEASE);
}

void stream_wait_value(struct stream *s, const uint32_t *word, uint32_t value)
{
	*static_cast<struct flag_record *>(stream_push(s, sizeof(struct flag_record),
		run_wait_value)) = {const_cast<uint32_t *>(word), value};
	stream_commit(s);
}

void stream_write_value(struct stream *s, uint32_t *word, uint32_t value)
{
	*static_cast<struct flag_record *>(
		stream_push(s, sizeof(struct flag_record), run_write_value)) = {word, value};
	stream_commit(s);
}

struct call_record {
	void (*fn)(void *arg);
	void *arg;
};

static void run_call(void *at, unsigned seed)
{
	const struct call_record *c = static_cast<const struct call_record *>(at);

	(void)seed;
	c->fn(c->arg);
}

void stream_call(struct stream *s, void (*fn)(void *arg), void *arg)
{
	*static_cast<struct call_record *>(stream_push(s, sizeof(struct call_record), run_call)) = {
		fn, arg};
	stream_commit(s);
}

struct ticket_record {
	struct stream *stream;
	ticket t;
};

static void run_ticket(void *at, unsigned seed)
{
	const struct ticket_record *r = static_cast<const struct ticket_record *>(at);

	(void)seed;
	/* Release pairs with the acquire in stream_reached: who sees the ticket sees what ran before
	 * it. */
	r->stream->reached.store(r->t, std::memory_order_release);
}

ticket stream_ticket(struct stream *s)
{
	struct ticket_record *r = static_cast<struct ticket_record *>(
		stream_push(s, sizeof(struct ticket_record), run_ticket));

	*r = {s, ++s->issued};
	stream_commit(s);
	return s->issued;
}

bool stream_reached(struct stream *s, ticket t)
{
	return s->reached.load(std::memory_order_acquire) >= t;
}

int stream_wait(struct stream *s, ticket t)
{
	assert(t <= s->issued);
	pthread_mutex_lock(&s->mutex);
	while (!stream_reached(s, t))
		pthread_cond_wait(&s->changed, &s->mutex);
	pthread_mutex_unlock(&s->mutex);
	return 0;
}
