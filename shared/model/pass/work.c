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

void pass_items(struct forward *f, uint32_t n, size_t bytes,
	void (*fn)(struct forward *f, uint32_t item, uint32_t thread))
{
	uint32_t parts = item_count(f, bytes);
	struct item_work work = {f, fn, n, parts < n ? parts : n};
	if (n > 0)
		run(f, items_part, &work, work.n_parts);
}
