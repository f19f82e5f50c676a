#include "services/verifier/state/journal.h"

#include "shared/base/checksum.h"
#include "shared/base/clock.h"
#include "shared/base/round.h"
#include "shared/base/sampling.h"
#include "shared/model/grammar/grammar.h"
#include "kernels/steps.h"

#include <stdlib.h>
#include <string.h>

/* The parts of a page before and behind its stop strings and grammar, which most requests do not
 * have. */
#define HEAD_BYTES \
	(offsetof(struct session_page, request) + offsetof(struct session_request, stops))
#define TAIL_AT (offsetof(struct session_page, request) + sizeof(struct session_request))

/* Copies a page without its tokens. False: the page, which any process may have written, has
 * impossible sizes of its texts. */
static bool copy_page(struct session_page *to, const struct session_page *from)
{
	memcpy(to, from, HEAD_BYTES);
	memcpy((char *)to + TAIL_AT, (const char *)from + TAIL_AT, sizeof(*to) - TAIL_AT);
	if (to->request.stops_bytes > LIMIT_STOPS_BYTES ||
		to->request.grammar_bytes > LIMIT_GRAMMAR_BYTES)
		return false;
	memcpy(to->request.stops, from->request.stops,
		to->request.stops_bytes + to->request.grammar_bytes);
	return true;
}

size_t journal_page_bytes(uint32_t n_context)
{
	return round_up(sizeof(struct session_page) + n_context * sizeof(int32_t), CACHE_LINE);
}

struct session_page *journal_page(uint32_t n_context)
{
	struct session_page *page = aligned_alloc(CACHE_LINE, journal_page_bytes(n_context));

	/* Neither stop strings nor tokens: memory of theirs that is not used stays untouched. */
	if (page != NULL) {
		memset(page, 0, HEAD_BYTES);
		memset((char *)page + TAIL_AT, 0, sizeof(*page) - TAIL_AT);
	}
	return page;
}

static uint64_t sum_of_request(const struct session_page *page, uint64_t uid)
{
	uint64_t sum = checksum(SESSIONS_LAYOUT, &uid, sizeof(uid));

	sum = checksum(sum, &page->n_prompt, sizeof(page->n_prompt));
	return checksum(sum, &page->request, session_request_bytes(&page->request));
}

/* Adds tokens one by one, so that the sum does not depend on how many were appended at once. */
static uint64_t sum_of_tokens(uint64_t sum, const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		sum = checksum(sum, &tokens[i], sizeof(tokens[i]));
	return sum;
}

/* Which of the two sums is for the tokens that are there; -1: neither. */
static int sum_in_force(const struct session_page *page, uint32_t n_tokens)
{
	for (int i = 0; i < 2; i++)
		if (atomic_load_explicit(&page->sums[i].n_tokens, memory_order_relaxed) == n_tokens)
			return i;
	return -1;
}

static void set_sum(struct session_page *page, int i, uint32_t n_tokens, uint64_t sum)
{
	atomic_store_explicit(&page->sums[i].sum, sum, memory_order_relaxed);
	atomic_store_explicit(&page->sums[i].n_tokens, n_tokens, memory_order_relaxed);
}

static uint64_t sum_of_end(uint64_t sum, uint32_t end)
{
	return checksum(sum, &end, sizeof(end));
}

void journal_count(const struct session_page *page, struct session_page *shared)
{
	atomic_store_explicit(&shared->iterations,
		atomic_load_explicit(&page->iterations, memory_order_relaxed),
		memory_order_relaxed);
	atomic_store_explicit(&shared->k, atomic_load_explicit(&page->k, memory_order_relaxed),
		memory_order_relaxed);
	atomic_store_explicit(&shared->drafted,
		atomic_load_explicit(&page->drafted, memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(&shared->accepted,
		atomic_load_explicit(&page->accepted, memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(&shared->cached,
		atomic_load_explicit(&page->cached, memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(&shared->lossy,
		atomic_load_explicit(&page->lossy, memory_order_relaxed), memory_order_relaxed);
}

/* Begins one of the two pages; its tokens are there. */
static void begin(struct session_page *page, const struct session_page *from, uint64_t sum)
{
	page->n_prompt = from->n_prompt;
	if (page != from)
		memcpy(&page->request, &from->request, session_request_bytes(&from->request));
	atomic_store_explicit(&page->told, 0, memory_order_relaxed);
	atomic_store_explicit(&page->asleep, SLEEP_NOT, memory_order_relaxed);
	atomic_store_explicit(&page->ended_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&page->end, SESSION_END_NONE, memory_order_relaxed);
	atomic_store_explicit(&page->end_sum, 0, memory_order_relaxed);
	set_sum(page, 0, from->n_prompt, sum);
	set_sum(page, 1, 0, 0);
	atomic_store_explicit(&page->n_tokens, from->n_prompt, memory_order_relaxed);
	atomic_store_explicit(&page->state, SESSION_QUEUED, memory_order_relaxed);
}

static void copy_replay(const struct sessions_header *header, struct session_page *shared,
	const struct session_request *request, const int32_t *replay)
{
	if (request->n_replay > 0)
		memcpy(session_replay(header, shared), replay, request->n_replay * sizeof(*replay));
}

/* Fills both pages with their state before there is output. The sums include uid, which is not
 * stored here. */
static void fill(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, uint64_t uid, uint64_t admitted,
	const struct session_request *request, const int32_t *prompt, uint32_t n_prompt)
{
	uint64_t now_ns = clock_ns();

	assert(n_prompt > 0 && n_prompt <= header->n_context &&
		request->n_replay <= header->n_context);
	page->n_prompt = n_prompt;
	memcpy(&page->request, request, session_request_bytes(request));
	memcpy(page->tokens, prompt, n_prompt * sizeof(*prompt));
	memcpy(shared->tokens, prompt, n_prompt * sizeof(*prompt));
	uint64_t sum = sum_of_tokens(sum_of_request(page, uid), prompt, n_prompt);
	atomic_store_explicit(&page->iterations, 0, memory_order_relaxed);
	atomic_store_explicit(&page->k, 0, memory_order_relaxed);
	atomic_store_explicit(&page->drafted, 0, memory_order_relaxed);
	atomic_store_explicit(&page->accepted, 0, memory_order_relaxed);
	atomic_store_explicit(&page->cached, 0, memory_order_relaxed);
	atomic_store_explicit(&page->lossy, 0, memory_order_relaxed);
	journal_count(page, shared);
	journal_number(page, shared, admitted);
	atomic_store_explicit(&page->begun_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&shared->begun_ns, now_ns, memory_order_relaxed);
	begin(page, page, sum);
	begin(shared, page, sum);
}

static void publish(struct session_page *page, struct session_page *shared, uint64_t uid)
{
	atomic_store_explicit(&page->uid, uid, memory_order_release);
	/* Pairs with the acquire of a reader that finds a uid here: the rest of the page is
	 * complete. */
	atomic_store_explicit(&shared->uid, uid, memory_order_release);
}

void journal_admit(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, uint64_t uid, uint64_t admitted,
	const struct session_request *request, const int32_t *prompt, uint32_t n_prompt,
	const int32_t *replay)
{
	fill(header, page, shared, uid, admitted, request, prompt, n_prompt);
	copy_replay(header, shared, request, replay);
	publish(page, shared, uid);
}

uint32_t journal_order(struct session_page *const *pages, uint32_t n_pages, uint32_t *order)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_pages; i++) {
		uint32_t at = n;

		if (pages[i] == NULL)
			continue;
		while (at > 0 && pages[order[at - 1]]->admitted > pages[i]->admitted) {
			order[at] = order[at - 1];
			at--;
		}
		order[at] = i;
		n++;
	}
	return n;
}

void journal_append(struct session_page *page, struct session_page *shared, uint32_t n)
{
	uint32_t n_tokens = atomic_load_explicit(&page->n_tokens, memory_order_relaxed);
	int now = sum_in_force(page, n_tokens);
	const int32_t *tokens = page->tokens + n_tokens;

	if (n == 0)
		return;
	assert(now >= 0);
	uint64_t sum = atomic_load_explicit(&page->sums[now].sum, memory_order_relaxed);
	sum = sum_of_tokens(sum, tokens, n);
	memcpy(shared->tokens + n_tokens, tokens, n * sizeof(*tokens));
	set_sum(page, !now, n_tokens + n, sum);
	set_sum(shared, !now, n_tokens + n, sum);
	/* Pairs with the drafter's acquire, and a successor's. Without it they could read old
	 * tokens, and a successor might find no sum for the tokens. */
	atomic_store_explicit(&shared->n_tokens, n_tokens + n, memory_order_release);
	/* Our own page is last; pairs with journal_n_tokens, from which the front sends tokens. So
	 * a token that was sent is in the region, and a successor has it. */
	atomic_store_explicit(&page->n_tokens, n_tokens + n, memory_order_release);
}

static void end_page(struct session_page *page, uint64_t now_ns, uint32_t end, uint64_t sum)
{
	if (atomic_load_explicit(&page->ended_ns, memory_order_relaxed) == 0)
		atomic_store_explicit(&page->ended_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&page->end_sum, sum, memory_order_relaxed);
	/* A reader that finds the end finds its sum. */
	atomic_store_explicit(&page->end, end, memory_order_release);
	/* Pairs with journal_state: a DONE page without its end would be an answer without an end.
	 */
	atomic_store_explicit(&page->state, SESSION_DONE, memory_order_release);
}

void journal_finish(struct session_page *page, struct session_page *shared, enum session_end end)
{
	uint64_t now_ns = clock_ns();
	int now = sum_in_force(page, journal_n_tokens(page));

	assert(now >= 0);
	uint64_t sum = atomic_load_explicit(&page->sums[now].sum, memory_order_relaxed);
	sum = sum_of_end(sum, (uint32_t)end);
	/* Our own page is last: from then on the front may free both. */
	end_page(shared, now_ns, (uint32_t)end, sum);
	end_page(page, now_ns, (uint32_t)end, sum);
}

/* Stores the end of an audit, which has not come yet: it is still to be computed. */
static void preset_end(struct session_page *page, struct session_page *shared)
{
	int now = sum_in_force(page, journal_n_tokens(page));

	assert(now >= 0);
	uint64_t sum = sum_of_end(atomic_load_explicit(&page->sums[now].sum, memory_order_relaxed),
		SESSION_END_LENGTH);
	atomic_store_explicit(&page->end_sum, sum, memory_order_relaxed);
	atomic_store_explicit(&shared->end_sum, sum, memory_order_relaxed);
	atomic_store_explicit(&page->end, SESSION_END_LENGTH, memory_order_relaxed);
	atomic_store_explicit(&shared->end, SESSION_END_LENGTH, memory_order_relaxed);
}

void journal_admit_audit(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, uint64_t uid, uint64_t admitted,
	const struct session_request *request, const int32_t *prompt, uint32_t n_prompt,
	const int32_t *audit)
{
	assert(request->audit && n_prompt + request->max_tokens <= header->n_context);
	fill(header, page, shared, uid, admitted, request, prompt, n_prompt);
	memcpy(page->tokens + n_prompt, audit, request->max_tokens * sizeof(*audit));
	journal_append(page, shared, request->max_tokens);
	preset_end(page, shared);
	publish(page, shared, uid);
}

void journal_number(struct session_page *page, struct session_page *shared, uint64_t admitted)
{
	page->admitted = shared->admitted = admitted;
}

void journal_enter(struct session_page *page, struct session_page *shared, enum session_state state)
{
	if (atomic_load_explicit(&page->state, memory_order_relaxed) == (uint32_t)state)
		return;
	atomic_store_explicit(&page->state, (uint32_t)state, memory_order_relaxed);
	atomic_store_explicit(&shared->state, (uint32_t)state, memory_order_relaxed);
}

void journal_again(struct session_page *page, struct session_page *shared, uint64_t admitted)
{
	journal_number(page, shared, admitted);
	journal_enter(page, shared, SESSION_PREFILL);
}

void journal_tell(struct session_page *page, struct session_page *shared, bool told)
{
	atomic_store_explicit(&page->told, told, memory_order_relaxed);
	atomic_store_explicit(&shared->told, told, memory_order_relaxed);
}

void journal_sleep(
	struct session_page *page, struct session_page *shared, enum session_sleep asleep)
{
	atomic_store_explicit(&page->asleep, (uint32_t)asleep, memory_order_relaxed);
	atomic_store_explicit(&shared->asleep, (uint32_t)asleep, memory_order_relaxed);
}

struct session_page *journal_keep(const struct sessions_header *header,
	const struct session_page *page, struct session_page *shared, size_t *bytes)
{
	size_t tokens = journal_n_tokens(page) * sizeof(int32_t);
	size_t replay = page->request.n_replay * sizeof(int32_t);
	struct session_page *kept;

	*bytes = round_lines(sizeof(*page) + tokens + replay);
	kept = aligned_alloc(CACHE_LINE, *bytes);
	if (kept == NULL)
		return NULL;
	(void)copy_page(kept, page);
	memcpy(kept->tokens, page->tokens, tokens);
	memcpy((char *)kept->tokens + tokens, session_replay(header, shared), replay);
	return kept;
}

static void set_times(struct session_page *page, uint64_t begun_ns, uint64_t ended_ns)
{
	atomic_store_explicit(&page->begun_ns, begun_ns, memory_order_relaxed);
	atomic_store_explicit(&page->ended_ns, ended_ns, memory_order_relaxed);
}

static void copy_counter(_Atomic uint32_t *to, const _Atomic uint32_t *from)
{
	atomic_store_explicit(
		to, atomic_load_explicit(from, memory_order_relaxed), memory_order_relaxed);
}

void journal_restore(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, const struct session_page *kept, uint64_t admitted)
{
	uint64_t uid = atomic_load_explicit(&kept->uid, memory_order_relaxed);
	uint64_t begun_ns = atomic_load_explicit(&kept->begun_ns, memory_order_relaxed);
	uint64_t ended_ns = atomic_load_explicit(&kept->ended_ns, memory_order_relaxed);
	uint32_t n_tokens = journal_n_tokens(kept), more = n_tokens - kept->n_prompt;

	fill(header, page, shared, uid, admitted, &kept->request, kept->tokens, kept->n_prompt);
	copy_replay(header, shared, &kept->request, kept->tokens + n_tokens);
	memcpy(page->tokens + kept->n_prompt, kept->tokens + kept->n_prompt,
		more * sizeof(*page->tokens));
	journal_append(page, shared, more);
	copy_counter(&page->k, &kept->k);
	copy_counter(&page->drafted, &kept->drafted);
	copy_counter(&page->accepted, &kept->accepted);
	copy_counter(&page->cached, &kept->cached);
	copy_counter(&page->lossy, &kept->lossy);
	atomic_store_explicit(&page->iterations,
		atomic_load_explicit(&kept->iterations, memory_order_relaxed),
		memory_order_relaxed);
	journal_count(page, shared);
	set_times(page, begun_ns, ended_ns);
	set_times(shared, begun_ns, ended_ns);
	if (journal_state(kept) == SESSION_DONE)
		journal_finish(page, shared,
			(enum session_end)atomic_load_explicit(&kept->end, memory_order_relaxed));
	else if (kept->request.audit)
		preset_end(page, shared);
	publish(page, shared, uid);
}

void journal_free(struct session_page *page, struct session_page *shared)
{
	atomic_store_explicit(&shared->uid, 0, memory_order_seq_cst);
	atomic_store_explicit(&shared->state, SESSION_FREE, memory_order_release);
	atomic_store_explicit(&page->uid, 0, memory_order_relaxed);
	atomic_store_explicit(&page->state, SESSION_FREE, memory_order_relaxed);
}

static int check_grammar(const struct session_request *request, struct error *err)
{
	bool without = request->grammar_kind == GRAMMAR_NONE ||
		       request->grammar_kind == GRAMMAR_JSON_OBJECT;

	if (request->grammar_kind >= GRAMMAR_KINDS)
		return error_set(err, EINVAL, "grammar_kind: %u is not 0..%d",
			request->grammar_kind, GRAMMAR_KINDS - 1);
	if (request->grammar_bytes > LIMIT_GRAMMAR_BYTES)
		return error_set(err, EINVAL, "grammar: %u bytes, the limit is %d",
			request->grammar_bytes, LIMIT_GRAMMAR_BYTES);
	if (without && request->grammar_bytes > 0)
		return error_set(err, EINVAL, "grammar: the kind %s takes no source",
			grammar_kind_names[request->grammar_kind]);
	if (request->grammar_kind == GRAMMAR_NONE)
		return 0;
	if (request->ignore_eos)
		return error_set(
			err, EINVAL, "ignore_eos: the grammar decides where the answer ends");
	if (request->sampling.coupling == COUPLING_MAXIMAL)
		return error_set(err, EINVAL, "coupling: a grammar needs gumbel");
	return 0;
}

int journal_check_request(const struct session_request *request, uint32_t n_vocab,
	uint32_t n_context, struct error *err)
{
	int rc = sampler_params_check(&request->sampling, n_vocab, err);

	if (rc != 0)
		return rc;
	if (request->k != SESSION_K_POLICY && (request->k < 0 || request->k > LIMIT_DRAFT_DEPTH))
		return error_set(err, EINVAL, "k: %d is not 0..%d, nor the policy's choice",
			request->k, LIMIT_DRAFT_DEPTH);
	if (request->draft_nodes > LIMIT_DRAFT_NODES || request->draft_width > LIMIT_DRAFT_WIDTH ||
		(request->draft_nodes > 0) != (request->draft_width > 0))
		return error_set(err, EINVAL,
			"a tree of drafts: %u tokens, width %u; allowed are 1..%d and 1..%d, or 0 "
			"and 0 for a chain",
			request->draft_nodes, request->draft_width, LIMIT_DRAFT_NODES,
			LIMIT_DRAFT_WIDTH);
	if (request->logprobs > LIMIT_TOP_LOGPROBS + 1 || request->logprobs > n_vocab + 1)
		return error_set(err, EINVAL,
			"logprobs: %u likely tokens are wanted, allowed are 0 to %u",
			request->logprobs - 1,
			n_vocab < LIMIT_TOP_LOGPROBS ? n_vocab : LIMIT_TOP_LOGPROBS);
	if (request->draft_method >= DRAFT_METHODS)
		return error_set(err, EINVAL, "draft_method: %u is not 0..%d",
			request->draft_method, DRAFT_METHODS - 1);
	if (request->budgeted > 1 || request->budget_ranking >= BUDGET_RANKINGS ||
		request->budget_coverage >= BUDGET_COVERAGES)
		return error_set(err, EINVAL,
			"an expert budget (%u), ranking %u, coverage %u: allowed are 0..1, 0..%d "
			"and 0..%d",
			request->budgeted, request->budget_ranking, request->budget_coverage,
			BUDGET_RANKINGS - 1, BUDGET_COVERAGES - 1);
	if (request->n_replay > n_context)
		return error_set(err, EINVAL, "replay: %u tokens, the context holds %u",
			request->n_replay, n_context);
	rc = sampling_check(SAMPLING_REPLAY_ERROR, (double)request->replay_error, err);
	if (rc != 0)
		return rc;
	if (request->n_stops > LIMIT_STOPS)
		return error_set(err, EINVAL, "stop: %u strings, the limit is %d", request->n_stops,
			LIMIT_STOPS);
	size_t at = 0;
	for (size_t i = 0; i < request->n_stops; i++) {
		size_t room = request->stops_bytes - at;
		size_t bytes = strnlen(request->stops + at, room);

		if (bytes == room || bytes == 0 || bytes >= LIMIT_STOP_BYTES)
			return error_set(err, EINVAL,
				"stop: string %zu is empty or longer than %d bytes", i + 1,
				LIMIT_STOP_BYTES - 1);
		at += bytes + 1;
	}
	if (at != request->stops_bytes)
		return error_set(err, EINVAL, "stop: %u strings have %zu bytes, not %u",
			request->n_stops, at, request->stops_bytes);
	return check_grammar(request, err);
}

/* Checks that everything is in range. */
static int check_ranges(const struct sessions_header *header, const struct session_page *page,
	uint32_t n_vocab, struct error *err)
{
	uint32_t n_tokens = journal_n_tokens(page), state = journal_state(page);
	uint32_t end = atomic_load_explicit(&page->end, memory_order_relaxed);
	int rc = journal_check_request(&page->request, n_vocab, header->n_context, err);

	if (rc == 0)
		rc = classes_check(&page->request.of_class, err);
	if (rc != 0)
		return rc;
	if (state == SESSION_FREE || state > SESSION_DONE)
		return error_set(err, EINVAL, "state %u", state);
	if (end > SESSION_END_ERROR || (state == SESSION_DONE && end == SESSION_END_NONE))
		return error_set(err, EINVAL, "end %u in state %u", end, state);
	if (page->n_prompt == 0 || page->n_prompt > n_tokens || n_tokens > header->n_context)
		return error_set(err, EINVAL, "%u prompt tokens, %u tokens, context %u",
			page->n_prompt, n_tokens, header->n_context);
	return 0;
}

/* Call after check_ranges. */
static int check_sums(const struct session_page *page, struct error *err)
{
	uint32_t n_tokens = journal_n_tokens(page);
	uint32_t end = atomic_load_explicit(&page->end, memory_order_relaxed);
	int now = sum_in_force(page, n_tokens);
	uint64_t uid = atomic_load_explicit(&page->uid, memory_order_relaxed);
	uint64_t sum = sum_of_tokens(sum_of_request(page, uid), page->tokens, n_tokens);

	if (now < 0 || atomic_load_explicit(&page->sums[now].sum, memory_order_relaxed) != sum)
		return error_set(err, EINVAL,
			"its %u tokens or its request differ from what was written there",
			n_tokens);
	if (end != SESSION_END_NONE &&
		atomic_load_explicit(&page->end_sum, memory_order_relaxed) != sum_of_end(sum, end))
		return error_set(err, EINVAL, "its end differs from what was written there");
	return 0;
}

int journal_adopt(const struct sessions_header *header, const struct session_page *shared,
	uint32_t n_vocab, struct session_page *page, struct error *err)
{
	/* Pairs with the release in journal_append. The copy is checked, not the original. */
	(void)journal_n_tokens(shared);
	if (!copy_page(page, shared))
		return error_set(err, EINVAL, "stop strings of %u bytes, a grammar of %u",
			page->request.stops_bytes, page->request.grammar_bytes);
	int rc = check_ranges(header, page, n_vocab, err);

	if (rc != 0)
		return rc;
	uint32_t n_tokens = journal_n_tokens(page);
	memcpy(page->tokens, shared->tokens, n_tokens * sizeof(*page->tokens));
	for (uint32_t i = 0; i < n_tokens; i++)
		if (page->tokens[i] < 0 || (uint32_t)page->tokens[i] >= n_vocab)
			return error_set(err, EINVAL, "token %u is %d, the vocabulary has %u", i,
				page->tokens[i], n_vocab);
	return check_sums(page, err);
}
