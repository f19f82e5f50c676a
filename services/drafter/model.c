#include "services/drafter/model.h"

#include "services/drafter/head_blocks.h"
#include "services/drafter/model_engine.h"
#include "services/drafter/model_pass.h"
#include "services/drafter/model_tree.h"

#include "shared/model/arch/skip.h"
#include "shared/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Limits drafted tokens to those below n, for a draft model with more tokens than its target. */
static int limit_drafts(struct draft_model *m, uint32_t n, struct error *err)
{
	if (m->sampler.n_vocab == n)
		return 0;
	sampler_exit(&m->sampler);
	memset(&m->sampler, 0, sizeof(m->sampler));
	int r = sampler_init(&m->sampler, n);
	return r < 0 ? error_set(err, -r, "no memory for a vocabulary of %u", n) : 0;
}

static int open_tokenizer(struct draft_model *m, struct error *err)
{
	struct tokenizer *tokenizer;
	int r = tokenizer_load(m->model->gguf, &tokenizer, err);
	if (r < 0)
		return r;
	m->tokenizer = tokenizer;
	m->n_vocab = tokenizer_n_vocab(tokenizer);
	/* Rows beyond the tokenizer's vocabulary are padding: never drafted. */
	if (m->n_vocab > m->model->config.n_vocab)
		return error_set(err, EBADMSG, "%u tokens, but logits for %u", m->n_vocab,
			m->model->config.n_vocab);
	return limit_drafts(m, m->n_vocab, err);
}

static int open_parts(struct draft_model *m, const struct drafter_config *config, struct error *err)
{
	int r = model_load(config->draft, &m->model, err);
	if (r < 0)
		return r;
	r = open_tokenizer(m, err);
	if (r < 0)
		return error_prefix(err, r, "%s", config->draft);
	return draft_engine_open(m, config, err);
}

int draft_target_tokenizer(
	const char *path, uint64_t fingerprint, struct tokenizer **out, struct error *err)
{
	struct gguf *gguf;
	int r = gguf_open(path, &gguf, err);
	if (r < 0)
		return r;
	r = tokenizer_load(gguf, out, err);
	gguf_close(&gguf);
	if (r == 0 && tokenizer_fingerprint(*out) != fingerprint) {
		tokenizer_free(out);
		r = error_set(err, ESTALE, "the file is not the one that the verifier has");
	}
	return r;
}

int draft_model_meet(
	struct draft_model *m, const char *path, uint64_t fingerprint, struct error *err)
{
	struct tokenizer *target;
	uint32_t shared;
	if (tokenizer_fingerprint(m->tokenizer) == fingerprint)
		return limit_drafts(m, m->n_vocab, err);
	int r = draft_target_tokenizer(path, fingerprint, &target, err);
	if (r < 0)
		return r;
	uint32_t n = tokenizer_n_vocab(target);
	r = tokenizer_compare(target, m->tokenizer, &shared, err);
	tokenizer_free(&target);
	if (r == 0)
		r = limit_drafts(m, shared, err);
	if (r == 0 && n != m->n_vocab)
		log_notice("the draft model has %u tokens and its target %u; the first %u are "
			   "equal, and only these are drafted",
			m->n_vocab, n, shared);
	return r;
}

int draft_model_open(const struct drafter_config *config, struct draft_session *sessions,
	uint32_t n_sessions, struct hints *hints, struct draft_model **out, struct error *err)
{
	struct draft_model *m = calloc(1, sizeof(*m));
	if (!m)
		return error_set(err, ENOMEM, "no memory for the draft model");
	m->method = DRAFT_MODEL;
	m->sessions = sessions;
	m->n_sessions = n_sessions;
	m->hints = hints;
	int r = open_parts(m, config, err);
	if (r < 0) {
		draft_model_close(&m);
		return r;
	}
	*out = m;
	return 0;
}

void draft_model_close(struct draft_model **model)
{
	struct draft_model *m = *model;
	if (!m)
		return;
	draft_engine_close(m);
	head_blocks_close(m);
	sampler_exit(&m->sampler);
	tokenizer_free(&m->tokenizer);
	free(m->batch);
	free(m->owner);
	free(m->cells);
	head_routes_exit(&m->routes);
	free(m->is_true);
	free(m->route);
	free(m->logits);
	if (m->method == DRAFT_LAYER_SKIP)
		model_skip_free(&m->model);
	else
		model_free(&m->model);
	model_free(&m->target);
	if (m->host)
		m->host->ops->destroy(m->host);
	free(m);
	*model = NULL;
}

bool draft_model_fits(const struct draft_model *m, const struct draft_session *s)
{
	return s->n > 0 && s->n < m->n_context && s->n_vocab_needed <= m->n_vocab &&
	       (!m->head || head_states_fit(m->states, &m->wanted));
}

/* Of a head, only rows of the target's states stay. The last one is computed again. */
static void rewind_head(struct draft_model *m, struct draft_session *s)
{
	uint32_t all = s->n > s->shift ? s->n - s->shift : 0;
	uint32_t keep = s->n_true < all ? s->n_true : all > 0 ? all - 1 : 0;
	if (s->has_seq && head_has_blocks(m) && s->seq.n > 0 && !head_blocks_rewind(m, s, keep)) {
		uint32_t shift = s->shift;
		draft_model_drop(s);
		s->shift = shift;
		return;
	}
	if (s->has_seq && s->seq.n > keep)
		kv_truncate(&m->kv, &s->seq, keep);
	s->n_true = keep;
}

void draft_model_rewind(struct draft_model *m, struct draft_session *s, uint32_t kept)
{
	if (m->head) {
		model_tree_settle(m, s);
		rewind_head(m, s);
		return;
	}
	if (s->has_seq && s->seq.n > kept)
		kv_truncate(&m->kv, &s->seq, kept);
	model_tree_settle(m, s);
	/* The last token's logits are gone, so the model has to read it again. */
	if (s->has_seq && s->seq.n >= s->n + s->n_chain)
		kv_truncate(&m->kv, &s->seq, s->n + s->n_chain - 1);
}

void draft_model_drop(struct draft_session *s)
{
	if (s->has_seq && s->drafter->blocks)
		head_blocks_drop(s->drafter, s);
	if (s->has_seq)
		kv_seq_exit(&s->drafter->kv, &s->seq);
	s->has_seq = false;
	s->n_chain = s->n_true = s->shift = 0;
	if (s->grown)
		s->grown->n_cells = 0;
}
