/* Greedy decoding with drafts, without the service: passes of the target and of the drafters. */
#include "bench/src/cache_record.h"

#include "bench/src/prompts_file.h"
#include "services/drafter/config.h"
#include "shared/base/clock.h"
#include "shared/base/rand.h"

#include <errno.h>
#include <string.h>

/* With a single thread, its CPU time is the time of computing, whatever else the machine did. With
 * several, only the wall time tells how fast they were. */
uint64_t record_clock_ns(const struct recorder *r)
{
	return r->options->threads == 1 ? clock_thread_cpu_ns() : clock_ns();
}

/* ---- Passes. ---- */

/* A pass of the target, recorded. */
static int run_target(
	struct recorder *r, const struct trace_pass *pass, const int32_t *tokens, struct error *err)
{
	if (!r->silent && cache_trace_add_pass(&r->trace, pass) < 0)
		return error_set(err, ENOMEM, "no memory for the trace");
	r->mark_ns = record_clock_ns(r);
	return decoding_run(&r->target, tokens, pass->tokens, false, err);
}

static int prefill(struct recorder *r, uint64_t session, int32_t *first, struct error *err)
{
	int rc = 0;
	r->prefill = true;
	for (uint32_t at = 0; rc == 0 && at < r->n_prompt;) {
		uint32_t n = r->n_prompt - at < RECORD_CHUNK ? r->n_prompt - at : RECORD_CHUNK;
		struct trace_pass pass = {.session = session, .tokens = n, .prefill = true};
		pass.emitted = at + n == r->n_prompt;
		rc = run_target(r, &pass, r->tokens + at, err);
		if (rc < 0)
			break;
		struct engine *e = &r->target;
		*first =
			greatest_logit(forward_logits(e->forward, n - 1), e->model->config.n_vocab);
		record_learn(r, session, n);
		decoding_commit(&r->target, n, n);
		at += n;
	}
	r->prefill = false;
	return rc;
}

/* ---- Drafting. ---- */

/* Reads the tokens that the drafter lacks, then runs one pass per drafted token; the last token's
 * pass gives hints. */
static int draft_by_model(
	struct recorder *r, uint32_t k, int32_t *out, uint32_t *n, struct error *err)
{
	struct engine *e = &r->draft;
	bool silent = r->silent;
	int rc = 0;
	kv_truncate(&e->kv, &e->seq, e->seq.n < r->n - 1 ? e->seq.n : r->n - 1);
	while (rc == 0 && r->n - e->seq.n > 1) {
		uint32_t lag = r->n - 1 - e->seq.n, chunk = lag < RECORD_CHUNK ? lag : RECORD_CHUNK;
		r->silent = true;
		rc = decoding_run(&r->draft, r->tokens + e->seq.n, chunk, false, err);
		if (rc == 0)
			decoding_commit(&r->draft, chunk, chunk);
	}
	r->silent = silent;
	int32_t token = r->tokens[r->n - 1];
	for (*n = 0; rc == 0 && *n < k; ++*n) {
		rc = decoding_run(&r->draft, &token, 1, false, err);
		if (rc < 0)
			break;
		token = greatest_logit(forward_logits(e->forward, 0), e->model->config.n_vocab);
		out[*n] = token;
		decoding_commit(&r->draft, 1, 1);
	}
	return rc;
}

/* The tokens of the run at K = 0, some of them replaced by wrong ones. */
static uint32_t draft_by_replay(const struct recorder *r, uint32_t k, int32_t *out)
{
	uint32_t n = 0;
	for (; n < k && r->n - r->n_prompt + n < r->n_recorded; n++) {
		uint32_t position = r->n + n;
		int32_t token = r->recorded[r->n - r->n_prompt + n];
		bool right = rand_uniform(1, RAND_REPLAY, position, 0) * 100 <
			     r->options->accept_percent;
		out[n] = right ? token : token > 0 ? token - 1 : 1;
	}
	return n;
}

/* The tokens that followed an earlier occurrence of the longest suffix. */
static uint32_t draft_by_ngram(struct recorder *r, uint32_t k, int32_t *out)
{
	uint32_t length, from;
	ngram_update(&r->ngram, r->tokens, r->n);
	from = ngram_find(&r->ngram, r->tokens, r->n, &length);
	if (from == NGRAM_NONE)
		return 0;
	ngram_propose(r->tokens, r->n, from, k, out);
	return k;
}

static int draft(struct recorder *r, uint32_t k, int32_t *out, uint32_t *n, struct error *err)
{
	*n = 0;
	if (k > 0 && r->options->drafter == CACHE_DRAFT_MODEL)
		return draft_by_model(r, k, out, n, err);
	if (k > 0 && r->options->drafter == CACHE_DRAFT_REPLAY)
		*n = draft_by_replay(r, k, out);
	else if (k > 0 && r->options->drafter == CACHE_DRAFT_NGRAM)
		*n = draft_by_ngram(r, k, out);
	return 0;
}

static bool eog(const struct recorder *r, int32_t token)
{
	return tokenizer_is_eog(r->target.tokenizer, token);
}

/* One iteration: drafts, verifies, emits the accepted tokens and one more. *done: the answer ended,
 * or is long enough. */
static int iterate(struct recorder *r, uint64_t session, uint32_t k, uint32_t most, bool *done,
	struct error *err)
{
	int32_t batch[1 + LIMIT_DRAFT_DEPTH];
	uint32_t drafted = 0, left = most - (r->n - r->n_prompt);
	if (k >= left)
		k = left - 1;
	batch[0] = r->tokens[r->n - 1];
	/* The pass comes first in the trace, and the hints of its drafting belong to it. */
	struct trace_pass pass = {.session = session, .tokens = 1};
	if (!r->silent && cache_trace_add_pass(&r->trace, &pass) < 0)
		return error_set(err, ENOMEM, "no memory for the trace");
	uint32_t at = r->trace.n_passes - 1;
	record_forget_hints(r);
	r->draft_start_ns = record_clock_ns(r);
	int rc = draft(r, k, batch + 1, &drafted, err);
	if (rc < 0)
		return rc;
	uint64_t draft_ns = record_clock_ns(r) - r->draft_start_ns;
	/* The draft model has made hints for all but its last token, whose hidden states it did not
	 * compute. */
	bool by_model = drafted > 0 && r->options->drafter == CACHE_DRAFT_MODEL;
	memcpy(r->tokens + r->n, batch + 1, drafted * sizeof(*batch));
	record_history_hints(
		r, session, r->n - 1 + (by_model ? drafted : 0), by_model ? 1 : 1 + drafted);
	r->mark_ns = record_clock_ns(r);
	rc = decoding_run(&r->target, batch, 1 + drafted, true, err);
	if (rc < 0)
		return rc;
	record_learn(r, session, 1 + drafted);
	uint32_t emitted = 0;
	const struct engine *e = &r->target;
	for (bool right = true; right && !*done; emitted++) {
		int32_t token = greatest_logit(
			forward_logits(e->forward, emitted), e->model->config.n_vocab);
		r->tokens[r->n++] = token;
		*done = eog(r, token) || r->n - r->n_prompt == most;
		right = emitted < drafted && batch[1 + emitted] == token;
	}
	decoding_commit(&r->target, emitted, 1 + drafted);
	if (!r->silent) {
		struct trace_pass *to = &r->trace.passes[at];
		to->tokens = 1 + drafted;
		to->drafted = drafted;
		to->emitted = emitted;
		to->draft_ns = drafted > 0 ? draft_ns : 0;
	}
	return 0;
}

/* With the drafter's default settings. */
static int restart_ngram(struct recorder *r)
{
	struct drafter_config config;
	config_defaults(drafter_config_keys, &config);
	ngram_exit(&r->ngram);
	return ngram_init(&r->ngram, (uint32_t)config.ngram_min, (uint32_t)config.ngram_max,
		DECODING_TOKENS_MAX, 1);
}

int record_answer(
	struct recorder *r, uint64_t session, uint32_t k, uint32_t most, struct error *err)
{
	struct engine *e = &r->target;
	bool done = false;
	kv_truncate(&e->kv, &e->seq, 0);
	if (r->options->drafter == CACHE_DRAFT_MODEL)
		kv_truncate(&r->draft.kv, &r->draft.seq, 0);
	r->n = r->n_prompt;
	if (r->options->drafter == CACHE_DRAFT_NGRAM && restart_ngram(r) < 0)
		return error_set(err, ENOMEM, "no memory for n-grams");
	int rc = prefill(r, session, &r->tokens[r->n], err);
	if (rc < 0)
		return rc;
	done = eog(r, r->tokens[r->n++]) || most <= 1;
	while (rc == 0 && !done)
		rc = iterate(r, session, k, most, &done, err);
	if (rc == 0 && r->status != 0)
		rc = error_set(err, -r->status, "no memory for the trace");
	return rc;
}
