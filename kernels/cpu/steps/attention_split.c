#include "kernels/cpu/steps/attention_split.h"

#include "shared/base/carve.h"
#include "shared/base/huge_pages.h"
#include "shared/base/limits.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

enum {
	/* with this many, threads finish at nearly the same time even if splits are not handed out
	 */
	UNITS_PER_THREAD = 4,
	INLINE_BYTES = 64 << 10, /* less work than this is not worth waking a thread */
	PREPARE_CELLS = 32, /* attending to this many cells takes as long as preparing a token */
};

/* Tokens first..first+n-1, which share a list of cells, and heads head..head+n_heads-1 of one KV
 * head. */
struct attention_unit {
	uint32_t first, n, kv_head, head, n_heads;
	uint32_t split, end; /* splits that any of its tokens attends to */
};

/* n tokens of a unit from `first` on; n 0: none. */
struct attention_queries {
	alignas(CACHE_LINE) const struct attention_unit *unit;
	uint32_t first, n;
};

/* How many tokens a unit may have, so that tokens times heads stay within a job's rows. */
static uint32_t unit_tokens(uint32_t n_heads)
{
	return n_heads < ATTENTION_ROWS ? ATTENTION_ROWS / n_heads : 1;
}

/* Called twice: to count the bytes, then to place the arrays. */
static void layout(
	struct attention_memory *m, const struct attention_limits *limits, struct carve *c)
{
	uint32_t n_heads = limits->n_heads, n_tokens = limits->n_tokens;
	size_t rows = (size_t)n_tokens * limits->n_kv_heads * n_heads;
	size_t blocks = (n_heads + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
	size_t job_rows = unit_tokens(n_heads) < n_tokens ? unit_tokens(n_heads) : n_tokens;
	size_t scratch;

	job_rows *= n_heads < ATTENTION_ROWS ? n_heads : ATTENTION_ROWS;
	scratch = limits->kernels->attention_scratch(
		(uint32_t)job_rows, limits->k_dim, limits->v_dim);
	m->n_threads = limits->n_threads;
	m->rows = limits->n_threads * UNITS_PER_THREAD * ATTENTION_ROWS;
	m->scratch_floats = round_lines(scratch * sizeof(float)) / sizeof(float);
	CARVE(c, m->most, rows);
	CARVE(c, m->sum, rows);
	CARVE(c, m->units, n_tokens * limits->n_kv_heads * blocks);
	CARVE(c, m->parts, (size_t)m->rows * (limits->v_dim + 2));
	CARVE(c, m->scratch, m->n_threads * m->scratch_floats);
	CARVE(c, m->kept, m->n_threads);
	CARVE(c, m->cells, (size_t)m->n_threads * ATTENTION_SPLIT);
}

size_t attention_memory_bytes(const struct attention_limits *limits)
{
	struct attention_memory m = {0};
	struct carve count = {0};

	layout(&m, limits, &count);
	return count.used;
}

int attention_memory_get(
	struct attention_memory *m, const struct attention_limits *limits, struct error *err)
{
	*m = (struct attention_memory){.memory = huge_pages_alloc(attention_memory_bytes(limits))};
	if (!m->memory)
		return error_set(err, ENOMEM, "no memory for the attention of a batch of %u tokens",
			limits->n_tokens);
	layout(m, limits, &(struct carve){m->memory, 0});
	return 0;
}

void attention_memory_put(struct attention_memory *m)
{
	free(m->memory);
	*m = (struct attention_memory){0};
}

struct pass {
	const struct attention_step *step;
	struct attention_memory *m;
	uint32_t n_units, unit_rows; /* unit_rows: rows of the largest unit */
	uint32_t splits; /* of the unit with the most */
	bool prepare; /* units begin with it */
	/* wave: splits of a unit that are handed out at once; first: the first of these, counted
	 * from the unit's own first split */
	uint32_t wave, first;
};

static uint32_t heads_all(const struct attention_step *step)
{
	return step->n_kv_heads * step->n_heads;
}

/* Makes units of the tokens from `first` on; returns how many tokens they cover. */
static uint32_t add_units(struct pass *pass, uint32_t first)
{
	const struct attention_step *step = pass->step;
	const struct attention_token *token = &step->tokens[first];
	uint32_t most = unit_tokens(step->n_heads), n = 0, low = UINT32_MAX, high = 0;

	for (; n < most && first + n < step->n_tokens && token[n].cells == token->cells; n++) {
		low = token[n].first < low ? token[n].first : low;
		high = token[n].last > high ? token[n].last : high;
	}
	for (uint32_t h = 0; h < step->n_kv_heads; h++)
		for (uint32_t head = 0; head < step->n_heads; head += ATTENTION_ROWS) {
			uint32_t left = step->n_heads - head;
			uint32_t n_heads = left < ATTENTION_ROWS ? left : ATTENTION_ROWS;

			pass->m->units[pass->n_units++] = (struct attention_unit){first, n, h, head,
				n_heads, low / ATTENTION_SPLIT,
				(high + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT};
			if (n * n_heads > pass->unit_rows)
				pass->unit_rows = n * n_heads;
		}
	low /= ATTENTION_SPLIT;
	high = (high + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT;
	pass->splits = high - low > pass->splits ? high - low : pass->splits;
	return n;
}

/* The running state of a token's heads in a unit. */
static struct attention_state state_of(
	const struct pass *pass, const struct attention_unit *unit, uint32_t token)
{
	const struct attention_step *step = pass->step;
	size_t head = (size_t)unit->kv_head * step->n_heads + unit->head;
	size_t at = (size_t)token * heads_all(step) + head;

	return (struct attention_state){step->tokens[token].out + head * step->out_stride,
		step->out_stride, pass->m->most + at, pass->m->sum + at};
}

/* Place `slot` among the parts; each has room for the rows of the largest unit. */
static struct attention_state part_of(const struct pass *pass, uint32_t slot)
{
	uint32_t v_dim = pass->step->v_dim;
	float *out = pass->m->parts + (size_t)slot * pass->unit_rows * (v_dim + 2);
	float *most = out + (size_t)pass->unit_rows * v_dim;

	return (struct attention_state){out, v_dim, most, most + pass->unit_rows};
}

static struct attention_state row_of(struct attention_state state, size_t row)
{
	state.out += row * state.out_stride;
	state.most += row;
	state.sum += row;
	return state;
}

/* The state before the first split: nothing, or a sink, which is a cell without a value. */
static void begin(const struct pass *pass, const struct attention_unit *unit, uint32_t token)
{
	const struct attention_step *step = pass->step;
	struct attention_state state = state_of(pass, unit, token);

	for (uint32_t h = 0; h < unit->n_heads; h++) {
		state.most[h] =
			step->sinks ? step->sinks[unit->kv_head * step->n_heads + unit->head + h]
				    : -INFINITY;
		state.sum[h] = step->sinks ? 1 : 0;
		memset(state.out + h * state.out_stride, 0, step->v_dim * sizeof(float));
	}
}

static bool attends(const struct attention_token *token, uint32_t split)
{
	return token->first < (split + 1) * ATTENTION_SPLIT &&
	       token->last > split * ATTENTION_SPLIT;
}

/* True when the token finds all its cells of this split in its list. */
static bool listed(const struct attention_token *token, uint32_t split)
{
	uint32_t end = (split + 1) * ATTENTION_SPLIT;

	return (token->last < end ? token->last : end) <= token->shared;
}

/* The cells of positions low..high-1, such that [0] is that of the split's first position: the list
 * itself if possible, otherwise a copy in the thread's memory. */
static const uint32_t *split_cells(const struct pass *pass, uint32_t token, uint32_t split,
	uint32_t low, uint32_t high, uint32_t thread)
{
	const struct attention_step *step = pass->step;
	const struct attention_token *t = &step->tokens[token];
	uint32_t *own = pass->m->cells + (size_t)thread * ATTENTION_SPLIT;
	uint32_t base = split * ATTENTION_SPLIT;
	/* Tokens that are taken together find all their cells in the list. */
	uint32_t shared = listed(t, split) ? high : t->shared;

	if (shared == high && !step->cell_of)
		return t->cells + base;
	for (uint32_t i = low; i < shared; i++)
		own[i - base] = t->cells[i];
	if (shared < high) {
		uint32_t from = shared > low ? shared : low;

		step->tail(step->tail_arg, step->first + token, from, high, own + (from - base));
	}
	for (uint32_t i = low - base; step->cell_of && i < high - base; i++)
		own[i] = step->cell_of[own[i]];
	return own;
}

/* True when the thread's scratch already holds these queries; records that it now does. */
static bool keep_queries(struct attention_queries *kept, const struct attention_unit *unit,
	uint32_t first, uint32_t n)
{
	bool same = kept->unit == unit && kept->first == first && kept->n == n;

	*kept = (struct attention_queries){unit, first, n};
	return same;
}

/* Attends for n tokens of a unit, from `first` on, that share their list of cells in this split. */
static void attend_tokens(const struct pass *pass, const struct attention_unit *unit,
	uint32_t split, uint32_t first, uint32_t n, bool ahead, struct attention_state part,
	uint32_t thread)
{
	const struct attention_step *step = pass->step;
	uint32_t base = split * ATTENTION_SPLIT, low = UINT32_MAX, high = 0, longest = 0;
	size_t head = (size_t)unit->kv_head * step->n_heads + unit->head;
	struct attention_query queries[ATTENTION_ROWS];

	for (uint32_t i = 0; i < n; i++) {
		const struct attention_token *token = &step->tokens[first + i];
		uint32_t from = token->first > base ? token->first : base;
		uint32_t to =
			token->last < base + ATTENTION_SPLIT ? token->last : base + ATTENTION_SPLIT;

		queries[i] = (struct attention_query){
			token->q + head * step->q_stride, from - base, to > from ? to - base : 0};
		if (from >= to)
			continue;
		low = from < low ? from : low;
		high = to > high ? to : high;
		longest = token->last > longest ? token->last : longest;
	}
	const struct attention_job job = {
		.n_cells = high - base,
		.n_ahead = ahead && !step->cell_of && high == base + ATTENTION_SPLIT &&
					   listed(&step->tokens[first], split + 1)
				   ? (longest - high < ATTENTION_CHUNK ? longest - high
								       : ATTENTION_CHUNK)
				   : 0,
		.cells = split_cells(pass, first, split, low, high, thread),
		.kv_type = step->kv_type,
		.k = step->k + unit->kv_head * step->k_head_bytes,
		.v = step->v + unit->kv_head * step->v_head_bytes,
		.k_cell_bytes = step->k_cell_bytes,
		.v_cell_bytes = step->v_cell_bytes,
		.k_turned = step->k_turned,
		.v_paired = step->v_paired,
		.k_dim = step->k_dim,
		.v_dim = step->v_dim,
		.n_tokens = n,
		.n_heads = unit->n_heads,
		.queries = queries,
		.q_stride = step->q_stride,
		.q_kept = keep_queries(&pass->m->kept[thread], unit, first, n),
		.scale = step->scale,
		.part = row_of(part, (size_t)(first - unit->first) * unit->n_heads),
		.scratch = pass->m->scratch + thread * pass->m->scratch_floats,
	};
	step->kernels->attention(&job);
}

/* Computes one split of a unit into `part`. ahead: the same thread takes the next split afterwards.
 */
static void attend_split(const struct pass *pass, const struct attention_unit *unit, uint32_t split,
	bool ahead, struct attention_state part, uint32_t thread)
{
	const struct attention_token *tokens = pass->step->tokens;
	uint32_t end = unit->first + unit->n;

	for (uint32_t t = unit->first, n; t < end; t += n) {
		n = 1;
		if (!attends(&tokens[t], split))
			continue;
		while (listed(&tokens[t], split) && t + n < end && attends(&tokens[t + n], split) &&
			listed(&tokens[t + n], split))
			n++;
		attend_tokens(pass, unit, split, t, n, ahead, part, thread);
	}
}

static void join(const struct pass *pass, const struct attention_unit *unit, uint32_t split,
	uint32_t token, struct attention_state part)
{
	const struct attention_step *step = pass->step;
	struct attention_state into = state_of(pass, unit, token);

	part = row_of(part, (size_t)(token - unit->first) * unit->n_heads);
	if (attends(&step->tokens[token], split))
		step->kernels->attention_join(&into, &part, unit->n_heads, step->v_dim);
}

static void finish(const struct pass *pass, const struct attention_unit *unit, uint32_t token)
{
	const struct attention_step *step = pass->step;
	struct attention_state state = state_of(pass, unit, token);

	step->kernels->attention_finish(&state, unit->n_heads, step->v_dim);
	/* If there are more heads than a unit takes, the last block's thread may not be the last to
	 * finish. */
	if (step->done && step->n_heads <= ATTENTION_ROWS)
		step->done(step->arg, step->first + token, unit->kv_head);
}

/* Computes a whole unit on one thread. */
static void run_unit(void *arg, uint32_t item, uint32_t thread)
{
	const struct pass *pass = arg;
	const struct attention_unit *unit = &pass->m->units[item];
	struct attention_state part = part_of(pass, thread);

	for (uint32_t t = unit->first; pass->prepare && t < unit->first + unit->n; t++)
		pass->step->prepare(pass->step->arg, pass->step->first + t, unit->kv_head);
	for (uint32_t t = unit->first; t < unit->first + unit->n; t++)
		begin(pass, unit, t);
	for (uint32_t split = unit->split; split < unit->end; split++) {
		attend_split(pass, unit, split, split + 1 < unit->end, part, thread);
		for (uint32_t t = unit->first; t < unit->first + unit->n; t++)
			join(pass, unit, split, t, part);
	}
	for (uint32_t t = unit->first; t < unit->first + unit->n; t++)
		finish(pass, unit, t);
}

/* Computes one split of the wave. The thread that takes one usually takes the next as well. */
static void run_split(void *arg, uint32_t item, uint32_t thread)
{
	const struct pass *pass = arg;
	const struct attention_unit *unit = &pass->m->units[item / pass->wave];
	uint32_t at = item % pass->wave, split = unit->split + pass->first + at;

	if (split < unit->end)
		attend_split(pass, unit, split, at + 1 < pass->wave && split + 1 < unit->end,
			part_of(pass, item), thread);
}

/* Joins the splits of a wave to the state of one token of a unit. */
static void join_wave(void *arg, uint32_t item, uint32_t thread)
{
	const struct pass *pass = arg;
	const struct attention_unit *unit = pass->m->units;
	uint32_t token = item, index = 0;

	(void)thread;
	for (; token >= unit->n; unit++, index++)
		token -= unit->n;
	token += unit->first;
	if (pass->first == 0)
		begin(pass, unit, token);
	for (uint32_t i = 0; i < pass->wave; i++) {
		uint32_t split = unit->split + pass->first + i;

		if (split < unit->end)
			join(pass, unit, split, token, part_of(pass, index * pass->wave + i));
	}
}

static void finish_token(void *arg, uint32_t item, uint32_t thread)
{
	const struct pass *pass = arg;
	const struct attention_unit *unit = pass->m->units;
	uint32_t token = item;

	(void)thread;
	for (; token >= unit->n; unit++)
		token -= unit->n;
	finish(pass, unit, unit->first + token);
}

static void run_items(
	const struct pass *pass, void (*fn)(void *, uint32_t, uint32_t), uint32_t n, bool small)
{
	if (!small && n > 1) {
		pool_run(pass->step->pool, fn, (void *)pass, n);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		fn((void *)pass, i, 0);
}

static void run_waves(struct pass *pass, bool small)
{
	uint32_t n_tokens = 0;

	for (uint32_t u = 0; u < pass->n_units; u++)
		n_tokens += pass->m->units[u].n;
	assert(pass->n_units > 0 && pass->unit_rows > 0);
	pass->wave = pass->m->rows / (pass->unit_rows * pass->n_units);
	assert(pass->wave > 0);
	for (pass->first = 0; pass->first < pass->splits; pass->first += pass->wave) {
		if (pass->wave > pass->splits - pass->first)
			pass->wave = pass->splits - pass->first;
		run_items(pass, run_split, pass->n_units * pass->wave, small);
		run_items(pass, join_wave, n_tokens, small);
	}
	run_items(pass, finish_token, n_tokens, small);
}

void attention_run(const struct attention_step *step, struct attention_memory *m)
{
	struct pass pass = {.step = step, .m = m};
	uint64_t cells = step->prepare ? (uint64_t)PREPARE_CELLS * step->n_tokens : 0;
	uint32_t most = step->n_tokens < m->n_threads ? step->n_tokens : m->n_threads;
	bool small, whole;

	for (uint32_t t = 0; t < step->n_tokens; t++)
		cells += step->tokens[t].last - step->tokens[t].first;
	for (uint32_t t = 0; t < m->n_threads; t++)
		m->kept[t].n = 0;
	small = m->n_threads == 1 || cells * heads_all(step) * step->k_dim < INLINE_BYTES;
	for (uint32_t t = 0; t < step->n_tokens;)
		t += add_units(&pass, t);
	whole = small || pass.splits <= 1 || pass.n_units >= m->n_threads * UNITS_PER_THREAD;
	/* With more threads than heads, many tokens are prepared on all threads. */
	pass.prepare = step->prepare && whole && pass.n_units == step->n_kv_heads &&
		       (small || pass.n_units >= most);
	if (step->prepare && !pass.prepare)
		step->prepare_all(step->arg);
	if (whole)
		run_items(&pass, run_unit, pass.n_units, small);
	else
		run_waves(&pass, false);
	for (uint32_t t = 0; step->done && step->n_heads > ATTENTION_ROWS && t < step->n_tokens;
		t++)
		for (uint32_t h = 0; h < step->n_kv_heads; h++)
			step->done(step->arg, step->first + t, h);
}
