/* The emulation of a GPU finds what is wrong on a device: kernels with a planted fault, each beside
 * the same kernel without it. */
#include "simt.h"

#include <csetjmp>
#include <cstdarg>
#include <cstdio>

extern "C" {
#include <cmocka.h>
}

#include "tests/gpu/dies.h"

enum { THREADS = 128, SEEDS = 8 };

struct values {
	uint32_t v[THREADS];
};

/* Each thread takes what a thread of another warp has written. */
template <bool BARRIER> KERNEL across_warps(uint32_t *out)
{
	struct values &s = shared_memory<struct values>();
	unsigned i = threadIdx.x;

	s.v[i] = 3 * i;
	if (BARRIER)
		__syncthreads();
	out[i] = s.v[(i + 33) % THREADS];
}

/* Each thread takes what its neighbour in the warp has written. */
template <bool BARRIER> KERNEL across_lanes(uint32_t *out)
{
	struct values &s = shared_memory<struct values>();
	unsigned i = threadIdx.x;

	s.v[i] = 3 * i;
	if (BARRIER)
		__syncwarp();
	out[i] = s.v[i ^ 1];
}

template <bool WAIT> KERNEL copied(uint32_t *out, const uint32_t *in)
{
	struct values &s = shared_memory<struct values>();
	unsigned i = threadIdx.x;

	async_copy<4>(&s.v[i], &in[i]);
	async_commit();
	if (WAIT)
		async_wait<0>();
	out[i] = s.v[i];
}

/* The older group is awaited, the newer one is not. */
KERNEL copied_one_of_two(uint32_t *out, const uint32_t *in)
{
	struct values &s = shared_memory<struct values>();
	unsigned i = threadIdx.x, other = (i + THREADS / 2) % THREADS;

	if (i < THREADS / 2)
		async_copy<4>(&s.v[i], &in[i]);
	async_commit();
	if (i < THREADS / 2)
		async_copy<4>(&s.v[other], &in[other]);
	async_commit();
	async_wait<1>();
	__syncthreads();
	out[i] = s.v[i];
}

KERNEL two_barriers(uint32_t *out)
{
	if (threadIdx.x < 32)
		__syncthreads();
	else
		__syncthreads();
	out[threadIdx.x] = 0;
}

KERNEL half_a_barrier(uint32_t *out)
{
	if (threadIdx.x < 32)
		__syncthreads();
	out[threadIdx.x] = 0;
}

KERNEL half_a_shuffle(uint32_t *out)
{
	unsigned i = threadIdx.x;

	out[i] = i % 32 < 16 ? __shfl_xor_sync(WARP_ALL, i, 1) : 0;
}

KERNEL foreign_lane(uint32_t *out)
{
	unsigned i = threadIdx.x;

	out[i] = i % 32 < 16 ? __shfl_xor_sync(0xffffu, i, 16) : 0;
}

KERNEL behind_the_end(uint32_t *out)
{
	struct values &s = shared_memory<struct values>();

	(&s.v[0])[threadIdx.x + out[THREADS - 1]] = 5;
}

KERNEL too_much_shared(uint32_t *out)
{
	out[threadIdx.x] = shared_memory<struct values>().v[0];
}

struct gap_args {
	uint32_t n; /* behind it lie 4 bytes of no field */
	uint32_t *out;
};

KERNEL with_gap(gap_args a)
{
	a.out[threadIdx.x] = a.n;
}

struct rig {
	struct runtime *rt;
	struct stream *stream;
	uint32_t out[THREADS], in[THREADS];
};

static void open_rig(struct rig *r, unsigned seed)
{
	const char *what;
	struct error err;

	assert_int_equal(runtime_open("", seed, &r->rt, &what, &err), 0);
	assert_int_equal(stream_create(r->rt, &r->stream, &err), 0);
	memset(r->out, 0, sizeof(r->out));
	for (uint32_t i = 0; i < THREADS; i++)
		r->in[i] = 7 * i + 1;
}

static void close_rig(struct rig *r)
{
	assert_int_equal(stream_wait(r->stream, stream_ticket(r->stream)), 0);
	stream_destroy(r->stream);
	runtime_close(r->rt);
}

typedef void launcher(struct rig *r);
typedef uint32_t expected(uint32_t i);

#define ONE_BLOCK(NAME, KERNEL_NAME, ...)                                    \
	static void NAME(struct rig *r)                                      \
	{                                                                    \
		LAUNCH(r->stream, KERNEL_NAME, (simt_dim{1, 1, 1}), THREADS, \
			sizeof(struct values), __VA_ARGS__);                 \
	}
ONE_BLOCK(launch_across_warps, (across_warps<true>), r->out)
ONE_BLOCK(launch_without_barrier, (across_warps<false>), r->out)
ONE_BLOCK(launch_across_lanes, (across_lanes<true>), r->out)
ONE_BLOCK(launch_without_syncwarp, (across_lanes<false>), r->out)
ONE_BLOCK(launch_copied, (copied<true>), r->out, r->in)
ONE_BLOCK(launch_not_awaited, (copied<false>), r->out, r->in)
ONE_BLOCK(launch_one_of_two, copied_one_of_two, r->out, r->in)
ONE_BLOCK(launch_two_barriers, two_barriers, r->out)
ONE_BLOCK(launch_half_a_barrier, half_a_barrier, r->out)
ONE_BLOCK(launch_half_a_shuffle, half_a_shuffle, r->out)
ONE_BLOCK(launch_foreign_lane, foreign_lane, r->out)

static void launch_behind_the_end(struct rig *r)
{
	r->out[THREADS - 1] = THREADS;
	LAUNCH(r->stream, behind_the_end, (simt_dim{1, 1, 1}), 1, sizeof(struct values), r->out);
}

static void launch_too_much_shared(struct rig *r)
{
	LAUNCH(r->stream, too_much_shared, (simt_dim{1, 1, 1}), 1, sizeof(struct values) - 1,
		r->out);
}

/* How many seeds give something else than what is expected. */
static unsigned wrong_seeds(launcher *launch, expected *want)
{
	unsigned wrong = 0;

	for (unsigned seed = 0; seed < SEEDS; seed++) {
		struct rig r;
		bool differs = false;

		open_rig(&r, seed);
		launch(&r);
		close_rig(&r);
		for (uint32_t i = 0; i < THREADS; i++)
			differs |= r.out[i] != want(i);
		wrong += differs;
	}
	return wrong;
}

static uint32_t from_warp(uint32_t i)
{
	return 3 * ((i + 33) % THREADS);
}

static uint32_t from_lane(uint32_t i)
{
	return 3 * (i ^ 1);
}

static uint32_t from_copy(uint32_t i)
{
	return 7 * i + 1;
}

static void a_missing_barrier_is_seen(void **)
{
	assert_int_equal(wrong_seeds(launch_across_warps, from_warp), 0);
	assert_true(wrong_seeds(launch_without_barrier, from_warp) > 0);
}

static void a_missing_syncwarp_is_seen(void **)
{
	assert_int_equal(wrong_seeds(launch_across_lanes, from_lane), 0);
	assert_true(wrong_seeds(launch_without_syncwarp, from_lane) > 0);
}

static void a_copy_that_nobody_awaits_is_seen(void **)
{
	assert_int_equal(wrong_seeds(launch_copied, from_copy), 0);
	assert_int_equal(wrong_seeds(launch_not_awaited, from_copy), SEEDS);
	assert_int_equal(wrong_seeds(launch_one_of_two, from_copy), SEEDS);
}

/* The process must end, with a message that has `text`. */
static void dies_in(launcher *launch, const char *text)
{
	dies(
		[=] {
			struct rig r;

			open_rig(&r, 1);
			launch(&r);
			close_rig(&r);
		},
		text);
}

static void a_divergent_barrier_is_named(void **)
{
	dies_in(launch_two_barriers, "kernel two_barriers, block 0,0, thread");
	dies_in(launch_two_barriers, "different barriers");
	dies_in(launch_half_a_barrier, "another thread has ended");
}

static void lanes_that_do_not_come_are_named(void **)
{
	dies_in(launch_half_a_shuffle, "has ended");
	dies_in(launch_foreign_lane, "which the mask does not name");
}

static void shared_memory_has_an_end(void **)
{
	dies_in(launch_behind_the_end, "bytes behind the end of shared memory");
	dies_in(launch_too_much_shared, "shared memory has 511 bytes");
}

/* The field and what lies behind it look like an address of weights. */
static void what_lies_between_fields_is_no_address(void **)
{
	struct rig r;
	gap_args a = {};
	struct error err;
	const uint32_t *in = r.in;

	static_assert(offsetof(gap_args, out) == sizeof(in), "a gap");
	open_rig(&r, 1);
	assert_int_equal(runtime_place(r.rt, r.in, sizeof(r.in), &err), 0);
	memcpy(static_cast<void *>(&a), &in, sizeof(in));
	a.out = r.out;
	LAUNCH(r.stream, with_gap, (simt_dim{1, 1, 1}), THREADS, 0, a);
	assert_int_equal(stream_wait(r.stream, stream_ticket(r.stream)), 0);
	assert_int_equal(r.out[THREADS - 1], a.n);
	runtime_forget(r.rt, r.in, sizeof(r.in));
	close_rig(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_missing_barrier_is_seen),
		cmocka_unit_test(a_missing_syncwarp_is_seen),
		cmocka_unit_test(a_copy_that_nobody_awaits_is_seen),
		cmocka_unit_test(a_divergent_barrier_is_named),
		cmocka_unit_test(lanes_that_do_not_come_are_named),
		cmocka_unit_test(shared_memory_has_an_end),
		cmocka_unit_test(what_lies_between_fields_is_no_address),
	};

	return cmocka_run_group_tests_name("gpu simt", tests, nullptr, nullptr);
}
