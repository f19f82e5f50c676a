/* Products with many rows by the kernel for them: the bits of the kernel for few; and stages of its
 * activations that are not awaited are found. test_products.c compares it with the CPU. */
#include "simt.h"

#include "kernels/gpu/kernels/many.cuh"

#include <csetjmp>
#include <cstdarg>
#include <cstdio>

extern "C" {
#include <cmocka.h>
}

/* Two segments and a run; tiles that do not fill the last block of the grid; tokens that do not. */
enum { COLS = 1056, ROWS = 96, TOKENS = 133, SEEDS = 4, ROW_BYTES = COLS / 32 * 34 };

struct rig {
	struct runtime *rt;
	struct stream *stream;
	struct product_args args;
	unsigned char *w;
	struct q8_block *x;
	float *y;
};

static uint32_t random_word(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

static void open_rig(struct rig *r, unsigned seed)
{
	const char *what;
	struct error err;
	uint32_t state = 5;

	*r = {};
	assert_int_equal(runtime_open("", seed, &r->rt, &what, &err), 0);
	assert_int_equal(stream_create(r->rt, &r->stream, &err), 0);
	r->w = static_cast<unsigned char *>(
		aligned_alloc(256, (ROWS * ROW_BYTES + 255) / 256 * 256));
	r->x = static_cast<struct q8_block *>(
		aligned_alloc(64, (TOKENS * COLS / 32 * sizeof(struct q8_block) + 63) / 64 * 64));
	r->y = static_cast<float *>(calloc(TOKENS * ROWS, sizeof(float)));
	for (unsigned i = 0; i < ROWS * ROW_BYTES; i++)
		r->w[i] = static_cast<unsigned char>(random_word(&state) % 64);
	for (unsigned i = 0; i < TOKENS * COLS / 32; i++) {
		r->x[i] = {};
		r->x[i].d = static_cast<float>(random_word(&state)) * 0x1p-30f;
		for (unsigned k = 0; k < Q8_BLOCK; k++)
			r->x[i].q[k] = static_cast<int8_t>(random_word(&state) % 255);
	}
	r->args.w.type = TENSOR_Q8_0;
	r->args.w.data = r->w;
	r->args.w.rows = ROWS;
	r->args.w.cols = COLS;
	r->args.w.row_bytes = ROW_BYTES;
	r->args.w.layout = LAYOUT_TILES;
	r->args.x = {reinterpret_cast<unsigned char *>(r->x), COLS / 32 * sizeof(struct q8_block),
		TOKENS};
	r->args.y = {reinterpret_cast<unsigned char *>(r->y), ROWS * sizeof(float), TOKENS};
}

static void close_rig(struct rig *r)
{
	assert_int_equal(stream_wait(r->stream, stream_ticket(r->stream)), 0);
	stream_destroy(r->stream);
	runtime_close(r->rt);
	free(r->w);
	free(r->x);
}

static float *by_few(void)
{
	struct rig r;

	open_rig(&r, 0);
	LAUNCH(r.stream, (few_tiles<TENSOR_Q8_0, 4>),
		(simt_dim{ROWS / 16, blocks_of(TOKENS, 32), 1}), 64, few_shared_bytes<4>(2),
		r.args);
	close_rig(&r);
	return r.y;
}

template <unsigned LEFT> static float *by_many(unsigned seed)
{
	struct rig r;

	open_rig(&r, seed);
	LAUNCH(r.stream, (many_tiles<TENSOR_Q8_0, LEFT>),
		(simt_dim{blocks_of(ROWS, MANY_ROWS), blocks_of(TOKENS, MANY_TOKENS), 1}),
		MANY_THREADS, sizeof(many_shared), r.args);
	close_rig(&r);
	return r.y;
}

static bool same(const float *a, const float *b)
{
	return memcmp(a, b, TOKENS * ROWS * sizeof(float)) == 0;
}

static void many_has_the_bits_of_few(void **)
{
	float *few = by_few();

	for (unsigned seed = 0; seed < SEEDS; seed++) {
		float *many = by_many<MANY_STAGES - 2>(seed);

		assert_true(same(few, many));
		free(many);
	}
	assert_true(few[TOKENS * ROWS - 1] != 0);
	free(few);
}

static void a_stage_that_is_not_awaited_is_found(void **)
{
	float *few = by_few();

	for (unsigned seed = 0; seed < SEEDS; seed++) {
		float *many = by_many<MANY_STAGES - 1>(seed);

		assert_false(same(few, many));
		free(many);
	}
	free(few);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_has_the_bits_of_few),
		cmocka_unit_test(a_stage_that_is_not_awaited_is_found),
	};

	return cmocka_run_group_tests_name("gpu many", tests, nullptr, nullptr);
}
