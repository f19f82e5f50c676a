/*
 * Gated delta nets (numerics.md; struct step_delta in kernels/steps.h). The states are taken through
 * a lane's tokens one after the other. Four threads have a column of a head's state, in registers:
 * each the rows whose sum is one of numerics.md's four.
 */
#pragma once

#include "kernels/gpu/kernels/attend_numbers.cuh"

#include "kernels/cpu/functions.h"
#include "shared/base/limits.h"

enum {
	DELTA_THREADS = 128,
	DELTA_SHARED_COLUMNS = 8, /* of a CTA that has its states in shared memory */
};
#define DELTA_L2_EPS 1e-6f /* whatever the model's epsilon */

struct delta_args {
	uint32_t n_k_heads, n_v_heads, d_k, d_v, taps;
	bool tiled;
	uint32_t n_lanes, window_floats;
	float eps, q_scale;
	struct dev_rows tokens; /* state_token */
	const struct state_lane *lanes;
	unsigned char *states;
	const float *conv, *a, *dt, *norm;
	struct dev_rows in, kept;
	const uint32_t *keep; /* or NULL */
	struct dev_rows mixed, ba; /* or absent */
	struct dev_rows alpha_beta, z, qkv, out, q8;
	/* Of a replay: the lanes, and the tokens of all of them; NULL during a pass. */
	const uint32_t *replayed, *accepted;
};

DEV const struct state_token *state_token_of(const delta_args *a, unsigned t)
{
	return (const struct state_token *)(a->tokens.at + t * a->tokens.stride);
}

DEV unsigned delta_keys(const delta_args *a)
{
	return a->n_k_heads * a->d_k;
}

DEV unsigned channels_of(const delta_args *a)
{
	return 2 * delta_keys(a) + a->n_v_heads * a->d_v;
}

/* A token's row: inputs of the convolution, decays, rates. */
DEV float *delta_input(const delta_args *a, unsigned t)
{
	return kept_row(a->in, a->keep, a->kept, t);
}

DEV float *delta_state(const delta_args *a, uint64_t offset)
{
	return (float *)(a->states + offset);
}

/* ---- Inputs. ---- */

/* Reorders the mixed matrix's result (q, k, v, z for each key head) to all q, all k, all v; and z.
 */
DEV void unmix(const delta_args *a, unsigned t)
{
	unsigned K = delta_keys(a), values = a->n_v_heads / a->n_k_heads * a->d_v;
	unsigned group = 2 * a->d_k + 2 * values;
	const float *from = float_row(a->mixed, t);
	float *row = delta_input(a, t), *z = float_row(a->z, t);

	for (unsigned i = threadIdx.x; i < group * a->n_k_heads; i += DELTA_THREADS) {
		unsigned g = i / group, at = i % group;

		if (at < a->d_k)
			row[g * a->d_k + at] = from[i];
		else if (at < 2 * a->d_k)
			row[K + g * a->d_k + at - a->d_k] = from[i];
		else if (at < 2 * a->d_k + values)
			row[2 * K + g * values + at - 2 * a->d_k] = from[i];
		else
			z[g * values + at - 2 * a->d_k - values] = from[i];
	}
}

/* See template_delta.h. */
DEV float softplus(float x)
{
	if (x > 20.0f)
		return x;
	float e = exp32(x), u = f_add(1.0f, e);

	return u == 1.0f ? e : f_mul(log32(u), f_div(e, f_sub(u, 1.0f)));
}

/* Grid: tokens. */
KERNEL delta_inputs(delta_args a)
{
	unsigned t = blockIdx.x, n = a.n_v_heads, group = n / a.n_k_heads;
	float *decay = delta_input(&a, t) + channels_of(&a);
	const float *given = float_row(a.alpha_beta, t);

	if (a.mixed.at)
		unmix(&a, t);
	for (unsigned h = threadIdx.x; h < n; h += DELTA_THREADS) {
		float alpha, beta;

		if (a.ba.at) {
			const float *of = float_row(a.ba, t) + h / group * 2 * group + h % group;

			beta = of[0];
			alpha = of[group];
		} else {
			alpha = given[h];
			beta = given[n + h];
		}
		decay[h] = exp32(f_mul(a.a[h], softplus(f_add(alpha, a.dt[h]))));
		decay[n + h] = sigmoid(beta);
	}
}

/* ---- Convolution. ---- */

/* Sets rows[tap] to what the convolution of token t reads, oldest first; NULL: zeros. */
DEV void window_rows(const delta_args *a, unsigned t, const float **rows)
{
	const struct state_lane *lane = &a->lanes[state_token_of(a, t)->lane];
	unsigned before = 0;
	int32_t at = (int32_t)t;

	for (unsigned tap = a->taps; tap-- > 0;) {
		if (at >= 0) {
			rows[tap] = delta_input(a, (unsigned)at);
			at = state_token_of(a, (unsigned)at)->before;
			continue;
		}
		before++;
		rows[tap] = lane->begins ? nullptr
					 : delta_state(a, lane->current) +
						   (size_t)(a->taps - 1 - before) * channels_of(a);
	}
}

/* Convolution, and for a head of queries or keys its L2 norm. Grid: (heads of queries, keys, values;
 * tokens). Shared memory: LIMIT_CONV_TAPS addresses, and d_k floats. */
KERNEL delta_convolve(delta_args a)
{
	struct shared {
		const float *rows[LIMIT_CONV_TAPS];
		float factor;
	};
	struct shared *s = &shared_memory<struct shared>();
	float *head = (float *)(s + 1);
	unsigned unit = blockIdx.x, t = a.accepted ? a.accepted[blockIdx.y] : blockIdx.y;
	unsigned K = delta_keys(&a), channels = channels_of(&a);
	const bool normed = unit < 2 * a.n_k_heads;
	unsigned n = normed ? a.d_k : a.d_v;
	unsigned first = normed ? unit * a.d_k : 2 * K + (unit - 2 * a.n_k_heads) * a.d_v;
	const struct state_token *token = state_token_of(&a, t);
	float *qkv = float_row(a.qkv, t) + first;

	if (threadIdx.x == 0)
		window_rows(&a, t, s->rows);
	__syncthreads();
	for (unsigned i = threadIdx.x; i < n; i += DELTA_THREADS) {
		float sum = 0;

		for (unsigned tap = 0; tap < a.taps; tap++)
			sum = f_fma(s->rows[tap] ? s->rows[tap][first + i] : 0.0f,
				a.conv[(size_t)tap * channels + first + i], sum);
		sum = silu(sum);
		if (normed)
			head[i] = sum;
		else
			qkv[i] = sum;
	}
	if (token->writes_window) {
		float *to = delta_state(&a, a.lanes[token->lane].next);

		for (unsigned tap = 1; tap < a.taps; tap++)
			for (unsigned i = threadIdx.x; i < n; i += DELTA_THREADS)
				to[(size_t)(tap - 1) * channels + first + i] =
					s->rows[tap] ? s->rows[tap][first + i] : 0.0f;
	}
	if (!normed)
		return;
	__syncthreads();
	if (threadIdx.x < 32) {
		float ss = warp_square_sum(head, n, threadIdx.x);

		if (threadIdx.x == 0)
			s->factor = f_div(1.0f, f_sqrt(f_add(ss, DELTA_L2_EPS)));
	}
	__syncthreads();
	for (unsigned i = threadIdx.x; i < n; i += DELTA_THREADS)
		qkv[i] = f_mul(f_mul(head[i], s->factor), unit < a.n_k_heads ? a.q_scale : 1.0f);
}

/* ---- States. ---- */

/* A thread's part of a column: rows part, part + 4, .. of column `column` of a value head. ROWS: of
 * them in registers; 0: they are in shared memory, 4 * columns floats apart. */
template <int ROWS> struct delta_column {
	float own[ROWS ? ROWS : 1];
	float *shared;
	unsigned part, column, columns, rows; /* rows: that the part has */
	bool real; /* the column exists */
	size_t at; /* of the part's first value among a layer's floats */
};

#define DELTA_EACH(c, i) \
	UNROLL for (unsigned i = 0; i < (ROWS ? ROWS : (c)->rows); i++) if (!ROWS || i < (c)->rows)

template <int ROWS> DEV float &delta_value(delta_column<ROWS> *c, unsigned i)
{
	return ROWS ? c->own[i] : c->shared[i * 4 * c->columns];
}

/* from NULL: the state before any token. */
template <int ROWS>
DEV void load_column(const delta_args *a, delta_column<ROWS> *c, const float *from)
{
	DELTA_EACH(c, i)
	delta_value(c, i) = from && c->real ? from[c->at + (size_t)i * 4 * a->d_v] : 0.0f;
}

template <int ROWS> DEV void store_column(const delta_args *a, delta_column<ROWS> *c, float *to)
{
	if (!c->real)
		return;
	DELTA_EACH(c, i)
	to[c->at + (size_t)i * 4 * a->d_v] = delta_value(c, i);
}

/* (r0 + r2) + (r1 + r3) of the four threads of a column. */
DEV float fold_parts(float x)
{
	x = f_add(x, __shfl_xor_sync(WARP_ALL, x, 2));
	return f_add(x, __shfl_xor_sync(WARP_ALL, x, 1));
}

/* Applies token t to the state and, if `out`, computes its output. qk: shared, [2][d_k]. */
template <int ROWS>
DEV void take_token(const delta_args *a, delta_column<ROWS> *c, unsigned t, unsigned head,
	unsigned key_head, bool out, float *qk)
{
	const float *qkv = float_row(a->qkv, t);
	const float *gate = delta_input(a, t) + channels_of(a) + head;
	size_t value = (size_t)head * a->d_v + c->column;
	float decay = gate[0], rate = gate[a->n_v_heads], m = 0, o = 0;
	float v = c->real ? qkv[2 * delta_keys(a) + value] : 0.0f;

	__syncthreads();
	for (unsigned i = threadIdx.x; i < a->d_k; i += blockDim.x) {
		qk[i] = qkv[key_head * a->d_k + i];
		qk[a->d_k + i] = qkv[delta_keys(a) + key_head * a->d_k + i];
	}
	__syncthreads();
	const float *q = qk + c->part, *k = qk + a->d_k + c->part;

	DELTA_EACH(c, i)
	m = f_fma(delta_value(c, i), k[4 * i], m);
	float d = f_mul(f_sub(v, f_mul(decay, fold_parts(m))), rate);

	DELTA_EACH(c, i)
	{
		float s = f_fma(k[4 * i], d, f_mul(delta_value(c, i), decay));

		delta_value(c, i) = s;
		o = f_fma(s, q[4 * i], o);
	}
	o = fold_parts(o);
	if (out && c->real && c->part == 0)
		float_row(a->out, t)[value] = o;
}

/* Restores the state before draft t when the state at hand is another branch's: starts after the
 * certain tokens and follows t's path. */
template <int ROWS>
DEV void go_back(const delta_args *a, delta_column<ROWS> *c, const float *from, unsigned t,
	int32_t last_certain, unsigned head, unsigned key_head, float *qk, uint32_t *path)
{
	unsigned n = 0;

	load_column<ROWS>(a, c, from);
	__syncthreads();
	for (int32_t i = state_token_of(a, t)->before; i != last_certain;
		i = state_token_of(a, (unsigned)i)->before) {
		if (threadIdx.x == 0)
			path[n] = (uint32_t)i;
		n++;
	}
	__syncthreads();
	while (n-- > 0)
		take_token<ROWS>(a, c, path[n], head, key_head, false, qk);
}

/* Grid: (columns / the CTA's, value heads, lanes); four threads a column. Shared memory: q and k,
 * the state if ROWS is 0, and the path of a draft. */
template <int ROWS> KERNEL delta_states(delta_args a)
{
	float *qk = &shared_memory<float>();
	unsigned head = blockIdx.y, columns = blockDim.x / 4;
	unsigned lane_at = a.replayed ? a.replayed[blockIdx.z] : blockIdx.z;
	unsigned key_head = a.tiled ? head % a.n_k_heads : head / (a.n_v_heads / a.n_k_heads);
	const struct state_lane *lane = &a.lanes[lane_at];
	const float *from = lane->begins ? nullptr : delta_state(&a, lane->current);
	delta_column<ROWS> c;

	c.part = threadIdx.x % 4;
	c.columns = columns;
	c.column = blockIdx.x * columns + threadIdx.x / 4;
	c.real = c.column < a.d_v;
	c.rows = (a.d_k - c.part + 3) / 4;
	c.at = a.window_floats + ((size_t)head * a.d_k + c.part) * a.d_v + c.column;
	c.shared = qk + 2 * a.d_k + threadIdx.x;
	uint32_t *path = (uint32_t *)(qk + 2 * a.d_k + (ROWS ? 0 : (a.d_k + 3) / 4 * blockDim.x));
	load_column<ROWS>(&a, &c, from);
	if (a.replayed) {
		for (unsigned i = 0; i < lane->n_accepted; i++)
			take_token<ROWS>(&a, &c, a.accepted[lane->accepted_first + i], head,
				key_head, false, qk);
		store_column<ROWS>(&a, &c, delta_state(&a, lane->next));
		return;
	}
	unsigned t = lane->first;

	if (lane->last_certain >= 0) {
		float *to = delta_state(&a, lane->next);

		for (; t != 0xffffffffu && a.keep[t] == 0xffffffffu;
			t = state_token_of(&a, t)->next)
			take_token<ROWS>(&a, &c, t, head, key_head, true, qk);
		store_column<ROWS>(&a, &c, to);
		from = to;
	}
	int32_t at = lane->last_certain;

	for (; t != 0xffffffffu; t = state_token_of(&a, t)->next) {
		if (state_token_of(&a, t)->before != at)
			go_back<ROWS>(
				&a, &c, from, t, lane->last_certain, head, key_head, qk, path);
		take_token<ROWS>(&a, &c, t, head, key_head, true, qk);
		at = (int32_t)t;
	}
}

/* ---- Output. ---- */

/* Norm of a head, gate, and the quantised form if a head is whole blocks. Grid: (value heads,
 * tokens). Shared memory: d_v + 1 floats. */
KERNEL delta_outputs(delta_args a)
{
	float *x = &shared_memory<float>();
	unsigned head = blockIdx.x, t = blockIdx.y;
	float *out = float_row(a.out, t) + (size_t)head * a.d_v;
	const float *z = float_row(a.z, t) + (size_t)head * a.d_v;

	for (unsigned i = threadIdx.x; i < a.d_v; i += DELTA_THREADS)
		x[i] = out[i];
	__syncthreads();
	if (threadIdx.x < 32) {
		float ss = warp_square_sum(x, a.d_v, threadIdx.x);

		if (threadIdx.x == 0)
			x[a.d_v] = f_div(1.0f, f_sqrt(f_add(f_div(ss, (float)a.d_v), a.eps)));
	}
	__syncthreads();
	for (unsigned i = threadIdx.x; i < a.d_v; i += DELTA_THREADS) {
		float y = f_mul(silu(z[i]), f_mul(f_mul(x[i], x[a.d_v]), a.norm[i]));

		out[i] = y;
		if (a.q8.at)
			warp_quantise(y, q8_row(a.q8, t) + ((size_t)head * a.d_v + i) / Q8_BLOCK);
	}
}
