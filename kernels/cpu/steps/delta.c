/* The steps `delta` and `replay`: one layer of gated delta nets, and the effect of accepted drafts
 * on its states. */
#include "kernels/cpu/steps/steps.h"

#include <string.h>

/* The reference uses this value, whatever the model's epsilon. */
#define L2_EPS 1e-6f

struct delta {
	struct cpu_queue *q;
	const struct step_delta *s;
	const struct step_replay *replay; /* NULL during a pass */
};

static struct state_token *state_token_at(const struct step_delta *s, uint32_t t)
{
	return (struct state_token *)row_at(&s->tokens, t);
}

static const struct state_lane *lane_at(const struct step_delta *s, uint32_t lane)
{
	return (const struct state_lane *)place_at(s->lanes) + lane;
}

static size_t keys(const struct step_delta *s)
{
	return (size_t)s->n_k_heads * s->d_k;
}

static uint32_t channels(const struct step_delta *s)
{
	return delta_channels(s->n_k_heads, s->d_k, s->n_v_heads, s->d_v);
}

/* A token's row: inputs of the convolution, decays, rates. */
static float *input(const struct step_delta *s, uint32_t t)
{
	return kept_at(&s->in, s->keep, &s->kept, t);
}

static bool is_draft(const struct step_delta *s, uint32_t t)
{
	return ((const uint32_t *)place_at(s->keep))[t] != UINT32_MAX;
}

static void *state_at(const struct step_delta *s, uint64_t offset)
{
	return (unsigned char *)place_at(s->states) + offset;
}

/* This layer's floats of a lane's state before the batch, NULL when there is none; and of its next
 * state. */
static const float *current(const struct step_delta *s, const struct state_lane *lane)
{
	return lane->begins ? NULL : state_at(s, lane->current);
}

static float *next(const struct step_delta *s, const struct state_lane *lane)
{
	return state_at(s, lane->next);
}

/* Reorders the mixed matrix's result (q, k, v, z for each key head) to all q, all k, all v; and z.
 */
static void unmix(const struct step_delta *s, uint32_t t)
{
	size_t K = keys(s), values = (size_t)s->n_v_heads / s->n_k_heads * s->d_v;
	float *row = input(s, t), *z = floats_at(&s->z, t);
	const float *from = floats_at(&s->mixed, t);

	for (size_t g = 0; g < s->n_k_heads; g++) {
		memcpy(row + g * s->d_k, from, s->d_k * sizeof(*from));
		from += s->d_k;
		memcpy(row + K + g * s->d_k, from, s->d_k * sizeof(*from));
		from += s->d_k;
		memcpy(row + 2 * K + g * values, from, values * sizeof(*from));
		from += values;
		memcpy(z + g * values, from, values * sizeof(*from));
		from += values;
	}
}

/* Writes the heads' decays and rates into the token's row. */
static void gates(const struct delta *d, uint32_t t)
{
	const struct step_delta *s = d->s;
	uint32_t n = s->n_v_heads, group = n / s->n_k_heads;
	float *decay = input(s, t) + channels(s);
	float *alpha = floats_at(&s->alpha_beta, t), *beta = alpha + n;

	for (uint32_t h = 0; s->ba.buffer && h < n; h++) {
		const float *of = floats_at(&s->ba, t) + h / group * 2 * group + h % group;

		beta[h] = of[0];
		alpha[h] = of[group];
	}
	d->q->kernels->delta_gates(s->a, s->dt, alpha, beta, n, decay, decay + n);
}

static void input_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct delta *d = arg;

	(void)thread;
	if (d->s->mixed.buffer)
		unmix(d->s, t);
	gates(d, t);
}

static void convolve(const struct delta *d, uint32_t t)
{
	const struct step_delta *s = d->s;
	const struct kernels *kernels = d->q->kernels;
	const struct state_token *token = state_token_at(s, t);
	const struct state_lane *lane = lane_at(s, token->lane);
	const float *window = current(s, lane);
	const float *rows[LIMIT_CONV_TAPS];
	uint32_t before_window = 0, n = channels(s);
	float *qkv = floats_at(&s->qkv, t);
	int32_t at = (int32_t)t;

	for (uint32_t tap = s->taps; tap-- > 0;) {
		if (at >= 0) {
			rows[tap] = input(s, (uint32_t)at);
			at = state_token_at(s, (uint32_t)at)->before;
			continue;
		}
		before_window++;
		rows[tap] = window ? window + (size_t)(s->taps - 1 - before_window) * n
				   : d->q->delta_zeros;
	}
	kernels->conv_silu(rows, (const float *)place_at(s->conv), s->taps, n, qkv);
	for (uint32_t h = 0; h < 2 * s->n_k_heads; h++) {
		float *head = qkv + (size_t)h * s->d_k;

		kernels->l2_norm(head, L2_EPS, h < s->n_k_heads ? s->q_scale : 1, s->d_k, head);
	}
	if (!token->writes_window)
		return;
	float *to = next(s, lane);
	for (uint32_t tap = 1; tap < s->taps; tap++)
		memcpy(to + (size_t)(tap - 1) * n, rows[tap], n * sizeof(*to));
}

static void conv_row(void *arg, uint32_t t, uint32_t thread)
{
	(void)thread;
	convolve(arg, t);
}

static uint32_t accepted(const struct delta *d, uint32_t i)
{
	return ((const uint32_t *)place_at(d->replay->accepted))[i];
}

static void replay_conv(void *arg, uint32_t item, uint32_t thread)
{
	const struct delta *d = arg;

	(void)thread;
	convolve(d, accepted(d, item));
}

/* ---- States. ---- */

/* DELTA_COLUMNS columns of one head's state in a lane, or those that are left. */
struct columns {
	const struct delta *d;
	const struct state_lane *lane;
	uint32_t head, key_head, first, n;
	size_t at; /* offset of the first column in a layer's floats */
	float *state; /* [d_k][DELTA_COLUMNS]; belongs to the thread */
};

static uint32_t parts(const struct step_delta *s)
{
	return (s->d_v + DELTA_COLUMNS - 1) / DELTA_COLUMNS;
}

static struct columns columns_of(const struct delta *d, uint32_t item, uint32_t thread)
{
	const struct step_delta *s = d->s;
	uint32_t head = item / parts(s) % s->n_v_heads, first = item % parts(s) * DELTA_COLUMNS;
	uint32_t lane = item / parts(s) / s->n_v_heads;

	if (d->replay)
		lane = ((const uint32_t *)place_at(d->replay->lanes))[lane];
	return (struct columns){
		.d = d,
		.lane = lane_at(s, lane),
		.head = head,
		.key_head = s->tiled ? head % s->n_k_heads : head / (s->n_v_heads / s->n_k_heads),
		.first = first,
		.n = s->d_v - first < DELTA_COLUMNS ? s->d_v - first : DELTA_COLUMNS,
		.at = s->window_floats + (size_t)head * s->d_k * s->d_v + first,
		.state = d->q->delta_state + (size_t)thread * s->d_k * DELTA_COLUMNS,
	};
}

static uint32_t n_columns(const struct step_delta *s, uint32_t n_lanes)
{
	return n_lanes * s->n_v_heads * parts(s);
}

/* from: a layer's floats; NULL: the state before any token. */
static void load_columns(const struct columns *c, const float *from)
{
	const struct step_delta *s = c->d->s;

	if (!from) {
		memset(c->state, 0, (size_t)s->d_k * DELTA_COLUMNS * sizeof(*c->state));
		return;
	}
	for (size_t i = 0; i < s->d_k; i++)
		memcpy(c->state + i * DELTA_COLUMNS, from + c->at + i * s->d_v,
			c->n * sizeof(*from));
}

static void store_columns(const struct columns *c, float *to)
{
	const struct step_delta *s = c->d->s;

	for (size_t i = 0; i < s->d_k; i++)
		memcpy(to + c->at + i * s->d_v, c->state + i * DELTA_COLUMNS, c->n * sizeof(*to));
}

/* Applies the token to the state and computes its output. */
static void take_token(const struct columns *c, uint32_t t, bool out)
{
	const struct step_delta *s = c->d->s;
	const float *qkv = floats_at(&s->qkv, t), *decay = input(s, t) + channels(s) + c->head;
	size_t value = (size_t)c->head * s->d_v + c->first;
	const struct delta_step job = {
		.state = c->state,
		.stride = DELTA_COLUMNS,
		.d_k = s->d_k,
		.columns = c->n,
		.q = qkv + (size_t)c->key_head * s->d_k,
		.k = qkv + keys(s) + (size_t)c->key_head * s->d_k,
		.v = qkv + 2 * keys(s) + value,
		.decay = decay[0],
		.rate = decay[s->n_v_heads],
		.out = out ? floats_at(&s->out, t) + value : NULL,
	};

	c->d->q->kernels->delta_step(&job);
}

/* Restores the state before draft t when the state at hand is another branch's: starts after the
 * certain tokens and follows t's path. */
static void go_back(const struct columns *c, const float *from, uint32_t t, uint32_t *path)
{
	const struct step_delta *s = c->d->s;
	uint32_t n = 0;

	load_columns(c, from);
	for (int32_t i = state_token_at(s, t)->before; i != c->lane->last_certain;
		i = state_token_at(s, (uint32_t)i)->before)
		path[n++] = (uint32_t)i;
	while (n-- > 0)
		take_token(c, path[n], false);
}

static void pass_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct delta *d = arg;
	const struct step_delta *s = d->s;
	struct columns c = columns_of(d, item, thread);
	const float *from = current(s, c.lane);
	uint32_t t = c.lane->first;

	load_columns(&c, from);
	if (c.lane->last_certain >= 0) {
		float *to = next(s, c.lane);

		for (; t != UINT32_MAX && !is_draft(s, t); t = state_token_at(s, t)->next)
			take_token(&c, t, true);
		store_columns(&c, to);
		from = to;
	}
	int32_t at = c.lane->last_certain;
	for (; t != UINT32_MAX; t = state_token_at(s, t)->next) {
		if (state_token_at(s, t)->before != at)
			go_back(&c, from, t,
				d->q->delta_path + (size_t)thread * d->q->limits.delta_drafts);
		take_token(&c, t, true);
		at = (int32_t)t;
	}
}

static void replay_item(void *arg, uint32_t item, uint32_t thread)
{
	const struct delta *d = arg;
	struct columns c = columns_of(d, item, thread);

	load_columns(&c, current(d->s, c.lane));
	for (uint32_t i = 0; i < c.lane->n_accepted; i++)
		take_token(&c, accepted(d, c.lane->accepted_first + i), false);
	store_columns(&c, next(d->s, c.lane));
}

/* Norm of each head, gate, and the quantised form for the output product. */
static void output_row(void *arg, uint32_t t, uint32_t thread)
{
	const struct delta *d = arg;
	const struct step_delta *s = d->s;
	const struct kernels *kernels = d->q->kernels;
	uint32_t V = s->n_v_heads * s->d_v;
	float *o = floats_at(&s->out, t);

	(void)thread;
	for (uint32_t h = 0; h < s->n_v_heads; h++) {
		float *head = o + (size_t)h * s->d_v;

		kernels->rms_norm(head, s->norm, s->eps, s->d_v, head);
	}
	kernels->silu_mul(floats_at(&s->z, t), o, V, o);
	if (s->out_q8.buffer)
		kernels->quantise_q8(o, V, q8_at(&s->out_q8, t));
}

static size_t state_bytes(const struct step_delta *s)
{
	return (size_t)s->n_v_heads * s->d_k * s->d_v * sizeof(float);
}

void cpu_delta(struct queue *queue, const struct step_delta *s)
{
	struct cpu_queue *q = cpu_queue(queue);
	struct delta d = {q, s, NULL};
	uint32_t n = s->tokens.n;
	size_t row_bytes = channels(s) * sizeof(float);

	assert(channels(s) <= q->limits.delta_channels && s->d_k <= q->limits.delta_d_k);
	work_items(q, n, n * row_bytes, input_row, &d);
	/* After input_row for all tokens: a token's convolution reads the rows of those before it.
	 */
	work_items(q, n, n * 2 * s->taps * row_bytes, conv_row, &d);
	work_items(q, n_columns(s, s->n_lanes), (s->n_lanes + n) * state_bytes(s), pass_item, &d);
	work_items(q, n, n * 2 * row_bytes, output_row, &d);
}

void cpu_replay(struct queue *queue, const struct step_replay *r)
{
	struct cpu_queue *q = cpu_queue(queue);
	const struct step_delta *s = &r->delta;
	struct delta d = {q, s, r};
	size_t row_bytes = (channels(s) + 2 * s->n_v_heads) * sizeof(float);

	work_items(q, r->n_accepted, r->n_accepted * s->taps * row_bytes, replay_conv, &d);
	work_items(q, n_columns(s, r->n_lanes), (r->n_lanes + r->n_accepted) * state_bytes(s),
		replay_item, &d);
}
