#include "services/verifier/pass/scheduler.h"

#include "shared/base/limits.h"

/* Committed tokens to compute now; at least one when budget is. */
static uint32_t chunk(
	const struct sched_session *s, const struct sched_limits *limits, uint32_t budget)
{
	uint32_t n = s->n_tokens - s->n_kv;

	if (n > budget)
		n = budget;
	/* Rows of logits are few: output positions that must show theirs go in small steps, the prompt before them
	 * (whose logits nobody wants) does not. */
	if (s->hashed && s->n_kv + n > s->n_prompt) {
		uint32_t before = s->n_kv + 1 < s->n_prompt ? s->n_prompt - 1 - s->n_kv : 0;

		if (n > before + limits->rows)
			n = before + limits->rows;
	}
	return n;
}

/* How many sessions of its client run before it. */
static uint32_t turn_of(const struct sched_session *sessions, uint32_t i)
{
	uint32_t turn = 0;

	for (uint32_t j = 0; j < i && sessions[i].client != 0; j++)
		turn += sessions[j].client == sessions[i].client && !sessions[j].paused &&
			sessions[j].aside == sessions[i].aside;
	return turn;
}

void sched_rank(struct sched_session *sessions, uint32_t n)
{
	uint32_t turns[LIMIT_SESSIONS];

	assert(n <= LIMIT_SESSIONS);
	for (uint32_t i = 0; i < n; i++) {
		turns[i] = turn_of(sessions, i) + (sessions[i].aside ? LIMIT_SESSIONS : 0);
		sessions[i].rank = 0;
		for (uint32_t j = 0; j < i; j++)
			sessions[turns[j] <= turns[i] ? i : j].rank++;
	}
}

uint32_t sched_plan(const struct sched_session *sessions, uint32_t n,
	const struct sched_limits *limits, struct sched_entry *out)
{
	uint32_t budget = limits->prefill_chunk, entries = 0;
	uint32_t order[LIMIT_SESSIONS];

	assert(n <= LIMIT_SESSIONS);
	for (uint32_t i = 0; i < n; i++)
		order[sessions[i].rank] = i;
	for (uint32_t r = 0; r < n && entries < limits->sessions_max; r++) {
		uint32_t i = order[r];
		const struct sched_session *s = &sessions[i];

		if (s->paused)
			continue;
		assert(s->n_kv < s->n_tokens);
		if (s->n_tokens - s->n_kv == 1) {
			out[entries++] = (struct sched_entry){
				.session = i, .n = 1, .emits = true, .decodes = true};
			continue;
		}
		uint32_t take = chunk(s, limits, budget);
		if (take == 0)
			continue;
		budget -= take;
		out[entries++] = (struct sched_entry){
			.session = i, .n = take, .emits = s->n_kv + take == s->n_tokens};
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

int sched_victim(
	const struct sched_session *sessions, uint32_t n, uint32_t wanting, const bool *in_batch)
{
	uint32_t rank = sessions[wanting].rank;
	int last = -1;

	for (uint32_t i = n; i-- > 0;) {
		if (i == wanting || in_batch[i] || sessions[i].n_pages == 0)
			continue;
		if (sessions[i].paused)
			return (int)i;
		if (sessions[i].rank > rank) {
			rank = sessions[i].rank;
			last = (int)i;
		}
	}
	return last;
}
