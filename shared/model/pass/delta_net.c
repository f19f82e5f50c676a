#include "shared/model/pass/delta_net.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory. ---- */

static bool any_mixed(const struct model *model)
{
	for (uint32_t i = 0; i < model->config.n_layers; i++)
		if (model->layers[i].delta.mixed.data)
			return true;
	return false;
}

void delta_layout(const struct forward *f, struct carve *c)
{
	const struct delta_config *delta = &f->model->config.delta;
	struct delta_net *d = f->delta;
	size_t T = f->limits.n_batch, V = (size_t)delta->n_v_heads * delta->d_v,
	       H = delta->n_v_heads;
	d->certain = carve_at(c, T * d->row_floats, sizeof(float));
	d->kept = carve_at(c, (size_t)delta->n_layers * d->n_keep * d->row_floats, sizeof(float));
	d->z = carve_at(c, T * V, sizeof(float));
	d->mixed = carve_at(c, any_mixed(f->model) ? T * (d->channels + V) : 0, sizeof(float));
	d->ba = carve_at(c, T * 2 * H, sizeof(float));
	d->alpha_beta = carve_at(c, T * 2 * H, sizeof(float));
	d->qkv = carve_at(c, T * d->channels, sizeof(float));
	d->o = carve_at(c, T * V, sizeof(float));
	d->o_q8 = carve_at(c, T * (V / Q8_BLOCK), sizeof(struct q8_block));
}

void delta_layout_batch(const struct forward *f, struct carve *c)
{
	const struct delta_config *delta = &f->model->config.delta;
	struct delta_net *d = f->delta;
	size_t T = f->limits.n_batch;
	CARVE(c, d->lanes, T);
	CARVE(c, d->tokens, T);
	CARVE(c, d->keep, T);
	CARVE(c, d->replayed, T);
	CARVE(c, d->accepted, d->n_keep);
	CARVE(c, d->conv, (size_t)delta->n_layers * delta->taps * d->channels);
}

void delta_layout_tables(const struct forward *f, struct carve *c)
{
	CARVE(c, f->delta->last, f->limits.n_batch);
	CARVE(c, f->delta->drafts, f->limits.n_batch);
}

void delta_fill(const struct forward *f)
{
	const struct delta_config *delta = &f->model->config.delta;
	const struct delta_net *d = f->delta;
	for (uint32_t i = 0; i < f->model->config.n_layers; i++) {
		const struct delta_weights *w = &f->model->layers[i].delta;
		float *conv = d->conv + (size_t)w->index * delta->taps * d->channels;
		if (f->model->layers[i].mixer != MIX_DELTA_NET)
			continue;
		for (size_t c = 0; c < d->channels; c++)
			for (size_t tap = 0; tap < delta->taps; tap++)
				conv[tap * d->channels + c] = w->conv[c * delta->taps + tap];
	}
}

void delta_shape(
	struct delta_net *d, const struct model *model, const struct forward_limits *limits)
{
	const struct delta_config *delta = &model->config.delta;
	d->channels = delta_channels(delta->n_k_heads, delta->d_k, delta->n_v_heads, delta->d_v);
	d->row_floats = d->channels + 2 * delta->n_v_heads;
	d->n_keep = limits->n_drafts;
}

int delta_begin(struct forward *f, struct error *err)
{
	if (f->model->config.delta.n_layers == 0)
		return 0;
	const struct recurrent *recurrent = &f->kv->states;
	struct recurrent_layout wanted = recurrent_layout_of(f->model, 1);
	if (recurrent->layout.n_layers != wanted.n_layers ||
		recurrent->layout.window_floats != wanted.window_floats ||
		recurrent->layout.state_floats != wanted.state_floats)
		return error_set(err, EINVAL,
			"a model with recurrent layers needs room for their states beside its KV "
			"cache");
	struct delta_net *d = calloc(1, sizeof(*d));
	if (!d)
		return error_set(err, ENOMEM, "no memory for the delta nets");
	delta_shape(d, f->model, &f->limits);
	f->delta = d;
	return 0;
}

void delta_destroy(struct forward *f)
{
	free(f->delta);
	f->delta = NULL;
}

/* ---- The batch. ---- */

static int append(struct delta_net *d, uint32_t index, uint32_t t, bool draft)
{
	struct state_lane *lane = &d->lanes[index];
	struct state_token *token = &d->tokens[t];
	bool behind = token->before == lane->last_certain;
	bool behind_draft = token->before >= 0 && d->keep[token->before] != UINT32_MAX;
	if (draft ? !behind && !behind_draft : !behind || d->drafts[index])
		return -EINVAL;
	if (draft && d->n_kept == d->n_keep)
		return -EINVAL;
	d->keep[t] = draft ? d->n_kept++ : UINT32_MAX;
	if (draft)
		d->drafts[index] = true;
	else
		lane->last_certain = (int32_t)t;
	if (lane->first == UINT32_MAX)
		lane->first = t;
	else
		d->tokens[d->last[index]].next = t;
	d->last[index] = t;
	return 0;
}

/* Sets where the lane's states of the first layer lie. */
static void place_states(const struct forward *f, uint32_t i)
{
	const struct recurrent *states = &f->kv->states;
	const struct recurrent_seq *seq = &f->seqs[i]->state;
	struct state_lane *lane = &f->delta->lanes[i];
	lane->begins = seq->n == 0;
	lane->current = lane->begins ? 0 : recurrent_current(states, seq, 0);
	lane->next = recurrent_next(states, seq, 0);
}

int delta_prepare(struct forward *f)
{
	struct delta_net *d = f->delta;
	if (!d)
		return 0;
	d->n_kept = 0;
	for (uint32_t i = 0; i < f->n_seqs; i++) {
		const struct kv_seq *seq = f->seqs[i];
		if (!seq->state.held || seq->state.n != seq->n)
			return -EINVAL;
		d->lanes[i] = (struct state_lane){.first = UINT32_MAX, .last_certain = -1};
		d->drafts[i] = false;
	}
	for (uint32_t t = 0; t < f->n; t++) {
		uint32_t lane = f->step_tokens[t].map;
		d->tokens[t] = (struct state_token){
			.before = f->tokens[t].parent, .next = UINT32_MAX, .lane = lane};
		if (append(d, lane, t, f->tokens[t].draft) < 0)
			return -EINVAL;
	}
	for (uint32_t i = 0; i < f->n_seqs; i++) {
		struct kv_seq *seq = f->seqs[i];
		int32_t last = d->lanes[i].last_certain;
		uint32_t n_certain = last < 0 ? 0 : f->tokens[last].position + 1 - seq->n;
		if (last >= 0)
			d->tokens[last].writes_window = true;
		recurrent_begin(&f->kv->states, &seq->state, n_certain);
		place_states(f, i);
	}
	return 0;
}

/* ---- A layer. ---- */

static bool any_quantised(const struct delta_weights *w)
{
	const struct matrix *in[] = {&w->qkv, &w->z, &w->mixed, &w->ba, &w->beta, &w->alpha};
	bool any = false;
	for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++)
		any = any || (in[i]->data && matrix_quantised(in[i]));
	return any;
}

static struct step_delta step_of(const struct forward *f, const struct layer *layer)
{
	const struct model_config *config = &f->model->config;
	const struct delta_config *delta = &config->delta;
	const struct delta_weights *w = &layer->delta;
	const struct delta_net *d = f->delta;
	const struct recurrent *states = &f->kv->states;
	size_t V = (size_t)delta->n_v_heads * delta->d_v, H = delta->n_v_heads;
	struct step_delta step = {
		.n_k_heads = delta->n_k_heads,
		.n_v_heads = delta->n_v_heads,
		.d_k = delta->d_k,
		.d_v = delta->d_v,
		.taps = delta->taps,
		.tiled = delta->tiled,
		.tokens = batch_rows(f, d->tokens, sizeof(*d->tokens), f->n),
		.lanes = batch_place(f, d->lanes),
		.n_lanes = f->n_seqs,
		.states = {&f->kv->store, w->index * states->layer_floats * sizeof(float)},
		.window_floats = states->layout.window_floats,
		.conv = batch_place(f, d->conv + (size_t)w->index * delta->taps * d->channels),
		.a = w->a,
		.dt = w->dt,
		.norm = w->norm,
		.eps = config->rms_eps,
		/* The root is an instruction, correctly rounded, and not libm's. */
		.q_scale = 1.0f / __builtin_sqrtf((float)delta->d_k),
		.in = floats_of(f, d->certain, d->row_floats),
		.keep = batch_place(f, d->keep),
		.kept = floats_of(f,
			d->kept + (size_t)w->index * d->n_keep * d->row_floats * sizeof(float),
			d->row_floats),
		.alpha_beta = floats_of(f, d->alpha_beta, 2 * H),
		.z = floats_of(f, d->z, V),
		.qkv = floats_of(f, d->qkv, d->channels),
		.out = floats_of(f, d->o, V),
	};
	if (w->mixed.data)
		step.mixed = floats_of(f, d->mixed, d->channels + V);
	if (w->ba.data)
		step.ba = floats_of(f, d->ba, 2 * H);
	if (matrix_quantised(&w->out))
		step.out_q8 = q8_of(f, d->o_q8, V);
	return step;
}

static void project(struct forward *f, const struct delta_weights *w, const struct step_delta *s)
{
	struct inputs in = inputs_of(f, f->h, f->h_q8, f->model->config.n_embd);
	struct rows beta = s->alpha_beta;
	beta.offset += s->n_v_heads * sizeof(float);
	const struct {
		const struct matrix *w;
		struct rows y;
	} all[] = {{&w->qkv, s->in}, {&w->z, s->z}, {&w->mixed, s->mixed}, {&w->ba, s->ba},
		{&w->alpha, s->alpha_beta}, {&w->beta, beta}};
	struct step_product products[STEP_NEXT];
	struct step_products step = {.of = products, .fast = fast_of(f)};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i].w->data)
			products[step.n++] = product_of(all[i].w, in, all[i].y);
	if (w->qkv.data) {
		products[0].keep = s->keep;
		products[0].kept = s->kept;
	}
	next_matrix(f, &w->out, &step.next);
	f->queue->ops->products(f->queue, &step);
}

void delta_layer(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	const struct delta_net *d = f->delta;
	struct step_delta step = step_of(f, layer);
	mixer_norm(f, any_quantised(&layer->delta));
	project(f, &layer->delta, &step);
	f->queue->ops->delta(f->queue, &step);
	mixer_out(f, &layer->delta.out,
		inputs_of(f, d->o, d->o_q8, (size_t)step.n_v_heads * step.d_v));
}

/* ---- Accepted drafts. ---- */

/* For a lane whose state lacks its sequence's last n tokens: finds which of its drafts these are,
 * in order. */
static void find_accepted(const struct forward *f, uint32_t index, uint32_t n)
{
	struct delta_net *d = f->delta;
	struct state_lane *lane = &d->lanes[index];
	const struct kv_seq *seq = f->seqs[index];
	const uint32_t *cells = seq->cell + seq->n - n;
	uint32_t t = lane->last_certain < 0 ? lane->first : d->tokens[lane->last_certain].next;
	lane->accepted_first = d->n_accepted;
	lane->n_accepted = n;
	assert(d->drafts[index] && n <= d->n_keep - d->n_accepted);
	for (uint32_t found = 0; found < n; t = d->tokens[t].next) {
		/* They form a path, and parents come before their children, so going through once
		 * is enough. */
		assert(t != UINT32_MAX);
		if (f->step_tokens[t].cell != cells[found])
			continue;
		d->tokens[t].before = found == 0 ? -1 : (int32_t)d->accepted[d->n_accepted - 1];
		d->tokens[t].writes_window = ++found == n;
		d->accepted[d->n_accepted++] = t;
	}
}

/* Applies the accepted drafts' rows to the states after the tokens before them, as a pass would
 * have done. */
void delta_replay(struct forward *f)
{
	struct delta_net *d = f->delta;
	struct recurrent *states = &f->kv->states;
	d->n_accepted = d->n_replayed = 0;
	for (uint32_t i = 0; i < f->n_seqs; i++) {
		struct kv_seq *seq = f->seqs[i];
		uint32_t n = recurrent_behind(&seq->state, seq->n);
		if (n == 0)
			continue;
		find_accepted(f, i, n);
		recurrent_begin(states, &seq->state, 0);
		place_states(f, i);
		d->replayed[d->n_replayed++] = i;
	}
	if (d->n_replayed == 0)
		return;
	for (uint32_t i = 0; i < f->model->config.n_layers; i++) {
		const struct layer *layer = &f->model->layers[i];
		if (layer->mixer != MIX_DELTA_NET)
			continue;
		const struct step_replay step = {
			.delta = step_of(f, layer),
			.lanes = batch_place(f, d->replayed),
			.n_lanes = d->n_replayed,
			.accepted = batch_place(f, d->accepted),
			.n_accepted = d->n_accepted,
		};
		f->queue->ops->replay(f->queue, &step);
	}
	/* The marks promise that the states are there, so wait for them. */
	int rc = f->queue->ops->wait(f->queue, f->queue->ops->ticket(f->queue));
	for (uint32_t i = 0; rc == 0 && i < d->n_replayed; i++) {
		struct kv_seq *seq = f->seqs[d->replayed[i]];
		recurrent_publish(states, &seq->state, seq->n);
	}
	d->n_replayed = 0;
}
