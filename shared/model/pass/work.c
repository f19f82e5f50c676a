/*
 * Cutting the work of a step into items for the pool. An item is at least WORK_ITEM_BYTES of weights or rows touched
 * (weights count once per token), so that a tiny model is not spent on hand-overs. A thread gets WORK_ITEMS_FEW, and more
 * (up to WORK_ITEMS of forward_internal.h) only of WORK_ITEM_LARGE, so that threads end together: what the last item
 * takes is waited for. What is smaller altogether stays on the calling thread.
 */
#include "shared/model/pass/forward_internal.h"

enum {
	/* A hand-over to a spinning thread costs about a microsecond, in which one core reads this from its cache. */
	WORK_ITEM_BYTES = 16 << 10,
	WORK_ITEM_LARGE = 4 << 20,
	WORK_ITEMS_FEW = 4,
	/* Rows are cut in multiples of this: a whole number of Q8 blocks, and of any kernel's row group. */
	WORK_ROWS = 32,
	/* Tokens likewise: so many share a reading of the weights (matmul of kernels.h). */
	WORK_TOKENS = 64,
};

/* How many items to make of so many bytes. */
static uint32_t item_count(const struct forward *f, uint64_t bytes)
{
	uint64_t n = bytes / WORK_ITEM_BYTES, n_large = bytes / WORK_ITEM_LARGE;
	uint64_t few = (uint64_t)f->n_threads * WORK_ITEMS_FEW;
	uint64_t most = (uint64_t)f->n_threads * WORK_ITEMS;
	if (f->n_threads == 1 || n < 2)
		return 1;
	if (n <= few)
		return (uint32_t)n;
	return (uint32_t)(n_large < few ? few : n_large < most ? n_large : most);
}

struct token_work {
	struct forward *f;
	void (*fn)(struct forward *f, uint32_t token);
	uint32_t n_items;
};

static void tokens_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct token_work *work = arg;
	uint64_t n = work->f->n;
	uint32_t last = (uint32_t)(n * (item + 1) / work->n_items);
	(void)thread;
	for (uint32_t t = (uint32_t)(n * item / work->n_items); t < last; t++)
		work->fn(work->f, t);
}

static void run(struct forward *f, void (*fn)(void *, uint32_t, uint32_t), void *arg, uint32_t n)
{
	if (n == 1)
		fn(arg, 0, 0);
	else
		pool_run(f->pool, fn, arg, n);
}

void work_tokens(struct forward *f, void (*fn)(struct forward *f, uint32_t token), size_t bytes)
{
	uint32_t n = item_count(f, (uint64_t)bytes * f->n);
	struct token_work work = {f, fn, n < f->n ? n : f->n};
	run(f, tokens_item, &work, work.n_items);
}

struct item_work {
	struct forward *f;
	void (*fn)(struct forward *f, uint32_t item, uint32_t thread);
	uint32_t n, n_parts;
};

static void items_part(void *arg, uint32_t part, uint32_t thread)
{
	const struct item_work *work = arg;
	uint64_t n = work->n;
	uint32_t last = (uint32_t)(n * (part + 1) / work->n_parts);
	for (uint32_t i = (uint32_t)(n * part / work->n_parts); i < last; i++)
		work->fn(work->f, i, thread);
}

void work_items(struct forward *f, uint32_t n, size_t bytes,
	void (*fn)(struct forward *f, uint32_t item, uint32_t thread))
{
	uint32_t parts = item_count(f, bytes);
	struct item_work work = {f, fn, n, parts < n ? parts : n};
	if (n > 0)
		run(f, items_part, &work, work.n_parts);
}

/* The items of a task: so many parts of its rows, each in so many of its tokens. */
struct cuts {
	uint64_t rows, tokens;
};

/* So that an item touches about `target` bytes of the task's; 0: all is one item. */
static struct cuts cuts_of(uint32_t rows, uint32_t tokens, uint64_t bytes, uint64_t target)
{
	uint64_t row_blocks = (rows + WORK_ROWS - 1) / WORK_ROWS;
	uint64_t token_blocks = (tokens + WORK_TOKENS - 1) / WORK_TOKENS;
	uint64_t n = target ? bytes / target : 1;
	n = n < 1 ? 1 : n;
	uint64_t token_cuts = n < token_blocks ? n : token_blocks;
	uint64_t row_cuts = n / token_cuts < row_blocks ? n / token_cuts : row_blocks;
	return (struct cuts){row_cuts, token_cuts};
}

/* Where part `i` of `cuts` of n begins, in whole blocks; behind the last it may be more than n. */
static uint32_t cut_at(uint32_t n, uint32_t block, uint64_t i, uint64_t cuts)
{
	uint64_t blocks = (n + block - 1) / block;
	return (uint32_t)(blocks * i / cuts * block);
}

/* Items of the same rows go one behind the other: a thread mostly finds the weights in its cache. */
static void cut_task(struct forward *f, uint32_t task, uint32_t rows, uint32_t tokens,
	uint64_t bytes, uint64_t target)
{
	struct cuts cuts = cuts_of(rows, tokens, bytes, target);
	for (uint64_t i = 0; i < cuts.rows * cuts.tokens; i++) {
		uint64_t row = i / cuts.tokens, token = i % cuts.tokens;
		uint32_t last = cut_at(rows, WORK_ROWS, row + 1, cuts.rows);
		uint32_t end = cut_at(tokens, WORK_TOKENS, token + 1, cuts.tokens);
		struct work_item *item = &f->items[f->n_items++];
		item->task = task;
		item->first = cut_at(rows, WORK_ROWS, row, cuts.rows);
		item->last = last < rows ? last : rows;
		item->token = cut_at(tokens, WORK_TOKENS, token, cuts.tokens);
		item->n = (end < tokens ? end : tokens) - item->token;
	}
}

static uint64_t product_bytes(const struct matrix *w, uint32_t n)
{
	return (uint64_t)w->rows * w->row_bytes * n;
}

/* How many items to make of the products, and what one of them then touches; 1 and 0: they are too little for the pool. */
static uint32_t product_items(
	const struct forward *f, const struct product *products, uint32_t n, uint64_t *target)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		bytes += product_bytes(&products[i].w, products[i].n);
	uint32_t parts = item_count(f, bytes);
	*target = parts > 1 ? bytes / parts : 0;
	return parts;
}

static struct cuts product_cuts(const struct product *p, uint64_t target)
{
	return cuts_of(p->w.rows, p->n, product_bytes(&p->w, p->n), target);
}

static void products_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct forward *f = arg;
	const struct work_item *i = &f->items[item];
	const struct product *p = &f->products[i->task];
	(void)thread;
	f->kernels->matmul(&p->w, i->first, i->last, p->x + i->token, i->n, p->y + i->token);
}

/* The cut items: on the pool, or here when they are too little for it. */
static void run_items(struct forward *f, void (*fn)(void *, uint32_t, uint32_t), uint32_t parts)
{
	if (parts > 1) {
		pool_run(f->pool, fn, f, f->n_items);
		return;
	}
	for (uint32_t i = 0; i < f->n_items; i++)
		fn(f, i, 0);
}

void work_products(struct forward *f, uint32_t n)
{
	uint64_t target;
	uint32_t parts = product_items(f, f->products, n, &target);
	f->n_items = 0;
	for (uint32_t i = 0; i < n; i++)
		cut_task(f, i, f->products[i].w.rows, f->products[i].n,
			product_bytes(&f->products[i].w, f->products[i].n), target);
	run_items(f, products_item, parts);
}

void work_ahead(struct forward *f, const struct product *products, uint32_t n)
{
	uint32_t threads = pool_active(f->pool), thread = 0;
	uint64_t target, items = 0, before = 0;
	if (threads < 2)
		return;
	if (product_items(f, products, n, &target) < 2)
		n = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct cuts cuts = product_cuts(&products[i], target);
		items += cuts.rows * cuts.tokens;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct cuts cuts = product_cuts(&products[i], target);
		const struct matrix *w = &products[i].w;
		for (; thread < threads &&
			pool_first(items, thread, threads) < before + cuts.rows * cuts.tokens;
			thread++) {
			uint64_t item = pool_first(items, thread, threads) - before;
			uint32_t row = cut_at(w->rows, WORK_ROWS, item / cuts.tokens, cuts.rows);
			pool_ahead(f->pool, thread,
				(const unsigned char *)w->data + row * w->row_bytes,
				(w->rows - row) * w->row_bytes);
		}
		before += cuts.rows * cuts.tokens;
	}
	for (; thread < threads; thread++)
		pool_ahead(f->pool, thread, NULL, 0);
}

/* Rows first..last-1 of a matrix as one of their own; first is a multiple of WORK_ROWS, where tiles may begin. */
static struct matrix rows_of(const struct matrix *w, uint32_t first, uint32_t last)
{
	struct matrix part = *w;
	part.rows = last - first;
	part.data = (const unsigned char *)w->data + first * w->row_bytes;
	return part;
}

/* What comes between gate and up and down, for rows row.. of assignment a; gate and up are overwritten. */
static void activate(const struct forward *f, const struct ffn_task *task, uint32_t a, uint32_t row,
	uint32_t rows, float *gate, float *up)
{
	const struct kernels *kernels = f->kernels;
	size_t at = (size_t)a * f->ff_max + row;
	bool quantise = forward_quantised(&task->down);
	float *act = f->act ? f->act + at : gate;
	if (task->gate_bias)
		kernels->add(gate, task->gate_bias + row, rows);
	if (task->up_bias)
		kernels->add(up, task->up_bias + row, rows);
	if (f->model->config.arch->activation == ACTIVATION_SWIGLU_OAI)
		kernels->swiglu_oai(gate, up, rows, act);
	else
		kernels->silu_mul(gate, up, rows, act);
	/* Blocks are quantised one by one, and a cut falls between blocks. */
	if (quantise)
		kernels->quantise_q8(act, rows, f->act_q8 + at / Q8_BLOCK);
}

/* Rows first..last-1 for n <= WORK_TOKENS assignments from `a` on, in the memory of a thread. */
static void ffn_rows(const struct forward *f, const struct ffn_task *task, uint32_t a, uint32_t n,
	uint32_t first, uint32_t last, float *memory)
{
	struct matrix gate = rows_of(&task->gate, first, last);
	struct matrix up = rows_of(&task->up, first, last);
	uint32_t rows = last - first;
	float *gate_rows[WORK_TOKENS], *up_rows[WORK_TOKENS];
	for (uint32_t t = 0; t < n; t++) {
		gate_rows[t] = memory + (size_t)t * rows;
		up_rows[t] = gate_rows[t] + WORK_FFN_FLOATS;
	}
	f->kernels->matmul(&gate, 0, rows, f->in_rows + a, n, gate_rows);
	f->kernels->matmul(&up, 0, rows, f->in_rows + a, n, up_rows);
	for (uint32_t t = 0; t < n; t++)
		activate(f, task, a + t, first, rows, gate_rows[t], up_rows[t]);
}

static void ffn_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct forward *f = arg;
	const struct work_item *i = &f->items[item];
	const struct ffn_task *task = &f->ffn[i->task];
	float *memory = f->gate_up + (size_t)thread * 2 * WORK_FFN_FLOATS;
	for (uint32_t t = 0; t < i->n; t += WORK_TOKENS) {
		uint32_t n = i->n - t < WORK_TOKENS ? i->n - t : WORK_TOKENS;
		uint32_t step = WORK_FFN_FLOATS / n / WORK_ROWS * WORK_ROWS;
		for (uint32_t row = i->first; row < i->last; row += step)
			ffn_rows(f, task, task->first + i->token + t, n, row,
				row + step < i->last ? row + step : i->last, memory);
	}
}

void work_ffn(struct forward *f, uint32_t n)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		bytes += 2 * product_bytes(&f->ffn[i].gate, f->ffn[i].n);
	uint32_t parts = item_count(f, bytes);
	f->n_items = 0;
	for (uint32_t i = 0; i < n; i++)
		cut_task(f, i, f->ffn[i].gate.rows, f->ffn[i].n,
			2 * product_bytes(&f->ffn[i].gate, f->ffn[i].n),
			parts > 1 ? bytes / parts : 0);
	run_items(f, ffn_item, parts);
}
