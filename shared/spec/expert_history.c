#include "shared/spec/expert_history.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { WAYS = 4 };

/* Counts are in units of 1 / COUNT_ONE sightings. At each sighting a count loses 1 / DECAY of
 * itself, so it never exceeds DECAY sightings. */
#define COUNT_ONE 1024u
#define DECAY 32u
static_assert(COUNT_ONE * DECAY <= UINT16_MAX, "counts fit");

#define EVERYBODY_TOKENS 2048u
#define SESSION_TOKENS 128u

/* How many sightings the prior of each level is worth. On the recorded outputs of the four
 * workloads, learnt in turn (models/golden/workload-outputs.jsonl), 75% of the experts of the next
 * token are foreseen, and 79% of the foreseen ones are used; for the next four tokens the figures
 * are 83% and 84%. To halve or double any of these constants changes each figure by less than one
 * percentage point. */
#define PRIOR_SESSION 16.0f
#define PRIOR_TOKEN 2.0f
#define PRIOR_PAIR 1.0f

struct candidate {
	uint16_t expert, count;
};

struct history_entry {
	uint64_t key; /* 0 = free */
	uint32_t seen; /* history.clock when it was last seen */
	uint32_t count; /* in units of 1 / COUNT_ONE sightings */
	struct candidate candidates[]; /* [n_layers][n_candidates] */
};

void expert_history_init(struct expert_history *history)
{
	memset(history, 0, sizeof(*history));
}

void expert_history_exit(struct expert_history *history)
{
	if (history->memory)
		munmap(history->memory, history->memory_bytes);
	memset(history, 0, sizeof(*history));
}

/* Gives the table its size, at most `bytes`. */
static void size_table(
	struct expert_history_table *table, const struct expert_history *h, size_t bytes)
{
	uint32_t n = 2 * h->n_used > h->n_used + 4 ? 2 * h->n_used : h->n_used + 4;
	table->n_candidates = n < h->n_experts ? n : h->n_experts;
	table->entry_bytes = sizeof(struct history_entry) +
			     (size_t)h->n_layers * table->n_candidates * sizeof(struct candidate);
	table->entry_bytes = (table->entry_bytes + 7) / 8 * 8;
	table->n_sets = 0;
	for (uint32_t n_sets = 1;
		n_sets <= UINT32_MAX / 2 / WAYS && n_sets * WAYS * table->entry_bytes <= bytes;
		n_sets *= 2)
		table->n_sets = n_sets;
}

static size_t table_bytes(const struct expert_history_table *table)
{
	return (size_t)table->n_sets * WAYS * table->entry_bytes;
}

static void *carve(unsigned char **from, size_t bytes)
{
	unsigned char *at = *from;
	*from += bytes;
	return at;
}

int expert_history_shape(struct expert_history *h, uint32_t n_layers, uint32_t n_experts,
	uint32_t n_used, size_t bytes, struct error *err)
{
	expert_history_exit(h);
	if (n_layers == 0 || n_layers > LIMIT_LAYERS || n_experts == 0 ||
		n_experts > LIMIT_EXPERTS || n_used == 0 || n_used > n_experts ||
		n_used > LIMIT_EXPERTS_USED)
		return error_set(err, EBADMSG, "%u layers of %u experts, %u used", n_layers,
			n_experts, n_used);
	h->n_layers = n_layers;
	h->n_experts = n_experts;
	h->n_used = n_used;
	size_table(&h->tokens, h, bytes / 2);
	size_table(&h->pairs, h, bytes / 2);
	size_t matrix = (size_t)n_layers * n_experts * sizeof(float);
	size_t tables = table_bytes(&h->tokens) + table_bytes(&h->pairs);
	h->memory_bytes = tables + matrix * (2 + LIMIT_SESSIONS) + LIMIT_EXPERTS * sizeof(float);
	/* Pages that are never used cost no memory. */
	unsigned char *at = mmap(NULL, h->memory_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED) {
		size_t wanted = h->memory_bytes;
		expert_history_init(h);
		return error_set(err, ENOMEM, "no memory for a history of %zu bytes", wanted);
	}
	h->memory = at;
	h->tokens.entries = carve(&at, table_bytes(&h->tokens));
	h->pairs.entries = carve(&at, table_bytes(&h->pairs));
	h->everybody = carve(&at, matrix);
	h->unneeded = carve(&at, matrix);
	h->sessions = carve(&at, matrix * LIMIT_SESSIONS);
	h->estimate = carve(&at, LIMIT_EXPERTS * sizeof(float));
	return 0;
}

/* ---- Tables. ---- */

static uint64_t key_of(int32_t before, int32_t token)
{
	uint64_t x = (uint64_t)(uint32_t)before << 32 | (uint32_t)token;
	x = (x ^ (x >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 32;
	return x ? x : 1;
}

static struct history_entry *entry_at(
	const struct expert_history_table *table, uint64_t key, uint32_t way)
{
	size_t set = (size_t)(key & (table->n_sets - 1));
	return (struct history_entry *)(table->entries + (set * WAYS + way) * table->entry_bytes);
}

static struct history_entry *find(const struct expert_history_table *table, uint64_t key)
{
	for (uint32_t w = 0; table->n_sets > 0 && w < WAYS; w++)
		if (entry_at(table, key, w)->key == key)
			return entry_at(table, key, w);
	return NULL;
}

/* The key's entry. If there is none, a new one replaces the entry of the set that was seen longest
 * ago. */
static struct history_entry *take(
	struct expert_history_table *table, const struct expert_history *h, uint64_t key)
{
	struct history_entry *entry = find(table, key);
	if (entry || table->n_sets == 0)
		return entry;
	entry = entry_at(table, key, 0);
	for (uint32_t w = 0; w < WAYS; w++) {
		struct history_entry *other = entry_at(table, key, w);
		if (other->key == 0) {
			entry = other;
			break;
		}
		/* Modulo 2^32, so ages are compared, not times. */
		if (h->clock - other->seen > h->clock - entry->seen)
			entry = other;
	}
	memset(entry, 0, table->entry_bytes);
	entry->key = key;
	return entry;
}

static void decay(uint16_t *count)
{
	*count = (uint16_t)(*count - *count / DECAY);
}

/* Counts the experts that the token used in one layer. A new one replaces the candidate with the
 * lowest count. */
static void note(const struct expert_history_table *table, const struct expert_history *h,
	struct history_entry *entry, uint32_t ordinal, const uint16_t *experts)
{
	uint32_t n = table->n_candidates;
	struct candidate *candidates = entry->candidates + (size_t)ordinal * n;
	for (uint32_t i = 0; i < n; i++)
		decay(&candidates[i].count);
	for (uint32_t j = 0; j < h->n_used; j++) {
		uint32_t at = 0;
		for (uint32_t i = 0; i < n; i++) {
			if (candidates[i].count > 0 && candidates[i].expert == experts[j]) {
				at = i;
				break;
			}
			if (candidates[i].count < candidates[at].count)
				at = i;
		}
		struct candidate *c = &candidates[at];
		if (c->count == 0 || c->expert != experts[j])
			*c = (struct candidate){.expert = experts[j]};
		c->count = (uint16_t)(c->count + COUNT_ONE - COUNT_ONE / DECAY);
	}
}

/* ---- Learning. ---- */

static bool legal(const struct expert_history *h, const struct draft_routing *entry)
{
	uint32_t row = 1 + h->n_used;
	if (h->n_layers == 0 || entry->n_used != h->n_used || entry->n_moe == 0 ||
		entry->n_moe > h->n_layers || entry->page >= LIMIT_SESSIONS ||
		entry->session == 0 || entry->token < 0 || entry->n_layers == 0 ||
		entry->n_layers * row > DRAFT_ROUTING_ITEMS || entry->first >= entry->n_moe ||
		entry->n_layers > entry->n_moe - entry->first)
		return false;
	for (uint32_t l = 0; l < entry->n_layers; l++) {
		const uint16_t *items = entry->items + (size_t)l * row;
		if (items[0] >= h->n_layers)
			return false;
		for (uint32_t j = 1; j < row; j++)
			if (items[j] >= h->n_experts)
				return false;
	}
	return true;
}

/* Moves a share by the fraction `by` towards 1 where the expert was used, else towards 0. */
static void move(
	float *share, uint32_t n_experts, const uint16_t *experts, uint32_t n_used, float by)
{
	for (uint32_t e = 0; e < n_experts; e++)
		share[e] -= by * share[e];
	for (uint32_t j = 0; j < n_used; j++)
		share[experts[j]] += by;
}

static float *session_share(const struct expert_history *h, uint32_t page, uint32_t ordinal)
{
	return h->sessions + ((size_t)page * h->n_layers + ordinal) * h->n_experts;
}

/* The session's entry, cleared if the page belonged to another session. */
static struct expert_history_session *session_of(
	struct expert_history *h, uint32_t page, uint64_t uid)
{
	struct expert_history_session *session = &h->session[page];
	if (session->uid == uid)
		return session;
	*session = (struct expert_history_session){.uid = uid};
	memset(session_share(h, page, 0), 0,
		(size_t)h->n_layers * h->n_experts * sizeof(*h->sessions));
	return session;
}

/* Called once per token, for its first entry of the ring. */
static void count_token(struct expert_history *h, struct history_entry *entry)
{
	if (!entry)
		return;
	entry->count += COUNT_ONE - entry->count / DECAY;
	entry->seen = h->clock;
}

static void learn_layers(struct expert_history *h, const struct draft_routing *entry,
	struct history_entry *token, struct history_entry *pair)
{
	const struct expert_history_session *session = &h->session[entry->page];
	float by_all = 1.0f / (float)(h->n_everybody > 0 ? h->n_everybody : 1);
	float by_session = 1.0f / (float)(session->n > 0 ? session->n : 1);
	for (uint32_t l = 0; l < entry->n_layers; l++) {
		const uint16_t *items = entry->items + (size_t)l * (1 + h->n_used);
		uint32_t ordinal = entry->first + l;
		h->layer[ordinal] = items[0];
		move(h->everybody + (size_t)ordinal * h->n_experts, h->n_experts, items + 1,
			h->n_used, by_all);
		move(session_share(h, entry->page, ordinal), h->n_experts, items + 1, h->n_used,
			by_session);
		if (token)
			note(&h->tokens, h, token, ordinal, items + 1);
		if (pair)
			note(&h->pairs, h, pair, ordinal, items + 1);
	}
}

void expert_history_learn(struct expert_history *h, const struct draft_routing *entry)
{
	if (!legal(h, entry)) {
		h->refused++;
		return;
	}
	struct expert_history_session *session = session_of(h, entry->page, entry->session);
	struct history_entry *token = take(&h->tokens, h, key_of(-1, entry->token));
	struct history_entry *pair =
		entry->before < 0 ? NULL : take(&h->pairs, h, key_of(entry->before, entry->token));
	if (entry->first == 0) {
		h->clock++;
		h->n_everybody += h->n_everybody < EVERYBODY_TOKENS;
		session->n += session->n < SESSION_TOKENS;
		count_token(h, token);
		count_token(h, pair);
	}
	h->n_moe = entry->n_moe;
	learn_layers(h, entry, token, pair);
	h->learnt++;
}

/* ---- Estimating. ---- */

void expert_history_begin(struct expert_history *h)
{
	size_t n = (size_t)h->n_moe * h->n_experts;
	for (size_t i = 0; i < n; i++)
		h->unneeded[i] = 1;
}

/* estimate <- (prior * estimate + counts) / (prior + sightings). */
static void sharpen(const struct expert_history *h, const struct expert_history_table *table,
	const struct history_entry *entry, uint32_t ordinal, float prior)
{
	if (!entry)
		return;
	float sightings = (float)entry->count / COUNT_ONE, scale = 1 / (prior + sightings);
	for (uint32_t e = 0; e < h->n_experts; e++)
		h->estimate[e] *= prior * scale;
	const struct candidate *c = entry->candidates + (size_t)ordinal * table->n_candidates;
	for (uint32_t i = 0; i < table->n_candidates; i++)
		if (c[i].count > 0)
			h->estimate[c[i].expert] += (float)c[i].count * (scale / COUNT_ONE);
}

/* What is known of a token before its layers are looked at. */
struct token_view {
	float share; /* weight of the session's own matrix */
	const struct history_entry *by_token, *by_pair;
};

static struct token_view view_of(
	const struct expert_history *h, uint32_t page, uint64_t uid, int32_t before, int32_t token)
{
	const struct expert_history_session *session = &h->session[page];
	float n_session = session->uid == uid ? (float)session->n : 0;
	return (struct token_view){
		.share = n_session / (n_session + PRIOR_SESSION),
		.by_token = find(&h->tokens, key_of(-1, token)),
		.by_pair = before < 0 ? NULL : find(&h->pairs, key_of(before, token)),
	};
}

/* Sets h->estimate to the probability of each expert of a layer. */
static void estimate(
	struct expert_history *h, const struct token_view *view, uint32_t page, uint32_t ordinal)
{
	const float *all = h->everybody + (size_t)ordinal * h->n_experts;
	const float *own = session_share(h, page, ordinal);
	for (uint32_t e = 0; e < h->n_experts; e++)
		h->estimate[e] = view->share * own[e] + (1 - view->share) * all[e];
	sharpen(h, &h->tokens, view->by_token, ordinal, PRIOR_TOKEN);
	sharpen(h, &h->pairs, view->by_pair, ordinal, PRIOR_PAIR);
}

void expert_history_token(
	struct expert_history *h, uint32_t page, uint64_t uid, int32_t before, int32_t token)
{
	expert_history_token_but(h, page, uid, before, token, NULL);
}

void expert_history_token_but(struct expert_history *h, uint32_t page, uint64_t uid, int32_t before,
	int32_t token, const bool *left_out)
{
	if (h->n_moe == 0 || page >= LIMIT_SESSIONS)
		return;
	const struct token_view view = view_of(h, page, uid, before, token);
	for (uint32_t o = 0; o < h->n_moe; o++) {
		float *unneeded = h->unneeded + (size_t)o * h->n_experts;
		if (left_out && left_out[o])
			continue;
		estimate(h, &view, page, o);
		for (uint32_t e = 0; e < h->n_experts; e++) {
			float p = h->estimate[e] < 1 ? h->estimate[e] : 1;
			unneeded[e] *= 1 - p;
		}
	}
}

uint32_t expert_history_words(const struct expert_history *h)
{
	return (h->n_layers * h->n_experts + 63) / 64;
}

void expert_history_needs(struct expert_history *h, uint32_t page, uint64_t uid, int32_t before,
	int32_t token, uint64_t *bits)
{
	if (h->n_moe == 0 || page >= LIMIT_SESSIONS)
		return;
	const struct token_view view = view_of(h, page, uid, before, token);
	for (uint32_t o = 0; o < h->n_moe; o++) {
		estimate(h, &view, page, o);
		for (uint32_t j = 0; j < h->n_used; j++) {
			uint32_t best = 0;
			for (uint32_t e = 1; e < h->n_experts; e++)
				if (h->estimate[e] > h->estimate[best])
					best = e;
			if (!(h->estimate[best] > 0))
				break;
			h->estimate[best] = 0;
			uint32_t bit = o * h->n_experts + best;
			bits[bit / 64] |= UINT64_C(1) << bit % 64;
		}
	}
}

/* The probabilities are sorted into this many steps to choose the likeliest. */
enum { STEPS = 256 };

static uint32_t step_of(float p)
{
	return p >= 1 ? STEPS - 1 : (uint32_t)(p * STEPS);
}

uint32_t expert_history_choose(
	struct expert_history *h, uint32_t ordinal, uint16_t *experts, float *score)
{
	if (ordinal >= h->n_moe)
		return 0;
	const float *unneeded = h->unneeded + (size_t)ordinal * h->n_experts;
	uint32_t steps[STEPS] = {0}, n = 0, left, step = STEPS;
	float expected = 0;
	for (uint32_t e = 0; e < h->n_experts; e++) {
		expected += 1 - unneeded[e];
		steps[step_of(1 - unneeded[e])]++;
	}
	left = (uint32_t)(expected + 0.5f);
	while (step > 1 && steps[step - 1] <= left)
		left -= steps[--step];
	/* All experts of the steps from `step` on, and `left` of those of the step below. Those of
	 * step 0, below 1/256, are not hinted. */
	for (uint32_t e = 0; e < h->n_experts; e++) {
		float p = 1 - unneeded[e];
		uint32_t own = step_of(p);
		if (own < step && (own + 1 < step || own == 0 || left == 0))
			continue;
		left -= own < step;
		experts[n] = (uint16_t)e;
		score[n++] = p;
	}
	return n;
}
