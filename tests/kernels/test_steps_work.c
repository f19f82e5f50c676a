/* Work cut for the pool is the work: products and feed-forwards of any number of tokens and rows give the bits that the
 * kernels give in one call. */
#include "kernels/kernels.h"
#include "kernels/pool_internal.h"
#include "kernels/tiles.h"
#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/cpu/steps/steps.h"
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COLS = 64, ROWS_MAX = 1056, TOKENS_MAX = 150, TASKS = 2 };

/* Two matrices of each kind, for tokens that all lie behind each other: the first task's, then the second's. */
struct work_test {
	struct backend *backend;
	struct queue *queue;
	struct cpu_queue *q; /* the same */
	enum activation_kind activation;
	struct matrix gate[TASKS], up[TASKS];
	float *bias; /* [ROWS_MAX] */
	float *x, *gate_out, *up_out, *act; /* by token; the outputs in rows of ROWS_MAX */
	struct q8_block *x_q8, *act_q8;
	struct activation *in;
	float **gate_rows, **up_rows;
	uint64_t rng;
};

static void *memory(size_t n, size_t each)
{
	void *m = calloc(n, each);
	assert_non_null(m);
	return m;
}

static float random_float(struct work_test *w)
{
	w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
	return (float)(int32_t)(w->rng >> 32) * 0x1p-31f;
}

/* Q8_0 or F32. */
static struct matrix random_matrix(struct work_test *w, enum tensor_type type)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
	size_t row_bytes = (size_t)COLS / info->block_weights * info->block_bytes;
	unsigned char *data = memory(ROWS_MAX, row_bytes);
	struct matrix m = {
		.type = type, .rows = ROWS_MAX, .cols = COLS, .row_bytes = row_bytes, .data = data};
	for (size_t i = 0; i < ROWS_MAX * row_bytes; i += info->block_bytes) {
		float value = random_float(w);
		if (type == TENSOR_F32) {
			memcpy(data + i, &value, sizeof(value));
			continue;
		}
		for (size_t k = 2; k < info->block_bytes; k++)
			data[i + k] = (unsigned char)(127 * random_float(w));
		data[i + 1] = 0x20; /* float16 2^-7 */
	}
	if (!tiles_possible(&m))
		return m;
	void *tiles = memory(ROWS_MAX, row_bytes);
	tiles_pack(&m, 0, ROWS_MAX, tiles);
	free(data);
	m.data = tiles;
	m.layout = LAYOUT_TILES;
	return m;
}

static void open_memory(struct work_test *w)
{
	size_t n = TASKS * TOKENS_MAX, outs = n * ROWS_MAX;
	w->bias = memory(ROWS_MAX, sizeof(float));
	w->x = memory(n * COLS, sizeof(float));
	w->x_q8 = memory(n * COLS / Q8_BLOCK, sizeof(*w->x_q8));
	w->gate_out = memory(outs, sizeof(float));
	w->up_out = memory(outs, sizeof(float));
	w->act = memory(outs, sizeof(float));
	w->act_q8 = memory(outs / Q8_BLOCK, sizeof(*w->act_q8));
	w->in = memory(n, sizeof(*w->in));
	w->gate_rows = memory(n, sizeof(*w->gate_rows));
	w->up_rows = memory(n, sizeof(*w->up_rows));
	for (size_t i = 0; i < ROWS_MAX; i++)
		w->bias[i] = random_float(w);
	for (size_t i = 0; i < n * COLS; i++)
		w->x[i] = random_float(w);
	for (size_t t = 0; t < n; t++) {
		struct q8_block *q8 = w->x_q8 + t * (COLS / Q8_BLOCK);
		w->q->kernels->quantise_q8(w->x + t * COLS, COLS, q8);
		w->in[t] = (struct activation){w->x + t * COLS, q8};
		w->gate_rows[t] = w->gate_out + t * ROWS_MAX;
		w->up_rows[t] = w->up_out + t * ROWS_MAX;
	}
}

static struct work_test *work_open(uint32_t threads)
{
	struct work_test *w = memory(1, sizeof(*w));
	const struct backend_cpu_options options = {
		.kernels = kernels_select(NULL, NULL), .threads = threads, .spin_ns = 20000};
	const struct queue_limits limits = {.products = TASKS,
		.pairs = TASKS * TOKENS_MAX,
		.ffn_pairs = TASKS * TOKENS_MAX,
		.ffn_width = ROWS_MAX,
		.ffn_plain = true};
	struct error err = {""};
	w->rng = threads;
	assert_int_equal(backend_cpu_create(&options, &w->backend, &err), 0);
	assert_int_equal(w->backend->ops->queue(w->backend, &limits, &w->queue, &err), 0);
	w->q = cpu_queue(w->queue);
	open_memory(w);
	memcpy(w->q->x_rows, w->in, TASKS * TOKENS_MAX * sizeof(*w->in));
	for (size_t i = 0; i < TASKS; i++) {
		w->gate[i] = random_matrix(w, TENSOR_Q8_0);
		w->up[i] = random_matrix(w, i ? TENSOR_F32 : TENSOR_Q8_0);
	}
	return w;
}

static void work_close(struct work_test *w)
{
	void *all[] = {w->bias, w->x, w->x_q8, w->gate_out, w->up_out, w->act, w->act_q8, w->in,
		w->gate_rows, w->up_rows};
	for (size_t i = 0; i < TASKS; i++) {
		free((void *)w->gate[i].data);
		free((void *)w->up[i].data);
	}
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free(all[i]);
	w->backend->ops->queue_free(w->queue);
	w->backend->ops->destroy(w->backend);
	free(w);
}

/* A matrix of its first rows; those of an end that is no whole tile lie as rows, so whole tiles are asked for. */
static struct matrix first_rows(const struct matrix *m, uint32_t rows)
{
	struct matrix part = *m;
	part.rows = rows;
	return part;
}

static const uint32_t all_rows[] = {32, 96, 736, ROWS_MAX};
static const uint32_t all_tokens[] = {1, 22, 63, 64, 65, TOKENS_MAX};

static void check_products(struct work_test *w, uint32_t rows, uint32_t tokens)
{
	struct cpu_queue *q = w->q;
	size_t outs = (size_t)TASKS * TOKENS_MAX * ROWS_MAX;
	memset(w->gate_out, 0xff, outs * sizeof(float));
	memset(w->up_out, 0xff, outs * sizeof(float));
	for (uint32_t i = 0; i < TASKS; i++) {
		q->products[i] = (struct work_product){first_rows(&w->up[i], rows),
			w->in + i * TOKENS_MAX, w->gate_rows + i * TOKENS_MAX, tokens};
		q->kernels->matmul(&q->products[i].w, 0, rows, q->products[i].x, tokens,
			w->up_rows + i * TOKENS_MAX);
	}
	work_products(q, TASKS, false);
	assert_memory_equal(w->gate_out, w->up_out, outs * sizeof(float));
}

/* What one task should give, from whole products. */
static void expect_ffn(struct work_test *w, const struct work_ffn *task)
{
	const struct kernels *k = w->q->kernels;
	uint32_t rows = task->ffn.gate.rows, first = task->first;
	k->matmul(&task->ffn.gate, 0, rows, w->in + first, task->n, w->gate_rows + first);
	k->matmul(&task->ffn.up, 0, rows, w->in + first, task->n, w->up_rows + first);
	for (uint32_t a = first; a < first + task->n; a++) {
		float *act = w->act + (size_t)a * ROWS_MAX;
		if (task->ffn.gate_bias)
			k->add(w->gate_rows[a], task->ffn.gate_bias, rows);
		if (task->ffn.up_bias)
			k->add(w->up_rows[a], task->ffn.up_bias, rows);
		if (w->activation == ACTIVATION_SWIGLU_OAI)
			k->swiglu_oai(w->gate_rows[a], w->up_rows[a], rows, act);
		else
			k->silu_mul(w->gate_rows[a], w->up_rows[a], rows, act);
		if (task->ffn.down.type != TENSOR_F32)
			k->quantise_q8(act, rows, w->act_q8 + (size_t)a * ROWS_MAX / Q8_BLOCK);
	}
}

static void check_ffn(struct work_test *w, uint32_t rows, uint32_t tokens, enum tensor_type down)
{
	struct cpu_queue *q = w->q;
	size_t outs = (size_t)TASKS * TOKENS_MAX * ROWS_MAX;
	memset(w->act, 0, outs * sizeof(float));
	memset(q->act, 0, outs * sizeof(float));
	memset(w->act_q8, 0, outs / Q8_BLOCK * sizeof(*w->act_q8));
	memset(q->act_q8, 0, outs / Q8_BLOCK * sizeof(*w->act_q8));
	for (uint32_t i = 0; i < TASKS; i++) {
		q->ffn[i] = (struct work_ffn){
			.ffn = {.gate = first_rows(&w->gate[i], rows),
				.up = first_rows(&w->up[i], rows),
				.down = {.type = down, .rows = COLS, .cols = rows},
				.gate_bias = i ? w->bias : NULL,
				.up_bias = i ? w->bias : NULL,
				.activation = w->activation},
			.first = i * TOKENS_MAX,
			.n = tokens,
		};
		expect_ffn(w, &q->ffn[i]);
	}
	work_ffn(q, TASKS);
	assert_memory_equal(w->act_q8, q->act_q8, outs / Q8_BLOCK * sizeof(*w->act_q8));
	if (down == TENSOR_F32)
		assert_memory_equal(w->act, q->act, outs * sizeof(float));
}

static void for_every_cut(void (*check)(struct work_test *w, uint32_t rows, uint32_t tokens))
{
	for (uint32_t threads = 1; threads <= 3; threads++) {
		struct work_test *w = work_open(threads);
		for (size_t r = 0; r < sizeof(all_rows) / sizeof(all_rows[0]); r++)
			for (size_t t = 0; t < sizeof(all_tokens) / sizeof(all_tokens[0]); t++)
				check(w, all_rows[r], all_tokens[t]);
		work_close(w);
	}
}

static void products_of_any_size_are_whole(void **state)
{
	(void)state;
	for_every_cut(check_products);
}

static void check_quantised(struct work_test *w, uint32_t rows, uint32_t tokens)
{
	w->activation = ACTIVATION_SILU;
	check_ffn(w, rows, tokens, TENSOR_Q8_0);
}

static void check_plain(struct work_test *w, uint32_t rows, uint32_t tokens)
{
	w->activation = ACTIVATION_SWIGLU_OAI;
	check_ffn(w, rows, tokens, TENSOR_F32);
}

static void feed_forwards_of_any_size_are_whole(void **state)
{
	(void)state;
	for_every_cut(check_quantised);
	for_every_cut(check_plain);
}

static uint64_t product_weights(const struct work_product *p)
{
	return (uint64_t)p->w.rows * p->w.row_bytes;
}

/* Bytes of the weights of all tasks, one task behind the other, that lie before what a thread fetches; and that this is of
 * whole blocks of rows. */
static uint64_t bytes_before(const struct cpu_queue *q, const struct pool_thread *t)
{
	uint64_t before = 0;
	for (uint32_t i = 0; i < TASKS; i++) {
		const struct work_product *p = &q->products[i];
		uint64_t at = atomic_load(&t->ahead) - (uintptr_t)p->w.data;
		if (atomic_load(&t->ahead) >= (uintptr_t)p->w.data && at < product_weights(p)) {
			uint64_t left = product_weights(p) - at;
			assert_int_equal(at % (32 * p->w.row_bytes), 0);
			assert_int_equal(atomic_load(&t->ahead_bytes),
				left < POOL_AHEAD_BYTES ? left : POOL_AHEAD_BYTES);
			return before + at;
		}
		before += product_weights(p);
	}
	fail_msg("a thread fetches what is no weight");
	return 0;
}

/* Each thread's share of the bytes, to within an item: as many threads get a quarter of a share. */
static void each_thread_fetches_the_weights_that_it_takes_first(void **state)
{
	(void)state;
	for (uint32_t threads = 2; threads <= 4; threads++) {
		struct work_test *w = work_open(threads);
		struct cpu_queue *q = w->q;
		uint64_t all = 0;
		pool_use(q->pool, threads);
		for (uint32_t i = 0; i < TASKS; i++) {
			q->products[i] = (struct work_product){.w = w->gate[i], .n = TOKENS_MAX};
			all += product_weights(&q->products[i]);
		}
		work_ahead(q, q->products, TASKS);
		for (uint32_t i = 0; i < threads; i++) {
			uint64_t before = bytes_before(q, &q->pool->of[i]);
			uint64_t share = all * i / threads, item = all / threads / 2;
			assert_in_range(before, share > item ? share - item : 0, share + item);
		}
		assert_int_equal(bytes_before(q, &q->pool->of[0]), 0);
		/* What follows is not known, or too little for more than one thread. */
		work_ahead(q, NULL, 0);
		for (uint32_t i = 0; i < threads; i++)
			assert_int_equal(atomic_load(&q->pool->of[i].ahead_bytes), 0);
		q->products[0] = (struct work_product){.w = first_rows(&w->gate[0], 32), .n = 1};
		work_ahead(q, q->products, 1);
		for (uint32_t i = 0; i < threads; i++)
			assert_int_equal(atomic_load(&q->pool->of[i].ahead_bytes), 0);
		work_close(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(products_of_any_size_are_whole),
		cmocka_unit_test(feed_forwards_of_any_size_are_whole),
		cmocka_unit_test(each_thread_fetches_the_weights_that_it_takes_first),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
