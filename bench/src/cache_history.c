#include "bench/src/cache_history.h"

#include "services/drafter/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One session at a time: it has the first page, as it would have in an idle service. */
enum { PAGE = 0 };

static int open_ring(struct cache_history *h, struct error *err)
{
	size_t bytes = ring_bytes(DRAFT_ROUTING_BYTES, DRAFT_ROUTING_SLOTS);
	h->memory = aligned_alloc(CACHE_LINE, bytes);
	if (!h->memory)
		return error_set(err, ENOMEM, "no memory for a ring of %zu bytes", bytes);
	memset(h->memory, 0, bytes);
	ring_format(h->memory, DRAFT_ROUTING_BYTES, DRAFT_ROUTING_SLOTS);
	int rc = ring_attach(&h->told, h->memory, bytes, DRAFT_ROUTING_BYTES, err);
	return rc < 0 ? rc : ring_attach(&h->heard, h->memory, bytes, DRAFT_ROUTING_BYTES, err);
}

int cache_history_init(
	struct cache_history *h, const struct model *model, uint32_t n_max, struct error *err)
{
	const struct model_config *config = &model->config;
	struct drafter_config drafter;
	memset(h, 0, sizeof(*h));
	config_defaults(drafter_config_keys, &drafter);
	h->experts = calloc(config->n_experts, sizeof(*h->experts));
	h->score = calloc(config->n_experts, sizeof(*h->score));
	int rc = h->experts && h->score ? 0 : error_set(err, ENOMEM, "no memory for hints");
	if (rc == 0)
		rc = expert_history_shape(&h->history, config->n_layers, config->n_experts,
			config->n_experts_used, (size_t)drafter.history, err);
	if (rc == 0)
		rc = open_ring(h, err);
	if (rc == 0)
		rc = routing_feed_init(&h->feed, model, &h->told, n_max, err);
	h->feed.on = true;
	if (rc < 0)
		cache_history_exit(h);
	return rc;
}

void cache_history_exit(struct cache_history *h)
{
	routing_feed_exit(&h->feed);
	expert_history_exit(&h->history);
	free(h->memory);
	free(h->experts);
	free(h->score);
	memset(h, 0, sizeof(*h));
}

void cache_history_layer(
	struct cache_history *h, uint32_t layer, uint32_t n_tokens, const uint16_t *experts)
{
	routing_feed_layer(&h->feed, layer, n_tokens, experts);
}

void cache_history_learn(struct cache_history *h, const struct batch_token *batch, uint32_t n,
	uint64_t session, int32_t before)
{
	struct draft_routing entry;
	routing_feed_publish(&h->feed, batch, 0, n, session, PAGE, before, NULL);
	while (ring_get(&h->heard, &entry, sizeof(entry)))
		expert_history_learn(&h->history, &entry);
}

void cache_history_expect(struct cache_history *h, uint64_t session, const int32_t *tokens,
	uint32_t first, uint32_t n)
{
	expert_history_begin(&h->history);
	for (uint32_t i = first; i < first + n; i++)
		expert_history_token(
			&h->history, PAGE, session, i > 0 ? tokens[i - 1] : -1, tokens[i]);
}

uint32_t cache_history_choose(struct cache_history *h, uint32_t ordinal)
{
	return expert_history_choose(&h->history, ordinal, h->experts, h->score);
}
