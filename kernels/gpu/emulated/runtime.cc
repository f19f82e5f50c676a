/* The emulation. A stream is a thread that takes launches, copies and flags from a ring, in order.
 * "Device" memory is the process's own. Weights are copied to it, as a device must: the emulation
 * ends the process when a step asks for weights that were not placed, or hands their address in the
 * host's memory to a kernel. OUTRIDER_SIMT_MEMORY limits the device's memory (bytes, or with K, M or
 * G); OUTRIDER_SIMT_TAKEN=BYTES[,N] is how much other programs have of it, from the N-th allocation on.
 * OUTRIDER_SIMT_LOST says at which launch the device is lost, OUTRIDER_SIMT_LOST_COPY at which copy, and
 * OUTRIDER_SIMT_LOST_WHY why. OUTRIDER_SIMT_UNFIT says why it cannot be used: no-driver, old-driver, mps,
 * exclusive. */
#include "kernels/gpu/args_ring.h"
#include "kernels/gpu/placed.h"
#include "kernels/gpu/unfit.h"

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
	PAGE = 4096,
	/* In buffer.handle: the bytes count as memory of the device. */
	COUNTED = 0x100,
};

struct runtime {
	unsigned seed;
	struct backend_device device;
	struct placed_list placed;
	struct placed_list wrapped; /* whole pages of the host's that are registered */
	uint64_t memory; /* of the device */
	std::atomic<uint64_t> used;
	uint64_t taken, taken_from; /* by other programs, from this allocation on */
	std::atomic<uint64_t> allocations;
	/* At this launch, or this copy, counted from 1, the device is lost; 0: never. */
	uint64_t lost_at, lost_at_copy;
	std::atomic<uint64_t> launches, copies;
	std::atomic<const char *> lost_in; /* the kernel, or COPY; null: the device is there */
};
static const char COPY[] = "copy";

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
	snprintf(rt->device.name, sizeof(rt->device.name), NAME);
	rt->memory = number_of("OUTRIDER_SIMT_MEMORY", static_cast<uint64_t>(1) << 40);
	rt->taken = number_of("OUTRIDER_SIMT_TAKEN", 0, &rt->taken_from);
	rt->lost_at = number_of("OUTRIDER_SIMT_LOST", 0);
	rt->lost_at_copy = number_of("OUTRIDER_SIMT_LOST_COPY", 0);
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
	return 0;
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

/* A copy of weights. Null: there is no memory. */
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
	bool counted = buffer->handle & COUNTED;

	if (counted)
		uncount(rt, buffer->bytes);
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

/* ---- Streams. ---- */

/* Before each record of the ring. run null: go on at the ring's beginning. */
struct record {
	void (*run)(void *at, unsigned seed);
	size_t bytes; /* with this struct */
	bool always; /* also when the device is lost */
};

struct stream {
	struct runtime *rt;
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
	/* How far the arrays of stream_args have been searched for addresses. */
	unsigned seen_segment;
	size_t seen;
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

		if (r->run && (r->always || !s->rt->lost_in.load(std::memory_order_relaxed)))
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
		*reinterpret_cast<struct record *>(s->ring + s->in % RING_BYTES) = {
			nullptr, left, false};
		publish(s, left);
	}
	wait_room(s, all);
	struct record *r = reinterpret_cast<struct record *>(s->ring + s->in % RING_BYTES);
	*r = {run, all, false};
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
	s->rt = rt;
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

struct loss_record {
	struct runtime *rt;
	const char *in;
};

static void run_lose(void *at, unsigned seed)
{
	const struct loss_record *l = static_cast<const struct loss_record *>(at);

	(void)seed;
	l->rt->lost_in.store(l->in, std::memory_order_release);
}

/* The device is lost when the stream comes here. */
static void lose(struct stream *s, const char *in)
{
	*static_cast<struct loss_record *>(stream_push(s, sizeof(struct loss_record), run_lose)) = {
		s->rt, in};
	stream_commit(s);
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
	if (s->rt->lost_at_copy != 0 && ++s->rt->copies == s->rt->lost_at_copy)
		lose(s, COPY);
	*static_cast<struct copy_record *>(stream_push(s, sizeof(struct copy_record), run_copy)) = {
		to, from, bytes};
	stream_commit(s);
}

struct flag_record {
	struct stream *stream;
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
	while (static_cast<int32_t>(__atomic_load_n(f->word, __ATOMIC_ACQUIRE) - f->value) < 0 &&
		!f->stream->rt->lost_in.load(std::memory_order_relaxed))
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
		run_wait_value)) = {s, const_cast<uint32_t *>(word), value};
	stream_commit(s);
}

void stream_write_value(struct stream *s, uint32_t *word, uint32_t value)
{
	*static_cast<struct flag_record *>(
		stream_push(s, sizeof(struct flag_record), run_write_value)) = {s, word, value};
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
	(reinterpret_cast<struct record *>(r) - 1)->always = true;
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
	return s->rt->lost_in.load(std::memory_order_acquire) ? -ENODEV : 0;
}

/* ---- What the emulation does before a launch. ---- */

void stream_begins(struct stream *s, const char *kernel)
{
	struct runtime *rt = s->rt;

	if (rt->lost_at == 0 || ++rt->launches != rt->lost_at)
		return;
	lose(s, kernel);
}

/* Words that are the address of weights in the host's memory. */
static void search(struct runtime *rt, const char *kernel, const void *from, size_t bytes)
{
	const unsigned char *at = static_cast<const unsigned char *>(from);
	struct placed_list *list = &rt->placed;

	for (size_t i = 0; i + sizeof(void *) <= bytes; i += sizeof(void *)) {
		unsigned char *word;

		memcpy(&word, at + i, sizeof(word));
		if (list->n == 0 || word < list->of[0].host ||
			word >= list->of[list->n - 1].host + list->of[list->n - 1].bytes)
			continue;
		if (placed_find(list, word, 1))
			simt::die("kernel %s gets the host's address of weights, %p", kernel,
				static_cast<void *>(word));
	}
}

void stream_check(struct stream *s, const char *kernel, const void *args, size_t bytes)
{
	const struct args_ring *ring = &s->args;

	search(s->rt, kernel, args, bytes);
	if (ring->segment != s->seen_segment) {
		s->seen_segment = ring->segment;
		s->seen = 0;
	}
	search(s->rt, kernel,
		ring->memory + static_cast<size_t>(ring->segment) * STREAM_ARGS_BYTES + s->seen,
		ring->used - s->seen);
	s->seen = ring->used;
}
