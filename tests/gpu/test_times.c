/* The times of what a queue does, on the emulated GPU or on a device. */
#include "tests/gpu/rig.h"

#include "shared/base/clock.h"

#include <stdatomic.h>

enum { WIDTH = 64, PASSES = 3, SHOWN = 8192 };

struct shown {
	uint32_t n;
	struct queue_span of[SHOWN];
};

static void show(void *arg, const struct queue_span *span)
{
	struct shown *shown = arg;

	assert_true(shown->n < SHOWN);
	shown->of[shown->n++] = *span;
}

struct set_up {
	struct backend *backend;
	const struct backend_ops *ops;
	struct queue *q;
	struct buffer memory;
	struct shown shown;
};

static struct set_up *opened(void)
{
	static struct set_up s;
	const struct backend_gpu_options options = {.seed = 0};
	const struct queue_limits limits = {.products = 1, .pairs = 1};
	struct error err = {""};

	memset(&s, 0, sizeof(s));
	assert_int_equal(rig_create(&options, &s.backend, &err), 0);
	s.ops = s.backend->ops;
	assert_int_equal(s.ops->queue(s.backend, &limits, &s.q, &err), 0);
	assert_int_equal(s.ops->alloc(s.backend, 4096, BUFFER_HOST, &s.memory, &err), 0);
	memset(s.memory.host, 0, s.memory.bytes);
	return &s;
}

static void closed(struct set_up *s)
{
	s->ops->free(&s->memory);
	s->ops->queue_free(s->q);
	s->ops->destroy(s->backend);
}

static void queue_norm(struct set_up *s)
{
	const struct step_norm step = {.width = WIDTH,
		.eps = 1e-5f,
		.x = {&s->memory, 0, WIDTH * sizeof(float), 1},
		.add = {&s->memory, 1024, WIDTH * sizeof(float), 1}};

	s->ops->norm(s->q, &step);
}

static void copy(struct set_up *s)
{
	s->ops->copy(s->q, (struct place){&s->memory, 2048}, (struct place){&s->memory, 0}, 256);
}

static void reach(struct set_up *s)
{
	assert_int_equal(s->ops->wait(s->q, s->ops->ticket(s->q)), 0);
}

/* Steps of two parts, a wait, a copy, and after a ticket another step: as they ran, with the time in
 * which the queue had nothing to do left out. */
static void each_stretch_has_its_time(void **state)
{
	struct set_up *s = opened();
	static const struct {
		enum queue_work work;
		uint32_t part;
	} expected[] = {{QUEUE_STEPS, 7}, {QUEUE_STEPS, 8}, {QUEUE_FLAG, 8}, {QUEUE_STEPS, 8},
		{QUEUE_COPY, 8}, {QUEUE_STEPS, 8}};
	const uint32_t n = sizeof(expected) / sizeof(expected[0]);

	(void)state;
	assert_true(s->ops->watch(s->q));
	reach(s);
	s->ops->times(s->q, NULL, NULL);
	uint64_t began_ns = clock_ns();
	assert_true(s->ops->watch(s->q));
	/* A device's clock was compared with ours in this time, which bounds the error. */
	uint64_t error_ns = clock_ns() - began_ns;
	s->ops->mark(s->q, 7);
	queue_norm(s);
	queue_norm(s);
	s->ops->mark(s->q, 8);
	queue_norm(s);
	s->ops->wait_value(s->q, (struct place){&s->memory, 4092}, 1);
	queue_norm(s);
	copy(s);
	copy(s);
	uint64_t written_ns = clock_ns();
	atomic_store_explicit(
		(_Atomic uint32_t *)(void *)(s->memory.host + 4092), 1, memory_order_release);
	reach(s);
	uint64_t idle_ns = clock_ns();
	queue_norm(s);
	reach(s);
	uint64_t ended_ns = clock_ns();
	s->ops->times(s->q, show, &s->shown);
	assert_int_equal(s->shown.n, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct queue_span *span = &s->shown.of[i];

		assert_int_equal(span->work, expected[i].work);
		assert_int_equal(span->part, expected[i].part);
		assert_true(span->start_ns <= span->end_ns);
		assert_in_range(span->start_ns, i > 0 ? s->shown.of[i - 1].end_ns : began_ns,
			ended_ns + error_ns);
		assert_in_range(span->end_ns, began_ns, ended_ns + error_ns);
	}
	/* The wait ends when the flag has come. The queue had nothing to do when the host queued the last
	 * step. */
	assert_true(s->shown.of[2].end_ns + error_ns >= written_ns);
	assert_true(s->shown.of[4].end_ns <= idle_ns + error_ns);
	assert_true(s->shown.of[5].start_ns + error_ns >= idle_ns);
	closed(s);
}

/* What is replayed otherwise is queued step by step, and the same comes out. */
static void a_watched_pass_has_no_graphs(void **state)
{
	struct set_up *s = opened();
	float *x = (float *)(void *)s->memory.host;

	(void)state;
	x[1024 / sizeof(float)] = 1;
	for (uint32_t i = 0; i < 3 * PASSES; i++) {
		bool watched = i / PASSES == 1;

		s->shown.n = 0;
		assert_true(!watched || s->ops->watch(s->q));
		s->ops->graph_begin(s->q, 5);
		if (watched)
			s->ops->mark(s->q, 1);
		queue_norm(s);
		if (watched)
			s->ops->mark(s->q, 2);
		queue_norm(s);
		s->ops->graph_end(s->q);
		reach(s);
		if (watched)
			s->ops->times(s->q, show, &s->shown);
		assert_int_equal(s->shown.n, watched ? 2 : 0);
		assert_true(x[0] == 2.0f * (float)(i + 1));
	}
	closed(s);
}

static void a_watch_that_ends_without_times_shows_none(void **state)
{
	struct set_up *s = opened();

	(void)state;
	assert_true(s->ops->watch(s->q));
	queue_norm(s);
	reach(s);
	s->ops->times(s->q, NULL, NULL);
	queue_norm(s);
	assert_true(s->ops->watch(s->q));
	reach(s);
	s->ops->times(s->q, show, &s->shown);
	assert_int_equal(s->shown.n, 0);
	closed(s);
}

static void more_stretches_than_there_is_room_for_are_left_out(void **state)
{
	struct set_up *s = opened();

	(void)state;
	assert_true(s->ops->watch(s->q));
	for (uint32_t i = 0; i < QUEUE_SPANS + 100; i++) {
		s->ops->mark(s->q, i);
		copy(s);
	}
	reach(s);
	s->ops->times(s->q, show, &s->shown);
	assert_int_equal(s->shown.n, QUEUE_SPANS);
	for (uint32_t i = 0; i < s->shown.n; i++)
		assert_int_equal(s->shown.of[i].part, i);
	closed(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_stretch_has_its_time),
		cmocka_unit_test(a_watched_pass_has_no_graphs),
		cmocka_unit_test(a_watch_that_ends_without_times_shows_none),
		cmocka_unit_test(more_stretches_than_there_is_room_for_are_left_out),
	};

	return cmocka_run_group_tests_name("gpu times", tests, NULL, NULL);
}
