#include "services/drafter/route_recall.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void route_recall_exit(struct route_recall *r)
{
	free(r->key);
	free(r->bits);
	memset((void *)r, 0, sizeof(*r));
}

int route_recall_shape(struct route_recall *r, uint32_t n_moe, uint32_t n_experts, uint32_t n_used,
	struct error *err)
{
	uint32_t n_words = (n_moe * n_experts + 63) / 64;
	route_recall_exit(r);
	if (n_moe == 0 || n_moe > LIMIT_LAYERS || n_experts > LIMIT_EXPERTS || n_used == 0)
		return 0;
	r->key = calloc(ROUTE_NOTES, sizeof(*r->key));
	r->bits = calloc((size_t)ROUTE_NOTES * ROUTE_SOURCES * n_words, sizeof(*r->bits));
	if (!r->key || !r->bits) {
		route_recall_exit(r);
		return error_set(err, ENOMEM, "no memory for what is predicted of experts");
	}
	r->n_moe = n_moe;
	r->n_experts = n_experts;
	r->n_used = n_used;
	r->n_words = n_words;
	return 0;
}

static uint32_t place_of(const struct route_key *key)
{
	uint64_t x = key->session ^ (uint64_t)key->position << 32;
	x = (x ^ (uint64_t)(uint32_t)key->token) * UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 29 ^ (uint64_t)(uint32_t)key->before) * UINT64_C(0xbf58476d1ce4e5b9);
	return (uint32_t)(x >> 32) % ROUTE_NOTES;
}

static bool same(const struct route_key *a, const struct route_key *b)
{
	return a->session == b->session && a->position == b->position && a->before == b->before &&
	       a->token == b->token;
}

static uint64_t *bits_of(const struct route_recall *r, uint32_t place, enum route_source source)
{
	return r->bits + ((size_t)place * ROUTE_SOURCES + source) * r->n_words;
}

void route_recall_note(struct route_recall *r, const struct route_key *key, const uint64_t *routers,
	struct expert_history *history, uint32_t page)
{
	uint32_t place = place_of(key);
	size_t bytes = r->n_words * sizeof(*routers);
	r->key[place] = *key;
	memcpy(bits_of(r, place, ROUTE_ROUTERS), routers, bytes);
	memset(bits_of(r, place, ROUTE_HISTORY), 0, bytes);
	if (history)
		expert_history_needs(history, page, key->session, key->before, key->token,
			bits_of(r, place, ROUTE_HISTORY));
}

const uint64_t *route_recall_find(const struct route_recall *r, const struct route_key *key)
{
	if (r->n_words == 0 || !same(&r->key[place_of(key)], key))
		return NULL;
	return bits_of(r, place_of(key), ROUTE_ROUTERS);
}

bool route_recall_pass(struct route_recall *r, bool any, bool *on)
{
	bool all = any || r->passes++ % ROUTE_TRIAL == 0, some = false;
	for (uint32_t i = 0; i < r->n_moe; i++) {
		on[i] = all || r->layer[i].n < ROUTE_LEAST || route_recall_believed(r, i);
		some |= on[i];
	}
	return some;
}

/* Whether the routers said anything of a layer. */
static bool said(const struct route_recall *r, uint32_t place, uint32_t at)
{
	const uint64_t *bits = bits_of(r, place, ROUTE_ROUTERS);
	for (uint32_t bit = at * r->n_experts; bit < (at + 1) * r->n_experts; bit++)
		if (bits[bit / 64] >> bit % 64 & 1)
			return true;
	return false;
}

static void compare(struct route_recall *r, uint32_t place, uint32_t at, const uint16_t *used)
{
	struct route_layer *layer = &r->layer[at];
	uint32_t n = atomic_load_explicit(&layer->n, memory_order_relaxed) + 1;
	float by = 1.0f / (float)(n < ROUTE_SPAN ? n : ROUTE_SPAN);
	for (int source = 0; source < ROUTE_SOURCES; source++) {
		const uint64_t *bits = bits_of(r, place, (enum route_source)source);
		uint32_t found = 0;
		for (uint32_t j = 0; j < r->n_used; j++) {
			uint32_t bit = at * r->n_experts + used[j];
			found += (uint32_t)(bits[bit / 64] >> bit % 64 & 1);
		}
		float share = (float)found / (float)r->n_used;
		layer->recall[source] += (share - layer->recall[source]) * by;
		atomic_store_explicit(&layer->per_mille[source],
			(uint32_t)(layer->recall[source] * 1000 + 0.5f), memory_order_relaxed);
	}
	atomic_store_explicit(&layer->n, n, memory_order_relaxed);
}

void route_recall_learn(struct route_recall *r, const struct draft_routing *entry)
{
	const struct route_key key = {entry->session, entry->position, entry->before, entry->token};
	uint32_t row = 1 + r->n_used;
	if (r->n_words == 0 || entry->session == 0 || entry->n_used != r->n_used ||
		entry->n_moe != r->n_moe || entry->n_layers * row > DRAFT_ROUTING_ITEMS ||
		entry->first >= r->n_moe || entry->n_layers > r->n_moe - entry->first ||
		!same(&r->key[place_of(&key)], &key))
		return;
	for (uint32_t l = 0; l < entry->n_layers; l++) {
		const uint16_t *items = entry->items + (size_t)l * row;
		bool legal = true;
		for (uint32_t j = 1; j < row; j++)
			legal &= items[j] < r->n_experts;
		if (legal && said(r, place_of(&key), entry->first + l))
			compare(r, place_of(&key), entry->first + l, items + 1);
	}
}

bool route_recall_believed(const struct route_recall *r, uint32_t i)
{
	const struct route_layer *layer = &r->layer[i];
	return i < r->n_moe && layer->n >= ROUTE_LEAST &&
	       layer->recall[ROUTE_ROUTERS] > layer->recall[ROUTE_HISTORY];
}
