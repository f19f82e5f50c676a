#include "services/drafter/hints.h"
#include "services/drafter/session.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <string.h>

void hints_head(struct hints *hints, const struct head_routes *routes)
{
	struct error err;
	hints->routes = NULL;
	route_recall_exit(&hints->recall);
	if (!routes || !routes->target)
		return;
	const struct model_config *c = &routes->target->config;
	if (route_recall_shape(
		    &hints->recall, routes->n_moe, c->n_experts, c->n_experts_used, &err) == 0)
		hints->routes = routes;
	else
		log_info("expert hints come from history: %s", err.text);
}

/* Whether the cache wants what the routers say, and has the experts of this target. */
static bool cache_wants(const struct hints *hints)
{
	const struct model *target = hints->routes ? hints->routes->target : NULL;
	return target && hints->config->hints != CHOICE_OFF && hints->attached &&
	       slots_hint_wanted(&hints->hinter, HINT_DRAFT) &&
	       hints->hinter.header->model_fingerprint == target->file_fingerprint &&
	       target->config.n_layers <= hints->hinter.slots.n_layers &&
	       target->config.n_experts <= hints->hinter.slots.n_experts;
}

bool hints_head_wanted(const struct hints *hints)
{
	return hints->routes && (hints->needs || cache_wants(hints));
}

bool hints_head_pass(struct hints *hints, bool *on)
{
	bool alone = cache_wants(hints) && !hints_wanted(hints, HINT_HISTORY);
	return hints_head_wanted(hints) && route_recall_pass(&hints->recall, alone, on);
}

/* Whether there is a history of this target, to compare with. */
static bool has_history(const struct hints *hints)
{
	const struct expert_history *h = &hints->history;
	return h->memory && h->n_moe == hints->recall.n_moe &&
	       h->n_experts == hints->recall.n_experts;
}

/* Where the cache wants no history, the routers are all there is. */
static bool believed(const struct hints *hints, uint32_t i)
{
	return route_recall_believed(&hints->recall, i) ||
	       (cache_wants(hints) && !hints_wanted(hints, HINT_HISTORY));
}

/* Hints of all layers in which the routers are believed. */
static void tell(struct hints *hints, const struct draft_session *s, const uint64_t *bits)
{
	const struct head_routes *routes = hints->routes;
	uint32_t n_experts = hints->recall.n_experts;
	if (hints->iteration == 0 || !cache_wants(hints))
		return;
	uint64_t now_ns = clock_ns();
	for (uint32_t i = 0; i < routes->n_moe; i++) {
		float chance = hints->recall.layer[i].recall[ROUTE_ROUTERS];
		if (!believed(hints, i))
			continue;
		for (uint32_t e = 0; e < n_experts; e++) {
			uint32_t bit = i * n_experts + e;
			if (bits[bit / 64] >> bit % 64 & 1)
				hints_tell(hints, HINT_DRAFT, routes->layer[i], i, e, chance,
					s->uid, now_ns);
		}
	}
	hints_flush(hints);
}

void hints_head_token(struct hints *hints, const struct draft_session *s, uint32_t position,
	int32_t before, int32_t token, const uint64_t *bits)
{
	const struct route_key key = {s->uid, position, before, token};
	if (!hints->routes)
		return;
	route_recall_note(
		&hints->recall, &key, bits, has_history(hints) ? &hints->history : NULL, s->page);
	tell(hints, s, bits);
}

void hints_head_history(struct hints *hints, const struct draft_session *s, const int32_t *tokens,
	uint32_t first, uint32_t n)
{
	bool left_out[LIMIT_LAYERS] = {false};
	bool any = hints->routes && cache_wants(hints);
	for (uint32_t i = 0; any && i < hints->routes->n_moe; i++)
		left_out[i] = believed(hints, i);
	hints_history(hints, s, tokens, first, n, any ? left_out : NULL);
}

/* Adds what a token needs in the layers in which the routers are believed. */
static bool add_needs(const struct hints *hints, const struct route_key *key, uint64_t *to)
{
	const struct route_recall *recall = &hints->recall;
	const uint64_t *from = route_recall_find(recall, key);
	bool any = false;
	for (uint32_t i = 0; from && i < recall->n_moe; i++) {
		if (!route_recall_believed(recall, i))
			continue;
		any = true;
		for (uint32_t e = 0; e < recall->n_experts; e++) {
			uint32_t bit = i * recall->n_experts + e;
			to[bit / 64] |= from[bit / 64] & UINT64_C(1) << bit % 64;
		}
	}
	return any;
}

void hints_head_needs(struct hints *hints, const struct draft_session *s, uint32_t n_words,
	struct draft_reply *reply)
{
	uint8_t depth[LIMIT_DRAFT_NODES];
	bool any = false;
	if (!hints->routes || n_words != hints->recall.n_words || s->n < 2 ||
		draft_room_needs(reply, n_words) < 0)
		return;
	memset(reply->need_room, 0, (size_t)(1 + reply->n) * n_words * sizeof(*reply->need_room));
	const struct route_key newest = {
		s->uid, s->n - 1, s->tokens[s->n - 2], s->tokens[s->n - 1]};
	any |= add_needs(hints, &newest, reply->need_room);
	for (uint32_t i = 0; i < reply->n; i++) {
		int parent = reply->node[i].parent;
		depth[i] = parent < 0 ? 0 : (uint8_t)(depth[parent] + 1);
		const struct route_key key = {s->uid, s->n + depth[i],
			parent < 0 ? s->tokens[s->n - 1] : reply->node[parent].token,
			reply->node[i].token};
		any |= add_needs(hints, &key, reply->need_room + (size_t)(1 + i) * n_words);
	}
	reply->needs = any ? reply->need_room : NULL;
}
