/* The emulation: "device" memory is the process's own, and a stream is a thread that takes launches,
 * copies and flags from a ring, in order. */
#include "kernels/gpu/args_ring.h"

#include "fibers.h"

#include <atomic>
#include <cassert>
#include <cstdio>
#include <ctime>
#include <pthread.h>

extern "C" {
#include "kernels/host_buffer.h"
}

enum {
	RING_BYTES = 1 << 20,
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

/* Memory of the process plays the device's. As on a device, the host does not see what is the back
 * end's own. */
static int as_device(struct buffer *out, bool host_sees_it, int rc)
{
	out->device = out->host;
	if (!host_sees_it)
		out->host = nullptr;
	return rc;
}

int runtime_alloc(struct runtime *rt, size_t bytes, enum buffer_kind kind, struct buffer *out,
	struct error *err)
{
	(void)rt;
	int rc = as_device(out, kind == BUFFER_HOST, host_buffer_alloc(bytes, kind, out, err));
	if (rc == 0 && kind == BUFFER_OWN && bytes <= MARKED_BYTES)
		memset(out->device, 0xff, bytes);
	return rc;
}

int runtime_wrap(
	struct runtime *rt, void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	(void)rt;
	(void)err;
	host_buffer_wrap(memory, bytes, out);
	return as_device(out, true, 0);
}

int runtime_export(const struct buffer *buffer, struct error *err)
{
	return host_buffer_export(buffer, err);
}

int runtime_import(
	struct runtime *rt, int fd, size_t bytes, bool write, struct buffer *out, struct error *err)
{
	(void)rt;
	return as_device(out, false, host_buffer_import(fd, bytes, write, out, err));
}

void runtime_free(struct runtime *rt, struct buffer *buffer)
{
	(void)rt;
	buffer->host = buffer->device;
	host_buffer_free(buffer);
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
	struct args_ring args;
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
	s->args.memory = static_cast<unsigned char *>(aligned_alloc(64, args_ring_bytes()));
	pthread_mutex_init(&s->mutex, nullptr);
	pthread_cond_init(&s->changed, nullptr);
	int rc = s->ring && s->args.memory ? 0 : error_set(err, ENOMEM, "no memory for a stream");
	if (rc == 0)
		rc = -pthread_create(&s->thread, nullptr, stream_main, s);
	if (rc < 0) {
		if (s->ring && s->args.memory)
			rc = error_thread(err, -rc, "a stream's thread cannot be started");
		free(s->ring);
		free(s->args.memory);
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
	free(s->args.memory);
	free(s);
}

size_t stream_bytes(void)
{
	return sizeof(struct stream) + RING_BYTES + args_ring_bytes();
}

void *stream_args(struct stream *s, size_t bytes)
{
	return args_ring_take(&s->args, s, bytes);
}

/* ---- Copies, flags and tickets, as records. ---- */

/* For tests: OUTRIDER_SIMT_LINK=BYTES_PER_SECOND[,LATENCY_US] makes copies as slow as a link that all
 * streams of the process share, piece by piece. */
static struct {
	pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	double ns_per_byte; /* 0: no limit */
	uint64_t latency_ns;
	uint64_t free_ns; /* when the link is free again */
} copy_link;

static constexpr size_t PIECE_BYTES = 1 << 16;

static void read_link(void)
{
	const char *text = getenv("OUTRIDER_SIMT_LINK");
	double rate = 0, latency_us = 0;

	if (text && sscanf(text, "%lf,%lf", &rate, &latency_us) >= 1 && rate > 0) {
		copy_link.ns_per_byte = 1e9 / rate;
		copy_link.latency_ns = static_cast<uint64_t>(latency_us * 1000);
	}
}

/* Waits as long as these bytes take; ns: in addition. */
static void take_link(size_t bytes, uint64_t ns)
{
	struct timespec now, nap;

	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t now_ns = static_cast<uint64_t>(now.tv_sec) * 1000000000u +
			  static_cast<uint64_t>(now.tv_nsec);
	pthread_mutex_lock(&copy_link.mutex);
	uint64_t begin_ns = copy_link.free_ns > now_ns ? copy_link.free_ns : now_ns;
	uint64_t end_ns = begin_ns +
			  static_cast<uint64_t>(static_cast<double>(bytes) * copy_link.ns_per_byte);
	copy_link.free_ns = end_ns;
	pthread_mutex_unlock(&copy_link.mutex);
	end_ns += ns;
	nap.tv_sec = static_cast<time_t>((end_ns - now_ns) / 1000000000u);
	nap.tv_nsec = static_cast<long>((end_ns - now_ns) % 1000000000u);
	nanosleep(&nap, nullptr);
}

/* As slow as the link; the bytes land at the end. */
static void use_link(size_t bytes)
{
	pthread_once(&copy_link.once, read_link);
	if (copy_link.ns_per_byte == 0)
		return;
	take_link(0, copy_link.latency_ns);
	for (size_t at = 0; at < bytes; at += PIECE_BYTES)
		take_link(bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES, 0);
}

struct copy_record {
	void *to;
	const void *from;
	size_t bytes;
};

static void run_copy(void *at, unsigned seed)
{
	const struct copy_record *c = static_cast<const struct copy_record *>(at);

	(void)seed;
	use_link(c->bytes);
	memmove(c->to, c->from, c->bytes);
}

void stream_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
	*static_cast<struct copy_record *>(stream_push(s, sizeof(struct copy_record), run_copy)) = {
		to, from, bytes};
	stream_commit(s);
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
