/*
 * Cutting the work of a step into items for the pool. An item is at least WORK_ITEM_BYTES of weights or rows touched
 * (weights count once per token), so that a tiny model is not spent on hand-overs, and there are at most
 * WORK_ITEMS (forward_internal.h) per thread, so that the last one is short. What is smaller altogether stays on the
 * calling thread.
 */
#include "shared/model/forward_internal.h"

enum {
	/* A hand-over to a spinning thread costs about a microsecond, in which one core reads this from its cache. */
	WORK_ITEM_BYTES = 16 << 10,
	/* Rows are cut in multiples of this: a whole number of Q8 blocks, and of any kernel's row group. */
	WORK_ROWS = 32,
};

/* How many items to make of so many bytes. */
static uint32_t item_count(const struct forward *f, uint64_t bytes)
{
	uint64_t n = bytes / WORK_ITEM_BYTES;
	uint64_t most = (uint64_t)f->n_threads * WORK_ITEMS;
	if (f->n_threads == 1 || n < 2)
		return 1;
	return (uint32_t)(n < most ? n : most);
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

/* Rows of a task so that an item touches about `target` bytes. */
static void cut_rows(
	struct forward *f, uint32_t task, uint32_t rows, uint64_t bytes, uint64_t target)
{
	uint32_t blocks = (rows + WORK_ROWS - 1) / WORK_ROWS;
	uint64_t n = target ? bytes / target : 1;
	n = n < 1 ? 1 : n > blocks ? blocks : n;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t first = blocks * i / n * WORK_ROWS;
		uint64_t last = blocks * (i + 1) / n * WORK_ROWS;
		f->items[f->n_items++] = (struct work_item){
			task, (uint32_t)first, (uint32_t)(last < rows ? last : rows)};
	}
}

static uint64_t product_bytes(const struct matrix *w, uint32_t n)
{
	return (uint64_t)w->rows * w->row_bytes * n;
}

static void products_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct forward *f = arg;
	const struct work_item *i = &f->items[item];
	const struct product *p = &f->products[i->task];
	(void)thread;
	f->kernels->matmul(&p->w, i->first, i->last, p->x, p->n, p->y);
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
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		bytes += product_bytes(&f->products[i].w, f->products[i].n);
	uint32_t parts = item_count(f, bytes);
	f->n_items = 0;
	for (uint32_t i = 0; i < n; i++)
		cut_rows(f, i, f->products[i].w.rows,
			product_bytes(&f->products[i].w, f->products[i].n),
			parts > 1 ? bytes / parts : 0);
	run_items(f, products_item, parts);
}

static void ffn_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct forward *f = arg;
	const struct work_item *i = &f->items[item];
	const struct ffn_task *task = &f->ffn[i->task];
	const struct kernels *kernels = f->kernels;
	uint32_t rows = i->last - i->first;
	bool quantise = forward_quantised(&task->down);
	(void)thread;
	kernels->matmul(&task->gate, i->first, i->last, f->in_rows + task->first, task->n,
		f->gate_rows + task->first);
	kernels->matmul(&task->up, i->first, i->last, f->in_rows + task->first, task->n,
		f->up_rows + task->first);
	for (uint32_t a = task->first; a < task->first + task->n; a++) {
		size_t at = (size_t)a * f->ff_max + i->first;
		if (task->gate_bias)
			kernels->add(f->gate + at, task->gate_bias + i->first, rows);
		if (task->up_bias)
			kernels->add(f->up + at, task->up_bias + i->first, rows);
		if (f->model->config.arch->activation == ACTIVATION_SWIGLU_OAI)
			kernels->swiglu_oai(f->gate + at, f->up + at, rows, f->act + at);
		else
			kernels->silu_mul(f->gate + at, f->up + at, rows, f->act + at);
		/* Blocks are quantised one by one, and a cut falls between blocks. */
		if (quantise)
			kernels->quantise_q8(f->act + at, rows, f->act_q8 + at / Q8_BLOCK);
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
		cut_rows(f, i, f->ffn[i].gate.rows, 2 * product_bytes(&f->ffn[i].gate, f->ffn[i].n),
			parts > 1 ? bytes / parts : 0);
	run_items(f, ffn_item, parts);
}
