/* One layer of gated delta nets, and its part in a replay. delta_net.h has the definitions. */
#include "shared/model/pass/delta_net.h"

#include <string.h>

/* As the reference has it, whatever the model's epsilon. */
#define L2_EPS 1e-6f

static const struct delta_weights *weights(const struct forward *f)
{
	return &f->model->layers[f->layer].delta;
}

static bool any_quantised(const struct delta_weights *w)
{
	const struct matrix *in[] = {&w->qkv, &w->z, &w->mixed, &w->ba, &w->beta, &w->alpha};
	bool any = false;
	for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++)
		any = any || (in[i]->data && forward_quantised(in[i]));
	return any;
}

void delta_set_rows(struct forward *f, uint32_t index)
{
	struct delta_net *d = f->delta;
	for (uint32_t t = 0; t < f->n; t++)
		d->rows[t] = d->keep[t] == UINT32_MAX
				     ? d->certain + (size_t)t * d->row_floats
				     : d->kept + ((size_t)index * d->n_keep + d->keep[t]) *
							 d->row_floats;
}

static void project(struct forward *f)
{
	struct delta_net *d = f->delta;
	const struct delta_weights *w = weights(f);
	const struct delta_config *delta = &f->model->config.delta;
	size_t V = (size_t)delta->n_v_heads * delta->d_v, H = delta->n_v_heads;
	struct inputs in = inputs_of(f, f->h, f->h_q8, f->model->config.n_embd);
	struct rows alpha = floats_of(f, d->alpha_beta, 2 * H);
	const struct {
		const struct matrix *w;
		struct rows y;
	} all[] = {{&w->qkv, floats_of(f, d->certain, d->row_floats)},
		{&w->z, floats_of(f, d->z, V)},
		{&w->mixed, floats_of(f, d->mixed, d->channels + V)},
		{&w->ba, floats_of(f, d->ba, 2 * H)}, {&w->alpha, alpha},
		{&w->beta, floats_of(f, d->alpha_beta + H, 2 * H)}};
	struct step_product products[STEP_NEXT];
	struct step_products step = {.of = products};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i].w->data)
			products[step.n++] = product_of(all[i].w, in, all[i].y);
	if (w->qkv.data) {
		products[0].keep = batch_place(f, d->keep);
		products[0].kept = floats_of(
			f, d->kept + (size_t)w->index * d->n_keep * d->row_floats, d->row_floats);
	}
	next_matrix(f, &w->out, &step.next);
	f->queue->ops->products(f->queue, &step);
}

/* From the mixed matrix's order (per key head q, k, v, z) to all q, all k, all v; and z. */
static void unmix(const struct forward *f, uint32_t t)
{
	struct delta_net *d = f->delta;
	const struct delta_config *delta = &f->model->config.delta;
	size_t K = (size_t)delta->n_k_heads * delta->d_k;
	size_t values = (size_t)delta->n_v_heads / delta->n_k_heads * delta->d_v;
	float *z = d->z + (size_t)t * delta->n_v_heads * delta->d_v;
	const float *from =
		d->mixed + (size_t)t * (d->channels + (size_t)delta->n_v_heads * delta->d_v);
	for (size_t g = 0; g < delta->n_k_heads; g++) {
		memcpy(d->rows[t] + g * delta->d_k, from, delta->d_k * sizeof(*from));
		from += delta->d_k;
		memcpy(d->rows[t] + K + g * delta->d_k, from, delta->d_k * sizeof(*from));
		from += delta->d_k;
		memcpy(d->rows[t] + 2 * K + g * values, from, values * sizeof(*from));
		from += values;
		memcpy(z + g * values, from, values * sizeof(*from));
		from += values;
	}
}

/* Decays and rates of the heads, into the token's row. */
static void gates(const struct forward *f, uint32_t t)
{
	struct delta_net *d = f->delta;
	const struct delta_weights *w = weights(f);
	uint32_t n = f->model->config.delta.n_v_heads;
	uint32_t group = n / f->model->config.delta.n_k_heads;
	float *decay = d->rows[t] + d->channels;
	float *alpha = d->alpha_beta + (size_t)t * 2 * n, *beta = alpha + n;
	if (w->ba.data) {
		for (uint32_t h = 0; h < n; h++) {
			const float *of =
				d->ba + (size_t)t * 2 * n + h / group * 2 * group + h % group;
			beta[h] = of[0];
			alpha[h] = of[group];
		}
	}
	f->kernels->delta_gates(w->a, w->dt, alpha, beta, n, decay, decay + n);
}

/* A layer's floats of the sequence's current state, NULL for that after no tokens; and those of the next one. */
static const float *current(
	const struct forward *f, const struct recurrent_seq *seq, uint32_t index)
{
	size_t at = recurrent_current(&f->kv->states, seq, index);
	return seq->n == 0 ? NULL : (const float *)(const void *)(f->kv->store.host + at);
}

static float *next(const struct forward *f, const struct recurrent_seq *seq, uint32_t index)
{
	return (float *)(void *)(f->kv->store.host + recurrent_next(&f->kv->states, seq, index));
}

void delta_conv(struct forward *f, uint32_t index, uint32_t t)
{
	struct delta_net *d = f->delta;
	const struct delta_config *delta = &f->model->config.delta;
	const struct kv_seq *seq = d->lanes[d->lane_of[t]].seq;
	const float *window = current(f, &seq->state, index);
	const float *rows[LIMIT_CONV_TAPS];
	uint32_t before_window = 0;
	int32_t at = (int32_t)t;
	for (uint32_t tap = delta->taps; tap-- > 0;) {
		if (at >= 0) {
			rows[tap] = d->rows[at];
			at = d->before[at];
			continue;
		}
		before_window++;
		rows[tap] =
			window ? window + (size_t)(delta->taps - 1 - before_window) * d->channels
			       : d->zeros;
	}
	float *qkv = d->qkv + (size_t)t * d->channels;
	f->kernels->conv_silu(rows, d->conv + (size_t)index * delta->taps * d->channels,
		delta->taps, d->channels, qkv);
	for (uint32_t h = 0; h < 2 * delta->n_k_heads; h++) {
		float *head = qkv + (size_t)h * delta->d_k;
		f->kernels->l2_norm(
			head, L2_EPS, h < delta->n_k_heads ? d->q_scale : 1, delta->d_k, head);
	}
	if (!d->writes_window[t])
		return;
	float *to = next(f, &seq->state, index);
	for (uint32_t tap = 1; tap < delta->taps; tap++)
		memcpy(to + (size_t)(tap - 1) * d->channels, rows[tap], d->channels * sizeof(*to));
}

static void input_token(struct forward *f, uint32_t t)
{
	if (weights(f)->mixed.data)
		unmix(f, t);
	gates(f, t);
}

static void conv_token(struct forward *f, uint32_t t)
{
	delta_conv(f, weights(f)->index, t);
}

/* DELTA_COLUMNS columns, or what is left of them, of one head's state in a lane. */
struct columns {
	struct forward *f;
	const struct delta_lane *lane;
	uint32_t index, head, key_head, first, n;
	size_t at; /* of the first column in a layer's floats */
	float *state; /* [d_k][DELTA_COLUMNS], the thread's */
};

static struct columns columns_of(struct forward *f, uint32_t index, uint32_t item, uint32_t thread)
{
	const struct delta_config *delta = &f->model->config.delta;
	struct delta_net *d = f->delta;
	uint32_t parts = (delta->d_v + DELTA_COLUMNS - 1) / DELTA_COLUMNS;
	uint32_t head = item / parts % delta->n_v_heads, first = item % parts * DELTA_COLUMNS;
	uint32_t lane = item / parts / delta->n_v_heads;
	return (struct columns){
		.f = f,
		.lane = &d->lanes[d->n_replayed ? d->replayed[lane] : lane],
		.index = index,
		.head = head,
		.key_head = delta->tiled ? head % delta->n_k_heads
					 : head / (delta->n_v_heads / delta->n_k_heads),
		.first = first,
		.n = delta->d_v - first < DELTA_COLUMNS ? delta->d_v - first : DELTA_COLUMNS,
		.at = f->kv->states.layout.window_floats + (size_t)head * delta->d_k * delta->d_v +
		      first,
		.state = d->thread_state + (size_t)thread * delta->d_k * DELTA_COLUMNS,
	};
}

uint32_t delta_items(const struct forward *f, uint32_t n_lanes)
{
	const struct delta_config *delta = &f->model->config.delta;
	return n_lanes * delta->n_v_heads * ((delta->d_v + DELTA_COLUMNS - 1) / DELTA_COLUMNS);
}

/* from: a layer's floats, NULL for the state after no tokens. */
static void load_columns(const struct columns *c, const float *from)
{
	const struct delta_config *delta = &c->f->model->config.delta;
	if (!from) {
		memset(c->state, 0, (size_t)delta->d_k * DELTA_COLUMNS * sizeof(*c->state));
		return;
	}
	for (size_t i = 0; i < delta->d_k; i++)
		memcpy(c->state + i * DELTA_COLUMNS, from + c->at + i * delta->d_v,
			c->n * sizeof(*from));
}

static void store_columns(const struct columns *c, float *to)
{
	const struct delta_config *delta = &c->f->model->config.delta;
	for (size_t i = 0; i < delta->d_k; i++)
		memcpy(to + c->at + i * delta->d_v, c->state + i * DELTA_COLUMNS,
			c->n * sizeof(*to));
}

/* The token's effect on the state, and what it reads from it. */
static void step(const struct columns *c, uint32_t t, bool out)
{
	const struct delta_config *delta = &c->f->model->config.delta;
	const struct delta_net *d = c->f->delta;
	const float *qkv = d->qkv + (size_t)t * d->channels;
	const float *decay = d->rows[t] + d->channels + c->head;
	size_t K = (size_t)delta->n_k_heads * delta->d_k;
	size_t value = (size_t)c->head * delta->d_v + c->first;
	const struct delta_step job = {
		.state = c->state,
		.stride = DELTA_COLUMNS,
		.d_k = delta->d_k,
		.columns = c->n,
		.q = qkv + (size_t)c->key_head * delta->d_k,
		.k = qkv + K + (size_t)c->key_head * delta->d_k,
		.v = qkv + 2 * K + value,
		.decay = decay[0],
		.rate = decay[delta->n_v_heads],
		.out = out ? d->o + (size_t)t * delta->n_v_heads * delta->d_v + value : NULL,
	};
	c->f->kernels->delta_step(&job);
}

/* The state before draft t, where another branch's is at hand: from the one after the certain tokens along t's path. */
static void go_back(const struct columns *c, const float *from, uint32_t t, uint32_t *path)
{
	const struct delta_net *d = c->f->delta;
	uint32_t n = 0;
	load_columns(c, from);
	for (int32_t i = d->before[t]; i != c->lane->last_certain; i = d->before[i])
		path[n++] = (uint32_t)i;
	while (n-- > 0)
		step(c, path[n], false);
}

static void pass_item(struct forward *f, uint32_t item, uint32_t thread)
{
	struct delta_net *d = f->delta;
	uint32_t index = weights(f)->index;
	struct columns c = columns_of(f, index, item, thread);
	const struct recurrent_seq *seq = &c.lane->seq->state;
	const float *from = current(f, seq, index);
	uint32_t t = c.lane->first;
	load_columns(&c, from);
	if (c.lane->last_certain >= 0) {
		float *to = next(f, seq, index);
		for (; t != UINT32_MAX && d->keep[t] == UINT32_MAX; t = d->next_token[t])
			step(&c, t, true);
		store_columns(&c, to);
		from = to;
	}
	int32_t at = c.lane->last_certain;
	for (; t != UINT32_MAX; t = d->next_token[t]) {
		if (d->before[t] != at)
			go_back(&c, from, t, d->thread_path + (size_t)thread * d->n_keep);
		step(&c, t, true);
		at = (int32_t)t;
	}
}

void delta_replay_item(struct forward *f, uint32_t item, uint32_t thread)
{
	struct delta_net *d = f->delta;
	struct columns c = columns_of(f, d->replay_layer, item, thread);
	const struct recurrent_seq *seq = &c.lane->seq->state;
	load_columns(&c, current(f, seq, c.index));
	for (uint32_t i = 0; i < c.lane->n_accepted; i++)
		step(&c, d->accepted[c.lane->accepted_first + i], false);
	store_columns(&c, next(f, seq, c.index));
}

/* Norm by head, gate, and the form that the out product takes. */
static void output_token(struct forward *f, uint32_t t)
{
	const struct model_config *config = &f->model->config;
	const struct delta_config *delta = &config->delta;
	struct delta_net *d = f->delta;
	uint32_t V = delta->n_v_heads * delta->d_v;
	float *o = d->o + (size_t)t * V;
	for (uint32_t h = 0; h < delta->n_v_heads; h++) {
		float *head = o + (size_t)h * delta->d_v;
		f->kernels->rms_norm(head, weights(f)->norm, config->rms_eps, delta->d_v, head);
	}
	f->kernels->silu_mul(d->z + (size_t)t * V, o, V, o);
	if (forward_quantised(&weights(f)->out))
		f->kernels->quantise_q8(o, V, d->o_q8 + (size_t)t * (V / Q8_BLOCK));
}

void delta_layer(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	struct delta_net *d = f->delta;
	size_t V = (size_t)config->delta.n_v_heads * config->delta.d_v;
	size_t channel_bytes = d->channels * sizeof(float);
	size_t states = (size_t)f->kv->states.layout.state_floats * sizeof(float);
	delta_set_rows(f, weights(f)->index);
	mixer_norm(f, any_quantised(weights(f)));
	project(f);
	work_tokens(f, input_token, channel_bytes);
	/* A token's convolution reads the rows of those before it. */
	work_tokens(f, conv_token, 2 * config->delta.taps * channel_bytes);
	pass_items(f, delta_items(f, d->n_lanes), (d->n_lanes + f->n) * states, pass_item);
	work_tokens(f, output_token, 2 * channel_bytes);
	mixer_out(f, &weights(f)->out, inputs_of(f, d->o, d->o_q8, V));
}
