#include "services/verifier/pass/scheduler.h"

#include "shared/base/limits.h"

/* Of n tokens, how many to compute now so that the chunk ends where it is to. */
static uint32_t ends_well(const struct sched_session *s, uint32_t n)
{
	uint32_t end = s->n_kv + n;

	for (int i = 0; i < 2; i++)
		if (s->stops[i] > s->n_kv && s->stops[i] < end)
			return s->stops[i] - s->n_kv;
	if (s->page != 0 && end < s->n_tokens && end / s->page * s->page > s->n_kv)
		end = end / s->page * s->page;
	return end - s->n_kv;
}

/* The same, so that no fast chunk is cut: 0 where the budget has no room for one. */
static uint32_t ends_whole(const struct sched_session *s, const struct sched_limits *limits,
	uint32_t n, uint32_t budget)
{
	if (s->n_kv >= s->n_fast || s->n_kv + n >= s->n_fast)
		return n;
	uint32_t whole = n / limits->fast_chunk * limits->fast_chunk;

	return whole == 0 && budget >= limits->fast_chunk ? limits->fast_chunk : whole;
}

/* How many committed tokens to compute now; 0 where the budget has no room for any. */
static uint32_t chunk(
	const struct sched_session *s, const struct sched_limits *limits, uint32_t budget)
{
	uint32_t n = s->n_tokens - s->n_kv;

	if (n > budget)
		n = budget;
	n = ends_whole(s, limits, ends_well(s, n), budget);
	/* There are few rows of logits, so output positions whose logits are wanted are computed in
	 * small steps. The prompt before them is not, because its logits are not wanted. */
	if (s->recorded && s->n_kv + n > s->n_prompt) {
		uint32_t before = s->n_kv + 1 < s->n_prompt ? s->n_prompt - 1 - s->n_kv : 0;

		if (n > before + limits->rows)
			n = before + limits->rows;
	}
	return n;
}

/* Counts sessions by client and priority, separately for those with `aside`: open addressing, at
 * most half full. */
enum { CLIENT_PLACES = 2 * LIMIT_SESSIONS };
struct client_count {
	uint64_t client;
	int32_t priority;
	uint32_t n[2]; /* without aside, and with it; both 0: the place is free */
};

/* Returns how many sessions of its client and priority were counted before it, and counts it. */
static uint32_t turn_of(struct client_count *counts, const struct sched_session *s)
{
	/* Clients are numbered in their order, so neighbours are next to each other. */
	uint32_t at = (uint32_t)((s->client + 31 * (uint32_t)(s->priority + LIMIT_PRIORITY)) %
				 CLIENT_PLACES);

	if (s->client == 0)
		return 0;
	while ((counts[at].client != s->client || counts[at].priority != s->priority) &&
		(counts[at].n[0] | counts[at].n[1]) != 0)
		at = (at + 1) % CLIENT_PLACES;
	counts[at].client = s->client;
	counts[at].priority = s->priority;
	return counts[at].n[s->aside]++;
}

/* A session's place in the order: aside, its priority behind the greatest, its turn. The lower the
 * earlier. */
static uint64_t place_of(const struct sched_session *s, int32_t top, uint32_t turn,
	const struct sched_ageing *ageing)
{
	uint64_t steps =
		ageing->now_ns > s->begun_ns ? (ageing->now_ns - s->begun_ns) / ageing->step_ns : 0;
	uint64_t behind = (uint64_t)(top - s->priority);

	if (steps <= behind)
		return (uint64_t)s->aside << 63 | (behind - steps) << 32 | turn;
	steps -= behind;
	return (uint64_t)s->aside << 63 | (turn > steps ? turn - (uint32_t)steps : 0);
}

struct placed {
	uint64_t place;
	struct sched_session *session;
};

/* Merges runs of `width` in from into runs of twice that in to; stable, so that the older of two
 * with one place comes first. */
static void merge(const struct placed *from, struct placed *to, uint32_t n, uint32_t width)
{
	for (uint32_t begin = 0; begin < n; begin += 2 * width) {
		uint32_t middle = begin + width < n ? begin + width : n;
		uint32_t end = begin + 2 * width < n ? begin + 2 * width : n;
		uint32_t a = begin, b = middle;

		for (uint32_t i = begin; i < end; i++)
			to[i] = a < middle && (b == end || from[a].place <= from[b].place)
					? from[a++]
					: from[b++];
	}
}

uint32_t sched_order(struct sched_session *const *sessions, uint32_t n,
	const struct sched_ageing *ageing, struct sched_session **order)
{
	struct client_count counts[CLIENT_PLACES] = {{0}};
	struct placed one[LIMIT_SESSIONS], other[LIMIT_SESSIONS], *from = one, *to = other;
	uint32_t running = 0;
	int32_t top = -LIMIT_PRIORITY;

	assert(n <= LIMIT_SESSIONS && ageing->step_ns > 0);
	for (uint32_t i = 0; i < n; i++)
		if (!sessions[i]->paused && sessions[i]->priority > top)
			top = sessions[i]->priority;
	for (uint32_t i = 0; i < n; i++)
		if (!sessions[i]->paused)
			one[running++] = (struct placed){
				place_of(sessions[i], top, turn_of(counts, sessions[i]), ageing),
				sessions[i]};
	for (uint32_t width = 1; width < running; width *= 2) {
		merge(from, to, running, width);
		struct placed *merged = to;
		to = from;
		from = merged;
	}
	for (uint32_t i = 0; i < running; i++) {
		order[i] = from[i].session;
		order[i]->rank = i;
	}
	return running;
}

/* Of a pass, what remains of it in the sums when the next one is added. */
#define COST_KEPT 0.97

void sched_learn(struct sched_cost *cost, uint32_t n, uint64_t ns)
{
	double x = n, y = (double)ns;

	cost->weight = COST_KEPT * cost->weight + 1;
	cost->n = COST_KEPT * cost->n + x;
	cost->ns = COST_KEPT * cost->ns + y;
	cost->n_n = COST_KEPT * cost->n_n + x * x;
	cost->n_ns = COST_KEPT * cost->n_ns + x * y;
	double mean_n = cost->n / cost->weight, mean_ns = cost->ns / cost->weight;
	double variance = cost->n_n / cost->weight - mean_n * mean_n;
	double both = cost->n_ns / cost->weight - mean_n * mean_ns;

	/* Passes that are all alike say nothing of the slope: it stays what it was. */
	if (variance > 1 && both > 0)
		cost->token_ns = both / variance;
	cost->base_ns = mean_ns - cost->token_ns * mean_n;
	if (cost->base_ns < 0)
		cost->base_ns = 0;
}

uint32_t sched_chunk(const struct sched_cost *cost, uint64_t ns_max, uint32_t most)
{
	uint32_t least = most < SCHED_CHUNK_MIN ? most : SCHED_CHUNK_MIN;

	if (ns_max == 0 || cost->token_ns <= 0)
		return most;
	double n = ((double)ns_max - cost->base_ns) / cost->token_ns;
	if (n <= least)
		return least;
	return n < most ? (uint32_t)n : most;
}

static bool decodes(const struct sched_session *s)
{
	return s->n_tokens - s->n_kv == 1;
}

uint64_t sched_pass_ns_max(
	struct sched_session *const *order, uint32_t n, const struct sched_limits *limits)
{
	uint64_t least = 0;

	for (uint32_t r = 0; r < n && r < limits->sessions_max; r++)
		if (decodes(order[r]) && order[r]->pass_ns_max != 0 &&
			(least == 0 || order[r]->pass_ns_max < least))
			least = order[r]->pass_ns_max;
	return least;
}

uint64_t sched_prefill_ns(const struct sched_cost *cost, uint64_t n, uint32_t chunk)
{
	if (cost->token_ns <= 0 || chunk == 0)
		return 0;
	uint64_t passes = (n + chunk - 1) / chunk;
	return (uint64_t)(cost->token_ns * (double)n + cost->base_ns * (double)passes);
}

uint32_t sched_plan(struct sched_session *const *order, uint32_t n,
	const struct sched_limits *limits, struct sched_entry *out)
{
	uint32_t budget = limits->prefill_chunk, entries = 0;

	for (uint32_t r = 0; r < n && entries < limits->sessions_max; r++) {
		const struct sched_session *s = order[r];

		assert(s->n_kv < s->n_tokens);
		if (decodes(s)) {
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
