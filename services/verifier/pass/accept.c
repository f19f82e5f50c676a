/* The step "accept": decides which drafts of a pass are accepted, which tokens come out, and where
 * an answer ends. */
#include "services/verifier/pass/engine.h"

#include "shared/base/counter.h"
#include "shared/base/log.h"
#include "shared/spec/accept.h"

#include <stdio.h>
#include <string.h>

static enum session_end broken(const struct engine *engine, struct engine_session *s)
{
	char *message = s->slot->usage.message;

	snprintf(message, sizeof(s->slot->usage.message),
		"no token can follow: the grammar allows no token of this model here, nests deeper "
		"than %d rules, or needs more than %d MiB",
		GRAMMAR_DEPTH_MAX, MATCHER_BYTES_DEFAULT >> 20);
	log_session(LOG_LEVEL_NOTICE, s->uid, engine->iteration, "%s", message);
	return SESSION_END_ERROR;
}

/* Whether the answer ends with its last token; matches that token's text. Of several ends the first
 * one below counts. */
static enum session_end end_after(
	struct engine *engine, struct engine_session *s, int32_t token, uint32_t n_tokens)
{
	const struct session_request *request = &s->page->request;
	bool eos = stop_match_ends(request, engine->o.tokenizer, token);
	bool stop = stop_match_token(
		s->slot->match, engine->o.tokenizer, session_n_out(s, n_tokens) - 1, token, eos);

	if (eos)
		return SESSION_END_EOS;
	enum constraint_said said =
		constraint_token(s->slot->constraint, session_n_out(s, n_tokens) - 1, token);
	if (stop)
		return SESSION_END_STOP;
	if (said == CONSTRAINT_BROKEN)
		return broken(engine, s);
	if (said == CONSTRAINT_COMPLETE)
		return SESSION_END_EOS;
	if (session_n_out(s, n_tokens) >= request->max_tokens ||
		n_tokens >= (uint32_t)engine->o.config->context)
		return SESSION_END_LENGTH;
	return SESSION_END_NONE;
}

enum session_end pass_replay_text(struct engine *engine, struct engine_session *s)
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

/* The result picked after the last committed token (i = 0) or after the i-th accepted draft. */
static const struct pick_result *picked_at(
	const struct pass *pass, const struct pass_part *part, uint32_t i)
{
	const struct pick_result *root = &pass->picked[part->pick];

	return i == 0 ? root : root + 1 + part->out.node[i - 1];
}

/* Stores the records of the n-th output token, which has this number and log probability; they are
 * of the logits from which it was picked. */
static void record(const struct engine_session *s, uint32_t n, const struct pick_row *row,
	const struct pick_result *result, int32_t token, float logprob)
{
	uint32_t each = s->page->request.logprobs;

	if (s->slot->hashes != NULL)
		s->slot->hashes[n] = result->hash;
	if (s->slot->picked != NULL)
		s->slot->picked[n] = result->token;
	if (s->slot->logprobs == NULL)
		return;
	struct token_logprob *to = s->slot->logprobs + (size_t)n * each;
	to[0] = (struct token_logprob){token, logprob};
	memcpy(to + 1, row->top, (each - 1) * sizeof(*to));
}

/* Stores the records of output positions that this pass computed again (after a restart, or after
 * its pages were taken). */
static void record_again(const struct pass *pass, const struct pass_part *part)
{
	struct engine_session *s = part->session;
	uint32_t rows = part->emits ? part->n - 1 : part->n;
	uint32_t n_recorded = atomic_load_explicit(&s->slot->n_recorded, memory_order_relaxed);

	for (uint32_t i = 0; i < rows; i++) {
		uint32_t position = s->seq.n + i, at = part->pick - (part->n - 1 - i);

		if (position + 1 < s->page->n_prompt ||
			session_n_out(s, position + 1) != n_recorded)
			continue;
		record(s, n_recorded++, &pass->picks[at], &pass->picked[at],
			s->page->tokens[position + 1], pass->picked[at].logprob);
	}
	/* Pairs with the front's acquire, so that it sends no record that is not there. */
	atomic_store_explicit(&s->slot->n_recorded, n_recorded, memory_order_release);
}

static void record_emitted(
	const struct engine *engine, const struct pass *pass, const struct pass_part *part)
{
	const struct engine_session *s = part->session;
	uint32_t base = session_n_out(s, part->n_tokens);

	for (uint32_t i = 0; i < part->n_emitted; i++) {
		const struct pick_result *result = picked_at(pass, part, i);
		const struct pick_row *row = &pass->picks[result - pass->picked];
		int32_t token = part->out.token[i];
		float logprob = result->logprob;

		/* It was accepted by its logits, not because it was picked; its logits have been
		 * kept. */
		if (s->slot->logprobs != NULL && token != result->token)
			logprob =
				sampler_logprob(forward_logits(engine->forward, row->source)[token],
					result->log_sum);
		record(s, base + i, row, result, token, logprob);
	}
	atomic_store_explicit(&s->slot->n_recorded, base + part->n_emitted, memory_order_release);
}

static void count(const struct pass_part *part)
{
	struct session_page *page = part->session->page;
	struct slot_usage *usage = &part->session->slot->usage;
	uint8_t depth[LIMIT_DRAFT_NODES];

	usage->k_used[part->want.k]++;
	for (uint32_t i = 0; i < part->n_drafts; i++) {
		int parent = part->draft->node[i].parent;

		depth[i] = (uint8_t)(parent < 0 ? 0 : depth[parent] + 1);
		usage->drafted_at[depth[i]]++;
	}
	for (uint32_t i = 0; i < part->out.n_accepted; i++)
		usage->accepted_at[i]++;
	usage->drafted += part->n_drafts;
	usage->accepted += part->out.n_accepted;
	counter_add32(&page->drafted, part->n_drafts);
	counter_add32(&page->accepted, part->out.n_accepted);
}

/* Counts the emitted tokens whose rows chose an expert that their budget had left out. */
static void count_affected(
	const struct engine *engine, const struct pass *pass, const struct pass_part *part)
{
	const uint32_t *affected = forward_affected(engine->forward);
	uint32_t n = 0;

	for (uint32_t i = 0; i < part->n_emitted; i++)
		n += affected[pass->picks[picked_at(pass, part, i) - pass->picked].source] > 0;
	counter_add32(&part->session->page->lossy, n);
}

/* Logits are not finite if weights are NaN or infinite, in a file too large to be scanned when it
 * was loaded, or if finite weights are too large to be multiplied. Checks the whole row: among
 * logits of which only some are finite, a finite one would be chosen. */
static bool logits_finite(const struct engine *engine, const struct pass *pass,
	const struct pass_part *part, uint32_t i)
{
	const struct engine_session *s = part->session;
	char *message = s->slot->usage.message;

	if (picked_at(pass, part, i)->finite)
		return true;
	snprintf(message, sizeof(s->slot->usage.message),
		"the model's logits are not finite; `outrider-model check` names the weights of "
		"its file that are not, if any");
	log_session(LOG_LEVEL_ERROR, s->uid, engine->iteration, "%s", message);
	return false;
}

/* Accepts the tokens of a part whose rows include the newest committed token, up to the one that
 * ends the answer. They are written behind the committed ones; commit publishes them. */
static void accept_part(struct engine *engine, const struct pass *pass, struct pass_part *part)
{
	static const struct draft_reply no_draft;
	struct engine_session *s = part->session;
	struct session_page *page = s->page;
	struct logits_of of = {engine->forward, part->row + part->n - 1};
	struct accept_output *out = &part->out;
	struct accept_input input = {
		.params = &page->request.sampling,
		.draft = part->n_drafts > 0 ? part->draft : &no_draft,
		.picks = picked_at(pass, part, 0),
		.n_history = part->n_tokens,
		.history = page->tokens,
		.n_prompt = page->n_prompt,
		.rows = &pass->picks[part->pick],
		.logits = node_logits,
		.arg = &of,
	};
	uint32_t n = 0;

	accept_draft(&engine->sampler, &input, out);
	count(part);
	/* Tokens accepted behind an end are no part of the answer: with K = 0 they would not exist.
	 */
	while (n < out->n_tokens && part->end == SESSION_END_NONE) {
		if (!logits_finite(engine, pass, part, n)) {
			part->end = SESSION_END_ERROR;
			break;
		}
		if (s->slot->constraint != NULL &&
			(picked_at(pass, part, n)->none ||
				constraint_broken(s->slot->constraint))) {
			part->end = broken(engine, s);
			break;
		}
		page->tokens[part->n_tokens + n] = out->token[n];
		n++;
		part->end = end_after(engine, s, out->token[n - 1], part->n_tokens + n);
	}
	part->n_emitted = n;
	if (part->budgeted)
		count_affected(engine, pass, part);
	if (slot_records(s->slot))
		record_emitted(engine, pass, part);
}

void pass_accept(struct engine *engine, struct pass *pass)
{
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		struct pass_part *part = &pass->parts[i];

		if (slot_records(part->session->slot)) {
			record_again(pass, part);
			engine_mark(engine, part->session);
			engine_wake(engine, false);
		}
		if (part_accepts(part))
			accept_part(engine, pass, part);
		else if (part->emits)
			part->end = part->session->end_before;
	}
}
