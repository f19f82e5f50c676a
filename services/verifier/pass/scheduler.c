#include "services/verifier/pass/scheduler.h"

#include "shared/base/limits.h"

/* How many committed tokens to compute now; at least one if budget is. */
static uint32_t chunk(
	const struct sched_session *s, const struct sched_limits *limits, uint32_t budget)
{
	uint32_t n = s->n_tokens - s->n_kv;

	if (n > budget)
		n = budget;
	/* There are few rows of logits, so output positions whose logits are wanted are computed in
	 * small steps. The prompt before them is not, because its logits are not wanted. */
	if (s->recorded && s->n_kv + n > s->n_prompt) {
		uint32_t before = s->n_kv + 1 < s->n_prompt ? s->n_prompt - 1 - s->n_kv : 0;

		if (n > before + limits->rows)
			n = before + limits->rows;
	}
	return n;
}

/* Counts sessions by client, separately for those with `aside`: open addressing, at most half full.
 */
enum { CLIENT_PLACES = 2 * LIMIT_SESSIONS };
struct client_count {
	uint64_t client;
	uint32_t n[2]; /* without aside, and with it; both 0: the place is free */
};

/* Returns how many sessions of its client were counted before it, and counts it. */
static uint32_t turn_of(struct client_count *counts, const struct sched_session *s)
{
	/* Clients are numbered in their order, so neighbours are next to each other. */
	uint32_t at = (uint32_t)(s->client % CLIENT_PLACES);

	if (s->client == 0)
		return 0;
	while (counts[at].client != s->client && (counts[at].n[0] | counts[at].n[1]) != 0)
		at = (at + 1) % CLIENT_PLACES;
	counts[at].client = s->client;
	return counts[at].n[s->aside]++;
}

uint32_t sched_order(
	struct sched_session *const *sessions, uint32_t n, struct sched_session **order)
{
	struct client_count counts[CLIENT_PLACES] = {{0}};
	/* The number of sessions of each turn, then where they begin in order[]. */
	uint32_t begin[2 * LIMIT_SESSIONS] = {0}, turn[LIMIT_SESSIONS], running = 0;

	assert(n <= LIMIT_SESSIONS);
	for (uint32_t i = 0; i < n; i++) {
		if (sessions[i]->paused)
			continue;
		turn[i] = turn_of(counts, sessions[i]) + (sessions[i]->aside ? LIMIT_SESSIONS : 0);
		begin[turn[i]]++;
	}
	for (uint32_t t = 0; t < 2 * LIMIT_SESSIONS; t++) {
		uint32_t in_turn = begin[t];

		begin[t] = running;
		running += in_turn;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (sessions[i]->paused)
			continue;
		sessions[i]->rank = begin[turn[i]]++;
		order[sessions[i]->rank] = sessions[i];
	}
	return running;
}

uint32_t sched_plan(struct sched_session *const *order, uint32_t n,
	const struct sched_limits *limits, struct sched_entry *out)
{
	uint32_t budget = limits->prefill_chunk, entries = 0;

	for (uint32_t r = 0; r < n && entries < limits->sessions_max; r++) {
		const struct sched_session *s = order[r];

		assert(s->n_kv < s->n_tokens);
		if (s->n_tokens - s->n_kv == 1) {
			out[entries++] = (struct sched_entry){
				.session = s, .n = 1, .emits = true, .decodes = true};
			continue;
		}
		uint32_t take = chunk(s, limits, budget);
		if (take == 0)
			continue;
		budget -= take;
		out[entries++] = (struct sched_entry){
			.session = s, .n = take, .emits = s->n_kv + take == s->n_tokens};
	}
	return entries;
}

uint32_t sched_k(uint32_t asked, uint32_t n_tokens, uint32_t n_prompt, uint32_t max_tokens,
	uint32_t n_context)
{
	uint32_t n_out = n_tokens - n_prompt;
	uint32_t left = max_tokens > n_out ? max_tokens - n_out : 0;
	uint32_t room = n_context > n_tokens ? n_context - n_tokens : 0;

	if (left > room)
		left = room;
	if (left <= 1)
		return 0;
	return asked < left - 1 ? asked : left - 1;
}

struct sched_session *sched_victim(
	struct sched_victims *victims, const struct sched_session *wanting)
{
	while (victims->n_sessions > 0) {
		struct sched_session *s = victims->sessions[--victims->n_sessions];

		if (s->paused && s->n_pages > 0)
			return s;
	}
	while (victims->n_order > wanting->rank + 1) {
		struct sched_session *s = victims->order[--victims->n_order];

		if (s->n_pages > 0)
			return s;
	}
	return NULL;
}
