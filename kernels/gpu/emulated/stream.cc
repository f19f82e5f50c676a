/* The emulation's streams. A stream is a thread that takes launches, copies and flags from a ring, in
 * order. */
#include "machine.h"

#include <cassert>
#include <cstdio>
#include <ctime>

extern "C" {
#include "shared/base/clock.h"
}

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

struct record *ring_push(struct stream *s, size_t all)
{
	size_t left = RING_BYTES - s->in % RING_BYTES;

	assert(all <= RING_BYTES / 2);
	if (left < all) {
		wait_room(s, left);
		*reinterpret_cast<struct record *>(s->ring + s->in % RING_BYTES) = {
			nullptr, nullptr, left, false};
		publish(s, left);
	}
	wait_room(s, all);
	s->pushed = all;
	return reinterpret_cast<struct record *>(s->ring + s->in % RING_BYTES);
}

void ring_commit(struct stream *s)
{
	publish(s, s->pushed);
}

static void free_memory(struct stream *s)
{
	free(s->ring);
	free(s->args.memory);
	free(s->graphs.memory);
	free(s->arrays);
	free(s->now);
	free(s->marks);
	free(s);
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
	s->graphs.memory = static_cast<unsigned char *>(aligned_alloc(64, GRAPH_ARGS_BYTES));
	s->arrays = static_cast<unsigned char *>(aligned_alloc(64, GRAPH_ARGS_ONE));
	s->now = static_cast<unsigned char *>(aligned_alloc(64, RECORD_BYTES));
	bool all = s->ring && s->args.memory && s->graphs.memory && s->arrays && s->now;
	pthread_mutex_init(&s->mutex, nullptr);
	pthread_cond_init(&s->changed, nullptr);
	int rc = all ? 0 : error_set(err, ENOMEM, "no memory for a stream");
	if (rc == 0)
		rc = -pthread_create(&s->thread, nullptr, stream_main, s);
	if (rc < 0) {
		if (all)
			rc = error_thread(err, -rc, "a stream's thread cannot be started");
		free_memory(s);
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
	forget_graphs(s);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->mutex);
	free_memory(s);
}

size_t stream_bytes(void)
{
	return sizeof(struct stream) + RING_BYTES + args_ring_bytes() + GRAPH_ARGS_BYTES;
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

/* The device is lost when the stream comes here; before a graph, if the graph is being queued. */
static void lose(struct stream *s, const char *in)
{
	struct record *r = ring_push(s, record_bytes(sizeof(struct loss_record)));

	*r = {run_lose, nullptr, s->pushed, false};
	*reinterpret_cast<struct loss_record *>(r + 1) = {s->rt, in};
	ring_commit(s);
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

static const char *copy_differs(
	const void *recorded, const void *now, const struct stream_moved *moved)
{
	return stream_same(recorded, now, sizeof(struct copy_record), moved) ? nullptr : COPY;
}

void stream_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
	if (s->rt->lost_at_copy != 0 && ++s->rt->copies == s->rt->lost_at_copy)
		lose(s, COPY);
	*static_cast<struct copy_record *>(stream_push(
		s, sizeof(struct copy_record), run_copy, copy_differs)) = {to, from, bytes};
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
		run_wait_value, nullptr)) = {s, const_cast<uint32_t *>(word), value};
	stream_commit(s);
}

void stream_write_value(struct stream *s, uint32_t *word, uint32_t value)
{
	*static_cast<struct flag_record *>(stream_push(
		s, sizeof(struct flag_record), run_write_value, nullptr)) = {s, word, value};
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
	*static_cast<struct call_record *>(
		stream_push(s, sizeof(struct call_record), run_call, nullptr)) = {fn, arg};
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
		stream_push(s, sizeof(struct ticket_record), run_ticket, nullptr));

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

/* ---- Marks. ---- */

struct mark_record {
	uint64_t *at;
};

static void run_mark(void *at, unsigned seed)
{
	(void)seed;
	*static_cast<const struct mark_record *>(at)->at = clock_ns();
}

/* The thread has the clock of clock_ns. */
bool stream_watch(struct stream *s)
{
	if (!s->marks)
		s->marks = static_cast<uint64_t *>(calloc(STREAM_MARKS, sizeof(*s->marks)));
	return s->marks && stream_wait(s, stream_ticket(s)) == 0;
}

void stream_mark(struct stream *s, unsigned mark)
{
	*static_cast<struct mark_record *>(
		stream_push(s, sizeof(struct mark_record), run_mark, nullptr)) = {&s->marks[mark]};
	stream_commit(s);
}

uint64_t stream_marked(struct stream *s, unsigned mark)
{
	return s->marks[mark];
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

void stream_check(struct stream *s, const char *kernel, const void *argument, size_t bytes)
{
	search(s->rt, kernel, argument, bytes);
}

void stream_check_arrays(struct stream *s, const char *kernel)
{
	const struct args_ring *ring = &s->args;

	/* Of a replay the arrays are compared with those of the graph. */
	if (s->mode == GRAPH_RECORDS)
		search(s->rt, kernel, s->graphs.memory + s->graph->args,
			s->graphs.used - s->graph->args);
	if (s->mode != GRAPH_NONE)
		return;
	if (ring->segment != s->seen_segment) {
		s->seen_segment = ring->segment;
		s->seen = 0;
	}
	search(s->rt, kernel,
		ring->memory + static_cast<size_t>(ring->segment) * STREAM_ARGS_BYTES + s->seen,
		ring->used - s->seen);
	s->seen = ring->used;
}
