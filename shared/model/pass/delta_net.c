#include "shared/model/pass/delta_net.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool any_mixed(const struct model *model)
{
	for (uint32_t i = 0; i < model->config.n_layers; i++)
		if (model->layers[i].delta.mixed.data)
			return true;
	return false;
}

void delta_layout(struct delta_net *d, const struct forward *f, struct carve *c)
{
	const struct delta_config *delta = &f->model->config.delta;
	size_t T = f->n_batch, V = (size_t)delta->n_v_heads * delta->d_v, H = delta->n_v_heads;
	CARVE(c, d->certain, T * d->row_floats);
	CARVE(c, d->kept, (size_t)delta->n_layers * d->n_keep * d->row_floats);
	CARVE(c, d->z, T * V);
	CARVE(c, d->mixed, any_mixed(f->model) ? T * (d->channels + V) : 0);
	CARVE(c, d->ba, T * 2 * H);
	CARVE(c, d->alpha_beta, T * 2 * H);
	CARVE(c, d->qkv, T * d->channels);
	CARVE(c, d->o, T * V);
	CARVE(c, d->o_q8, T * (V / Q8_BLOCK));
}

void delta_layout_batch(struct delta_net *d, const struct forward *f, struct carve *c)
{
	CARVE(c, d->keep, f->n_batch);
}

/* Every table. Called twice: to count, then to place. */
static void layout(const struct forward *f, struct delta_net *d, struct carve *c)
{
	const struct delta_config *delta = &f->model->config.delta;
	size_t T = f->n_batch;
	CARVE(c, d->conv, (size_t)delta->n_layers * delta->taps * d->channels);
	CARVE(c, d->zeros, d->channels);
	CARVE(c, d->lanes, T);
	CARVE(c, d->lane_of, T);
	CARVE(c, d->next_token, T);
	CARVE(c, d->before, T);
	CARVE(c, d->cell, T);
	CARVE(c, d->writes_window, T);
	CARVE(c, d->rows, T);
	CARVE(c, d->thread_state, (size_t)f->n_threads * delta->d_k * DELTA_COLUMNS);
	CARVE(c, d->thread_path, (size_t)f->n_threads * d->n_keep);
	CARVE(c, d->accepted, d->n_keep);
	CARVE(c, d->replayed, T);
}

/* The transposed weights of the convolutions. */
static void fill(const struct forward *f, struct delta_net *d)
{
	const struct delta_config *delta = &f->model->config.delta;
	memset(d->zeros, 0, d->channels * sizeof(*d->zeros));
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

/* A lane whose state lacks its sequence's last n tokens: which of its drafts they are, in order. */
static void find_accepted(struct delta_net *d, struct delta_lane *lane, uint32_t n)
{
	const uint32_t *cells = lane->seq->cell + lane->seq->n - n;
	uint32_t t = lane->last_certain < 0 ? lane->first : d->next_token[lane->last_certain];
	lane->accepted_first = d->n_accepted;
	lane->n_accepted = n;
	assert(lane->drafts && n <= d->n_keep - d->n_accepted);
	for (uint32_t found = 0; found < n; t = d->next_token[t]) {
		/* They are a path, and parents come before their children: once through is enough. */
		assert(t != UINT32_MAX);
		if (d->cell[t] != cells[found])
			continue;
		d->before[t] = found == 0 ? -1 : (int32_t)d->accepted[d->n_accepted - 1];
		d->writes_window[t] = ++found == n;
		d->accepted[d->n_accepted++] = t;
	}
}

static void replay_conv(struct forward *f, uint32_t item, uint32_t thread)
{
	struct delta_net *d = f->delta;
	(void)thread;
	delta_conv(f, d->replay_layer, d->accepted[item]);
}

/* The accepted drafts' rows onto the states after the tokens before them, as a pass would have done it. */
void delta_replay(struct forward *f)
{
	struct delta_net *d = f->delta;
	const struct delta_config *delta = &f->model->config.delta;
	struct recurrent *states = &f->kv->states;
	d->n_accepted = d->n_replayed = 0;
	for (uint32_t i = 0; i < d->n_lanes; i++) {
		struct kv_seq *seq = d->lanes[i].seq;
		uint32_t n = recurrent_behind(&seq->state, seq->n);
		if (n == 0)
			continue;
		find_accepted(d, &d->lanes[i], n);
		recurrent_begin(states, &seq->state, 0);
		d->replayed[d->n_replayed++] = i;
	}
	if (d->n_replayed == 0)
		return;
	size_t row_bytes = d->row_floats * sizeof(float);
	size_t state_bytes = (size_t)states->layout.state_floats * sizeof(float);
	for (d->replay_layer = 0; d->replay_layer < delta->n_layers; d->replay_layer++) {
		delta_set_rows(f, d->replay_layer);
		pass_items(f, d->n_accepted, d->n_accepted * delta->taps * row_bytes, replay_conv);
		pass_items(f, delta_items(f, d->n_replayed),
			(d->n_replayed + d->n_accepted) * state_bytes, delta_replay_item);
	}
	for (uint32_t i = 0; i < d->n_replayed; i++) {
		struct kv_seq *seq = d->lanes[d->replayed[i]].seq;
		recurrent_publish(states, &seq->state, seq->n);
	}
	d->n_replayed = 0;
}

int delta_begin(struct forward *f, struct error *err)
{
	const struct delta_config *delta = &f->model->config.delta;
	if (delta->n_layers == 0)
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
	d->channels = 2 * delta->n_k_heads * delta->d_k + delta->n_v_heads * delta->d_v;
	d->row_floats = d->channels + 2 * delta->n_v_heads;
	d->n_keep = f->limits.n_drafts;
	/* The root is an instruction, correctly rounded: no libm. */
	d->q_scale = 1.0f / __builtin_sqrtf((float)delta->d_k);
	f->delta = d;
	return 0;
}

int delta_create(struct forward *f, struct error *err)
{
	struct delta_net *d = f->delta;
	if (!d)
		return 0;
	struct carve count = {0};
	layout(f, d, &count);
	d->memory = aligned_alloc(CACHE_LINE, count.used);
	if (!d->memory)
		return error_set(err, ENOMEM,
			"no memory for the delta nets: %zu bytes for a batch of %u", count.used,
			f->n_batch);
	struct carve place = {d->memory, 0};
	layout(f, d, &place);
	fill(f, d);
	return 0;
}

void delta_destroy(struct forward *f)
{
	if (f->delta)
		free(f->delta->memory);
	free(f->delta);
	f->delta = NULL;
}

/* The lane of a token without a parent: its sequence's, a new one for the first; NULL when the state is not the one after
 * the sequence's tokens. */
static struct delta_lane *root_lane(struct forward *f, struct kv_seq *seq)
{
	struct delta_net *d = f->delta;
	for (uint32_t i = 0; i < d->n_lanes; i++)
		if (d->lanes[i].seq == seq)
			return &d->lanes[i];
	if (!seq->state.held || seq->state.n != seq->n)
		return NULL;
	d->lanes[d->n_lanes] = (struct delta_lane){
		.seq = seq, .first = UINT32_MAX, .last = UINT32_MAX, .last_certain = -1};
	return &d->lanes[d->n_lanes++];
}

static int append(struct delta_net *d, struct delta_lane *lane, uint32_t t, bool draft)
{
	bool behind = d->before[t] == lane->last_certain;
	bool behind_draft = d->before[t] >= 0 && d->keep[d->before[t]] != UINT32_MAX;
	if (draft ? !behind && !behind_draft : !behind || lane->drafts)
		return -EINVAL;
	if (draft && d->n_kept == d->n_keep)
		return -EINVAL;
	d->keep[t] = draft ? d->n_kept++ : UINT32_MAX;
	if (draft)
		lane->drafts = true;
	else
		lane->last_certain = (int32_t)t;
	if (lane->first == UINT32_MAX)
		lane->first = t;
	else
		d->next_token[lane->last] = t;
	lane->last = t;
	return 0;
}

int delta_prepare(struct forward *f)
{
	struct delta_net *d = f->delta;
	if (!d)
		return 0;
	d->n_lanes = d->n_kept = 0;
	for (uint32_t t = 0; t < f->n; t++) {
		const struct batch_token *token = &f->tokens[t];
		struct delta_lane *lane = token->parent < 0 ? root_lane(f, token->seq)
							    : &d->lanes[d->lane_of[token->parent]];
		if (!lane)
			return -EINVAL;
		d->lane_of[t] = (uint32_t)(lane - d->lanes);
		d->next_token[t] = UINT32_MAX;
		d->before[t] = token->parent;
		d->cell[t] = token->cell;
		d->writes_window[t] = false;
		if (append(d, lane, t, token->draft) < 0)
			return -EINVAL;
	}
	for (uint32_t i = 0; i < d->n_lanes; i++) {
		const struct delta_lane *lane = &d->lanes[i];
		uint32_t n_certain = 0;
		if (lane->last_certain >= 0) {
			n_certain = f->tokens[lane->last_certain].position + 1 - lane->seq->n;
			d->writes_window[lane->last_certain] = true;
		}
		recurrent_begin(&f->kv->states, &lane->seq->state, n_certain);
	}
	return 0;
}
