#include "services/verifier/pass/emit.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/model/gguf/hash.h"
#include "shared/spec/accept.h"

#include <stdio.h>

/* Whether the answer ends with its last token; feeds that token's text. The order of the questions is the order of
 * precedence. */
static enum session_end end_after(
	struct engine *engine, struct engine_session *s, int32_t token, uint32_t n_tokens)
{
	const struct session_request *request = &s->page->request;

	if (!request->ignore_eos && tokenizer_is_eog(engine->o.tokenizer, token))
		return SESSION_END_EOS;
	if (s->slot->stops != NULL &&
		text_feed_token(&s->text, s->slot->stops, engine->o.tokenizer, token, NULL, NULL))
		return SESSION_END_STOP;
	if (emit_n_out(s, n_tokens) >= request->max_tokens ||
		n_tokens >= (uint32_t)engine->o.config->context)
		return SESSION_END_LENGTH;
	return SESSION_END_NONE;
}

enum session_end emit_replay_text(struct engine *engine, struct engine_session *s)
{
	uint32_t n_tokens = journal_n_tokens(s->page);
	enum session_end end = SESSION_END_NONE;

	for (uint32_t i = s->page->n_prompt; i < n_tokens && end == SESSION_END_NONE; i++)
		end = end_after(engine, s, s->page->tokens[i], i + 1);
	return end;
}

struct logits_of {
	struct forward *forward;
	uint32_t root; /* batch index of the newest committed token */
};

static const float *node_logits(void *arg, int node)
{
	const struct logits_of *of = arg;

	return forward_logits(of->forward, of->root + (uint32_t)(node + 1));
}

void emit_hash_again(
	struct engine *engine, struct engine_session *s, const struct sched_entry *entry)
{
	uint32_t vocab = engine->o.model->config.n_vocab,
		 rows = entry->emits ? entry->n - 1 : entry->n;
	uint32_t n_hashed = atomic_load_explicit(&s->slot->n_hashed, memory_order_relaxed);

	for (uint32_t i = 0; i < rows; i++) {
		uint32_t position = s->seq.n + i;

		if (position + 1 < s->page->n_prompt || emit_n_out(s, position + 1) != n_hashed)
			continue;
		s->slot->hashes[n_hashed++] =
			logits_hash(forward_logits(engine->forward, s->row + i), vocab);
	}
	/* Pairs with the front's acquire: it sends no hash that is not there. */
	atomic_store_explicit(&s->slot->n_hashed, n_hashed, memory_order_release);
}

static void hash_emitted(struct engine *engine, struct engine_session *s,
	const struct accept_output *out, uint32_t n_tokens, uint32_t n, struct logits_of *of)
{
	uint32_t base = emit_n_out(s, n_tokens);

	for (uint32_t i = 0; i < n; i++)
		s->slot->hashes[base + i] =
			logits_hash(node_logits(of, i == 0 ? -1 : out->node[i - 1]),
				engine->o.model->config.n_vocab);
	atomic_store_explicit(&s->slot->n_hashed, base + n, memory_order_release);
}

/* Cells of the pass: the committed tokens', then of the drafts those on the accepted path; the rest are returned. */
static void commit_cells(struct engine *engine, struct engine_session *s, uint32_t n,
	const struct accept_output *out, uint32_t n_emitted)
{
	const uint32_t *cells = engine->cells + s->row;
	uint32_t accepted[LIMIT_DRAFT], rejected[LIMIT_DRAFT], n_accepted = 0, n_rejected = 0;
	bool keep[LIMIT_DRAFT] = {false};

	kv_commit(&engine->kv, &s->seq, cells, n, NULL, 0);
	/* The last token emitted has no cell yet: it is the root of the next batch. */
	for (uint32_t i = 0; i < out->n_accepted && i + 1 < n_emitted; i++) {
		uint8_t node = (uint8_t)out->node[i];

		accepted[n_accepted++] = cells[n + node];
		keep[node] = true;
	}
	for (uint32_t i = 0; i < s->n_drafts; i++)
		if (!keep[i])
			rejected[n_rejected++] = cells[n + i];
	if (s->n_drafts > 0)
		kv_commit(&engine->kv, &s->seq, accepted, n_accepted, rejected, n_rejected);
}

static void count(
	struct engine_session *s, const struct draft_reply *reply, const struct accept_output *out)
{
	struct slot_usage *usage = &s->slot->usage;
	uint32_t depth[LIMIT_DRAFT];

	usage->k_used[s->k]++;
	for (uint32_t i = 0; i < s->n_drafts; i++) {
		depth[i] = reply->parent[i] < 0 ? 0 : depth[reply->parent[i]] + 1;
		usage->drafted_at[depth[i]]++;
	}
	for (uint32_t i = 0; i < out->n_accepted; i++)
		usage->accepted_at[i]++;
	usage->drafted += s->n_drafts;
	usage->accepted += out->n_accepted;
	atomic_fetch_add_explicit(&s->page->drafted, s->n_drafts, memory_order_relaxed);
	atomic_fetch_add_explicit(&s->page->accepted, out->n_accepted, memory_order_relaxed);
}

/* Weights that are NaN or infinite, in a file too large to be scanned when it was loaded, make logits so; so do finite ones too
 * large to be multiplied. The whole row: among logits of which only some are finite, one that is would be chosen. */
static bool logits_finite(struct engine *engine, struct engine_session *s,
	const struct accept_output *out, uint32_t i, struct logits_of *of)
{
	char *message = s->slot->usage.message;

	if (sampler_finite(node_logits(of, i == 0 ? -1 : out->node[i - 1]),
		    engine->o.model->config.n_vocab))
		return true;
	snprintf(message, sizeof(s->slot->usage.message),
		"the model's logits are not finite; `outrider-model check` names the weights of "
		"its file that are not, if any");
	log_session(LOG_LEVEL_ERROR, s->uid, engine->iteration, "%s", message);
	return false;
}

void emit_tokens(struct engine *engine, const struct sched_entry *entry)
{
	static const struct draft_reply no_draft;
	struct engine_session *s = engine_live(engine, entry->session);
	struct session_page *page = s->page;
	uint32_t n_tokens = engine->sched[entry->session].n_tokens, n = 0;
	const struct draft_reply *reply =
		s->n_drafts > 0 ? drafts_reply(&engine->drafts, s->index) : &no_draft;
	struct logits_of of = {engine->forward, s->row + entry->n - 1};
	struct accept_output out;
	struct accept_input input = {
		.params = &page->request.sampling,
		.history = page->tokens,
		.n_history = n_tokens,
		.draft = reply,
		.logits = node_logits,
		.arg = &of,
	};

	accept_draft(&engine->sampler, &input, page->tokens, &out);
	count(s, reply, &out);
	/* What was accepted behind an end is no part of the answer, as it would not be with K = 0. */
	while (n < out.n_tokens && s->end == SESSION_END_NONE) {
		if (!logits_finite(engine, s, &out, n, &of)) {
			s->end = SESSION_END_ERROR;
			break;
		}
		page->tokens[n_tokens + n] = out.token[n];
		n++;
		s->end = end_after(engine, s, out.token[n - 1], n_tokens + n);
	}
	if (s->slot->hashes != NULL)
		hash_emitted(engine, s, &out, n_tokens, n, &of);
	uint64_t now_ns = clock_ns();
	bool first = s->slot->usage.first_ns == 0;
	if (first)
		s->slot->usage.first_ns = now_ns;
	s->slot->usage.last_ns = now_ns;
	journal_append(page, s->slot->shared, n);
	commit_cells(engine, s, entry->n, &out, n);
	s->emitted = n;
	s->accepted = out.n_accepted;
	atomic_fetch_add_explicit(&engine->output_total, n, memory_order_relaxed);
	if (s->end == SESSION_END_NONE)
		engine_wake(engine, first);
}
