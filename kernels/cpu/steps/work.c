/*
 * Divides the work of a step into items for the pool. An item touches at least WORK_ITEM_BYTES of
 * weights or rows (weights count once per row of inputs), so that a tiny model does not spend its
 * time on hand-overs. A thread gets about WORK_ITEMS_FEW items. All threads wait for the last item,
 * so large work is cut finer: into items of about WORK_ITEM_LARGE bytes, at most WORK_ITEMS
 * (steps.h) per thread. Work that is too small for two items stays on the calling thread.
 */
#include "kernels/cpu/steps/steps.h"

enum {
	/* A hand-over to a spinning thread costs about a microsecond, in which one core reads this
	 * much from its cache. */
	WORK_ITEM_BYTES = 16 << 10,
	WORK_ITEM_LARGE = 4 << 20,
	WORK_ITEMS_FEW = 4,
};

/* The number of items for work that touches this many bytes. */
static uint32_t item_count(const struct cpu_queue *q, uint64_t bytes)
{
	uint64_t n = bytes / WORK_ITEM_BYTES, n_large = bytes / WORK_ITEM_LARGE;
	uint64_t few = (uint64_t)q->n_threads * WORK_ITEMS_FEW;
	uint64_t most = (uint64_t)q->n_threads * WORK_ITEMS;
	if (q->n_threads == 1 || n < 2)
		return 1;
	if (n <= few)
		return (uint32_t)n;
	return (uint32_t)(n_large < few ? few : n_large < most ? n_large : most);
}

static void run(struct cpu_queue *q, void (*fn)(void *, uint32_t, uint32_t), void *arg, uint32_t n)
{
	if (n == 1)
		fn(arg, 0, 0);
	else
		pool_run(q->pool, fn, arg, n);
}

struct item_work {
	void (*fn)(void *arg, uint32_t item, uint32_t thread);
	void *arg;
	uint64_t n;
	uint32_t n_parts;
};

static void items_part(void *arg, uint32_t part, uint32_t thread)
{
	const struct item_work *work = arg;
	uint32_t last = (uint32_t)(work->n * (part + 1) / work->n_parts);
	for (uint32_t i = (uint32_t)(work->n * part / work->n_parts); i < last; i++)
		work->fn(work->arg, i, thread);
}

void work_items(struct cpu_queue *q, uint32_t n, size_t bytes,
	void (*fn)(void *arg, uint32_t item, uint32_t thread), void *arg)
{
	uint32_t parts = item_count(q, bytes);
	struct item_work work = {fn, arg, n, parts < n ? parts : n};
	if (n > 0)
		run(q, items_part, &work, work.n_parts);
}

struct quantise {
	const struct kernels *kernels;
	uint32_t width;
	const struct rows *x, *q8;
};

static void quantise_row(void *arg, uint32_t i, uint32_t thread)
{
	const struct quantise *work = arg;
	(void)thread;
	work->kernels->quantise_q8(floats_at(work->x, i), work->width, q8_at(work->q8, i));
}

void work_quantise(struct cpu_queue *q, uint32_t n, uint32_t width, const struct rows *x,
	const struct rows *q8)
{
	struct quantise work = {q->kernels, width, x, q8};
	work_items(q, n, (size_t)n * 2 * width * sizeof(float), quantise_row, &work);
}

/* A task is cut into `rows` parts of its rows, each with `tokens` parts of its tokens. */
struct cuts {
	uint64_t rows, tokens;
};

/* Cuts a task of `bytes` bytes such that an item touches about `target` bytes; target 0: one item.
 */
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

/* Where part i of `cuts` parts of n begins, in whole blocks. Behind the last part it may be more
 * than n. */
static uint32_t cut_at(uint32_t n, uint32_t block, uint64_t i, uint64_t cuts)
{
	uint64_t blocks = (n + block - 1) / block;
	return (uint32_t)(blocks * i / cuts * block);
}

/* Items with the same rows are neighbours, so that a thread usually finds the weights in its cache.
 */
static void cut_task(struct cpu_queue *q, uint32_t task, uint32_t rows, uint32_t tokens,
	uint64_t bytes, uint64_t target)
{
	struct cuts cuts = cuts_of(rows, tokens, bytes, target);
	for (uint64_t i = 0; i < cuts.rows * cuts.tokens; i++) {
		uint64_t row = i / cuts.tokens, token = i % cuts.tokens;
		uint32_t last = cut_at(rows, WORK_ROWS, row + 1, cuts.rows);
		uint32_t end = cut_at(tokens, WORK_TOKENS, token + 1, cuts.tokens);
		struct work_item *item = &q->items[q->n_items++];
		item->task = task;
		item->first = cut_at(rows, WORK_ROWS, row, cuts.rows);
		item->last = last < rows ? last : rows;
		item->row = cut_at(tokens, WORK_TOKENS, token, cuts.tokens);
		item->n = (end < tokens ? end : tokens) - item->row;
	}
}

static uint64_t product_bytes(const struct matrix *w, uint32_t n)
{
	return (uint64_t)w->rows * w->row_bytes * n;
}

/* The number of items for the products, and how much one of them touches; 1 and 0: too little for
 * the pool. */
static uint32_t product_items(const struct cpu_queue *q, const struct work_product *products,
	uint32_t n, uint64_t *target)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		bytes += product_bytes(&products[i].w, products[i].n);
	uint32_t parts = item_count(q, bytes);
	*target = parts > 1 ? bytes / parts : 0;
	return parts;
}

static struct cuts product_cuts(const struct work_product *p, uint64_t target)
{
	return cuts_of(p->w.rows, p->n, product_bytes(&p->w, p->n), target);
}

static void products_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct cpu_queue *q = arg;
	const struct work_item *i = &q->items[item];
	const struct work_product *p = &q->products[i->task];
	(void)thread;
	q->kernels->matmul(&p->w, i->first, i->last, p->x + i->row, i->n, p->y + i->row);
}

/* Runs the items on the pool, or here when there are too few for it. */
static void run_items(struct cpu_queue *q, void (*fn)(void *, uint32_t, uint32_t), uint32_t parts)
{
	if (parts > 1) {
		pool_run(q->pool, fn, q, q->n_items);
		return;
	}
	for (uint32_t i = 0; i < q->n_items; i++)
		fn(q, i, 0);
}

void work_products(struct cpu_queue *q, uint32_t n, bool alone)
{
	uint64_t target = 0;
	uint32_t parts = alone ? 1 : product_items(q, q->products, n, &target);
	q->n_items = 0;
	for (uint32_t i = 0; i < n; i++)
		cut_task(q, i, q->products[i].w.rows, q->products[i].n,
			product_bytes(&q->products[i].w, q->products[i].n), target);
	run_items(q, products_item, parts);
}

void work_ahead(struct cpu_queue *q, const struct work_product *products, uint32_t n)
{
	uint32_t threads = pool_active(q->pool), thread = 0;
	uint64_t target, items = 0, before = 0;
	if (threads < 2)
		return;
	if (product_items(q, products, n, &target) < 2)
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
			pool_ahead(q->pool, thread,
				(const unsigned char *)w->data + row * w->row_bytes,
				(w->rows - row) * w->row_bytes);
		}
		before += cuts.rows * cuts.tokens;
	}
	for (; thread < threads; thread++)
		pool_ahead(q->pool, thread, NULL, 0);
}

void work_next(struct cpu_queue *q, const struct step_next *next)
{
	struct work_product products[STEP_NEXT];
	for (uint32_t i = 0; i < next->n; i++)
		products[i] = (struct work_product){.w = next->w[i], .n = next->n_rows};
	work_ahead(q, products, next->n);
}

/* Rows first..last-1 of a matrix as a matrix. first is a multiple of WORK_ROWS, where tiles may
 * begin. */
static struct matrix rows_of(const struct matrix *w, uint32_t first, uint32_t last)
{
	struct matrix part = *w;
	part.rows = last - first;
	part.data = (const unsigned char *)w->data + first * w->row_bytes;
	return part;
}

/* The activation between gate and up and down, for rows row.. of pair a. Overwrites gate and up. */
static void activate(const struct cpu_queue *q, const struct work_ffn *task, uint32_t a,
	uint32_t row, uint32_t rows, float *gate, float *up)
{
	const struct kernels *kernels = q->kernels;
	size_t at = (size_t)a * q->limits.ffn_width + row;
	bool quantise = matrix_quantised(&task->ffn.down);
	float *act = q->act ? q->act + at : gate;
	if (task->adapt && q->gated[a]) {
		const float *t = q->adapted + (size_t)a * 2 * q->limits.adapt_rank;
		if (task->adapt->gate.a.data)
			adapt_add(kernels, &task->adapt->gate, &(struct activation){t, NULL}, 1,
				row, row + rows, &gate);
		if (task->adapt->up.a.data)
			adapt_add(kernels, &task->adapt->up,
				&(struct activation){t + q->limits.adapt_rank, NULL}, 1, row,
				row + rows, &up);
	}
	if (task->ffn.gate_bias)
		kernels->add(gate, task->ffn.gate_bias + row, rows);
	if (task->ffn.up_bias)
		kernels->add(up, task->ffn.up_bias + row, rows);
	if (task->ffn.activation == ACTIVATION_SWIGLU_OAI)
		kernels->swiglu_oai(gate, up, rows, act);
	else
		kernels->silu_mul(gate, up, rows, act);
	/* Blocks are quantised separately, and items are cut between blocks. */
	if (quantise)
		kernels->quantise_q8(act, rows, q->act_q8 + at / Q8_BLOCK);
}

/* Computes rows first..last-1 for n <= WORK_TOKENS pairs from `a` on, in the memory of a thread. */
static void ffn_rows(const struct cpu_queue *q, const struct work_ffn *task, uint32_t a, uint32_t n,
	uint32_t first, uint32_t last, float *memory)
{
	struct matrix gate = rows_of(&task->ffn.gate, first, last);
	struct matrix up = rows_of(&task->ffn.up, first, last);
	uint32_t rows = last - first;
	float *gate_rows[WORK_TOKENS], *up_rows[WORK_TOKENS];
	for (uint32_t t = 0; t < n; t++) {
		gate_rows[t] = memory + (size_t)t * rows;
		up_rows[t] = gate_rows[t] + WORK_FFN_FLOATS;
	}
	q->kernels->matmul(&gate, 0, rows, q->x_rows + a, n, gate_rows);
	q->kernels->matmul(&up, 0, rows, q->x_rows + a, n, up_rows);
	for (uint32_t t = 0; t < n; t++)
		activate(q, task, a + t, first, rows, gate_rows[t], up_rows[t]);
}

static void ffn_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct cpu_queue *q = arg;
	const struct work_item *i = &q->items[item];
	const struct work_ffn *task = &q->ffn[i->task];
	float *memory = q->gate_up + (size_t)thread * 2 * WORK_FFN_FLOATS;
	for (uint32_t t = 0; t < i->n; t += WORK_TOKENS) {
		uint32_t n = i->n - t < WORK_TOKENS ? i->n - t : WORK_TOKENS;
		uint32_t step = WORK_FFN_FLOATS / n / WORK_ROWS * WORK_ROWS;
		for (uint32_t row = i->first; row < i->last; row += step)
			ffn_rows(q, task, task->first + i->row + t, n, row,
				row + step < i->last ? row + step : i->last, memory);
	}
}

void work_ffn(struct cpu_queue *q, uint32_t n)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		bytes += 2 * product_bytes(&q->ffn[i].ffn.gate, q->ffn[i].n);
	uint32_t parts = item_count(q, bytes);
	q->n_items = 0;
	for (uint32_t i = 0; i < n; i++)
		cut_task(q, i, q->ffn[i].ffn.gate.rows, q->ffn[i].n,
			2 * product_bytes(&q->ffn[i].ffn.gate, q->ffn[i].n),
			parts > 1 ? bytes / parts : 0);
	run_items(q, ffn_item, parts);
}
