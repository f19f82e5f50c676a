#include "services/verifier/journal.h"

#include "shared/base/clock.h"
#include "shared/base/sampling.h"

#include <string.h>

void journal_admit(struct sessions_header *header, struct session_page *page, uint64_t uid,
	uint64_t admitted, const struct session_request *request, const int32_t *prompt,
	uint32_t n_prompt, const int32_t *replay)
{
	assert(atomic_load_explicit(&page->uid, memory_order_relaxed) == 0);
	assert(n_prompt > 0 && n_prompt <= header->n_context &&
		request->n_replay <= header->n_context);
	page->n_prompt = n_prompt;
	page->admitted = admitted;
	atomic_store_explicit(&page->told, 0, memory_order_relaxed);
	page->request = *request;
	memcpy(page->tokens, prompt, n_prompt * sizeof(*prompt));
	if (request->n_replay > 0)
		memcpy(session_replay(header, page), replay, request->n_replay * sizeof(*replay));
	atomic_store_explicit(&page->iterations, 0, memory_order_relaxed);
	atomic_store_explicit(&page->k, 0, memory_order_relaxed);
	atomic_store_explicit(&page->drafted, 0, memory_order_relaxed);
	atomic_store_explicit(&page->accepted, 0, memory_order_relaxed);
	atomic_store_explicit(&page->begun_ns, clock_ns(), memory_order_relaxed);
	atomic_store_explicit(&page->ended_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&page->end, SESSION_END_NONE, memory_order_relaxed);
	atomic_store_explicit(&page->n_tokens, n_prompt, memory_order_relaxed);
	atomic_store_explicit(&page->state, SESSION_QUEUED, memory_order_relaxed);
	/* Pairs with the acquire of whoever finds a uid here: the page behind it is whole. */
	atomic_store_explicit(&page->uid, uid, memory_order_release);
}

uint32_t journal_order(struct sessions_header *header, uint32_t *order)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < header->n_sessions; i++) {
		const struct session_page *page = session_at(header, i);
		uint32_t at = n;

		if (atomic_load_explicit(&page->uid, memory_order_acquire) == 0)
			continue;
		while (at > 0 && session_at(header, order[at - 1])->admitted > page->admitted) {
			order[at] = order[at - 1];
			at--;
		}
		order[at] = i;
		n++;
	}
	return n;
}

void journal_append(struct session_page *page, uint32_t n)
{
	uint32_t n_tokens = atomic_load_explicit(&page->n_tokens, memory_order_relaxed);

	/* Pairs with journal_n_tokens and the drafter's acquire: without it they could read old tokens. */
	atomic_store_explicit(&page->n_tokens, n_tokens + n, memory_order_release);
}

void journal_finish(struct session_page *page, enum session_end end)
{
	if (atomic_load_explicit(&page->ended_ns, memory_order_relaxed) == 0)
		atomic_store_explicit(&page->ended_ns, clock_ns(), memory_order_relaxed);
	atomic_store_explicit(&page->end, (uint32_t)end, memory_order_relaxed);
	/* Pairs with journal_state: a DONE page without its end would be an answer that never ended. */
	atomic_store_explicit(&page->state, SESSION_DONE, memory_order_release);
}

void journal_free(struct session_page *page)
{
	atomic_store_explicit(&page->uid, 0, memory_order_seq_cst);
	atomic_store_explicit(&page->state, SESSION_FREE, memory_order_release);
}

int journal_check_request(const struct session_request *request, uint32_t n_vocab,
	uint32_t n_context, struct error *err)
{
	int rc = sampler_params_check(&request->sampling, n_vocab, err);

	if (rc != 0)
		return rc;
	if (request->k != SESSION_K_POLICY && (request->k < 0 || request->k > LIMIT_DRAFT))
		return error_set(err, EINVAL, "k: %d is not 0..%d, nor the policy's choice",
			request->k, LIMIT_DRAFT);
	if (request->draft_method >= DRAFT_METHODS)
		return error_set(err, EINVAL, "draft_method: %u is not 0..%d",
			request->draft_method, DRAFT_METHODS - 1);
	if (request->n_replay > n_context)
		return error_set(err, EINVAL, "replay: %u tokens, the context holds %u",
			request->n_replay, n_context);
	rc = sampling_check(SAMPLING_REPLAY_ERROR, (double)request->replay_error, err);
	if (rc != 0)
		return rc;
	if (request->n_stops > LIMIT_STOPS)
		return error_set(err, EINVAL, "stop: %u strings, the limit is %d", request->n_stops,
			LIMIT_STOPS);
	for (size_t i = 0, at = 0; i < request->n_stops; i++) {
		size_t room = sizeof(request->stops) - at;
		size_t bytes = strnlen(request->stops + at, room);

		if (bytes == room || bytes == 0 || bytes >= LIMIT_STOP_BYTES)
			return error_set(err, EINVAL,
				"stop: string %zu is empty or longer than %d bytes", i + 1,
				LIMIT_STOP_BYTES - 1);
		at += bytes + 1;
	}
	return 0;
}

int journal_check(const struct sessions_header *header, struct session_page *page, uint32_t n_vocab,
	struct error *err)
{
	uint32_t n_tokens = journal_n_tokens(page), state = journal_state(page);
	uint32_t end = atomic_load_explicit(&page->end, memory_order_relaxed);
	int rc = journal_check_request(&page->request, n_vocab, header->n_context, err);

	if (rc != 0)
		return rc;
	if (state == SESSION_FREE || state > SESSION_DONE)
		return error_set(err, EINVAL, "state %u", state);
	if (end > SESSION_END_ERROR || (state == SESSION_DONE && end == SESSION_END_NONE))
		return error_set(err, EINVAL, "end %u in state %u", end, state);
	if (page->n_prompt == 0 || page->n_prompt > n_tokens || n_tokens > header->n_context)
		return error_set(err, EINVAL, "%u prompt tokens, %u tokens, context %u",
			page->n_prompt, n_tokens, header->n_context);
	for (uint32_t i = 0; i < n_tokens; i++)
		if (page->tokens[i] < 0 || (uint32_t)page->tokens[i] >= n_vocab)
			return error_set(err, EINVAL, "token %u is %d, the vocabulary has %u", i,
				page->tokens[i], n_vocab);
	return 0;
}
