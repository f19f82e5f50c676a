/* Graphs of a stream: what was recorded is replayed with the contents of the present, and something that
 * was recorded by value, but has changed, is found. */
#include "simt.h"

#include "kernels/gpu/graph_list.h"

#include <csetjmp>
#include <cstdarg>
#include <cstdio>

extern "C" {
#include <cmocka.h>
}

#include "tests/gpu/dies.h"

enum { THREADS = 64 };

struct add_args {
	const uint32_t *in;
	uint32_t *out;
	uint8_t by; /* padding follows */
	const uint32_t *more; /* [THREADS], an array of the step's */
};

KERNEL add(add_args a)
{
	unsigned i = threadIdx.x;

	a.out[i] = a.in[i] + a.by + (a.more ? a.more[i] : 0);
}

struct rig {
	struct runtime *rt;
	struct stream *stream;
	uint32_t in[THREADS], middle[THREADS], out[THREADS];
};

static void open_rig(struct rig *r)
{
	const char *what;
	struct error err;

	memset(r, 0, sizeof(*r));
	assert_int_equal(runtime_open("", 1, &r->rt, &what, &err), 0);
	assert_int_equal(stream_create(r->rt, &r->stream, &err), 0);
}

static void wait_all(struct rig *r)
{
	assert_int_equal(stream_wait(r->stream, stream_ticket(r->stream)), 0);
}

static void close_rig(struct rig *r)
{
	wait_all(r);
	stream_destroy(r->stream);
	runtime_close(r->rt);
}

/* What a pass would queue: two launches, the second with an array, and a copy. */
struct pass {
	uint64_t key;
	unsigned by, array, threads;
	bool last; /* with the copy */
};

static void queue_pass(struct rig *r, const struct pass *p)
{
	add_args first, second;

	memset(&first, static_cast<int>(p->by), sizeof(first)); /* padding that differs */
	memset(&second, static_cast<int>(p->by), sizeof(second));
	assert_true(stream_graph_begin(r->stream, p->key));
	uint32_t *more = stream_array<uint32_t>(r->stream, THREADS);
	for (unsigned i = 0; i < THREADS; i++)
		more[i] = p->array;
	first.in = r->in;
	first.out = r->middle;
	first.by = static_cast<uint8_t>(p->by);
	first.more = nullptr;
	second.in = r->middle;
	second.out = r->out;
	second.by = 0;
	second.more = more;
	LAUNCH(r->stream, add, (simt_dim{1, 1, 1}), p->threads, 0, first);
	LAUNCH(r->stream, add, (simt_dim{1, 1, 1}), p->threads, 0, second);
	if (p->last)
		stream_copy(r->stream, r->in, r->out, sizeof(r->in));
	stream_graph_end(r->stream);
}

static const struct pass usual = {7, 2, 40, THREADS, true};

static void a_replay_reads_what_buffers_have_now(void **)
{
	struct rig r;
	uint32_t expected = 0;

	open_rig(&r);
	for (unsigned i = 0; i < 5; i++) {
		queue_pass(&r, &usual);
		wait_all(&r);
		expected += 42;
		assert_int_equal(r.in[THREADS - 1], expected);
	}
	r.in[THREADS - 1] = 1000;
	queue_pass(&r, &usual);
	wait_all(&r);
	assert_int_equal(r.out[THREADS - 1], 1042);
	close_rig(&r);
}

/* Replays may be queued while earlier ones run. */
static void replays_run_in_order(void **)
{
	struct rig r;
	struct pass other = usual;

	other.key = 8;
	other.by = 5;
	open_rig(&r);
	for (unsigned i = 0; i < 100; i++)
		queue_pass(&r, i % 2 ? &other : &usual);
	wait_all(&r);
	assert_int_equal(r.in[0], 50 * 42 + 50 * 45);
	close_rig(&r);
}

/* More keys than there is room for. */
static void old_graphs_give_way(void **)
{
	struct rig r;
	struct pass p = usual;

	open_rig(&r);
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < GRAPHS_MAX + 10; i++) {
			p.key = i + 1;
			queue_pass(&r, &p);
		}
	wait_all(&r);
	assert_int_equal(r.in[0], 2 * (GRAPHS_MAX + 10) * 42);
	close_rig(&r);
}

static void changed(struct rig *r, const struct pass *p)
{
	queue_pass(r, &usual);
	queue_pass(r, p);
}

static void queue_ticket_inside(struct rig *r, const struct pass *p)
{
	(void)stream_graph_begin(r->stream, p->key);
	(void)stream_ticket(r->stream);
}

/* The process must end, with a message that has `text`. */
static void dies_in(
	void (*run)(struct rig *, const struct pass *), const struct pass *p, const char *text)
{
	dies(
		[=] {
			struct rig r;

			open_rig(&r);
			run(&r, p);
			close_rig(&r);
		},
		text);
}

static void a_value_that_has_changed_is_found(void **)
{
	struct pass p = usual;

	p.by = 3;
	dies_in(changed, &p, "what kernel add was given by value has changed");
	p = usual;
	p.threads = 32;
	dies_in(changed, &p, "what kernel add was given by value has changed");
	p = usual;
	p.array = 41;
	dies_in(changed, &p, "an array that its kernels read has changed");
	p = usual;
	p.last = false;
	dies_in(changed, &p, "is replayed without its last steps");
}

static void a_ticket_in_a_graph_is_found(void **)
{
	dies_in(queue_ticket_inside, &usual, "comes between the two ends of a graph");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_replay_reads_what_buffers_have_now),
		cmocka_unit_test(replays_run_in_order),
		cmocka_unit_test(old_graphs_give_way),
		cmocka_unit_test(a_value_that_has_changed_is_found),
		cmocka_unit_test(a_ticket_in_a_graph_is_found),
	};

	return cmocka_run_group_tests_name("gpu graphs", tests, nullptr, nullptr);
}
