#include "services/verifier/pass/routing_feed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int routing_feed_init(struct routing_feed *feed, const struct model *model, struct ring *ring,
	uint32_t n_max, struct error *err)
{
	memset(feed, 0, sizeof(*feed));
	if (model->config.n_experts == 0)
		return 0;
	for (uint32_t l = 0; l < model->config.n_layers; l++)
		if (model->layers[l].moe)
			feed->ordinal[l] = (uint16_t)feed->n_moe++;
	feed->ring = ring;
	feed->n_used = model->config.n_experts_used;
	feed->n_max = n_max;
	size_t row = 1 + feed->n_used, n = (size_t)n_max * feed->n_moe;
	feed->items = calloc(n * row, sizeof(*feed->items));
	if (feed->items == NULL)
		return error_set(err, ENOMEM, "no memory for what %u tokens are routed to", n_max);
	for (uint32_t l = 0; l < model->config.n_layers; l++)
		for (size_t i = feed->ordinal[l]; model->layers[l].moe && i < n; i += feed->n_moe)
			feed->items[i * row] = (uint16_t)l;
	return 0;
}

void routing_feed_exit(struct routing_feed *feed)
{
	free(feed->items);
	memset(feed, 0, sizeof(*feed));
}

void routing_feed_layer(
	struct routing_feed *feed, uint32_t layer, uint32_t n_tokens, const uint16_t *experts)
{
	if ((!feed->on && !feed->kept) || experts == NULL || n_tokens > feed->n_max)
		return;
	size_t row = 1 + feed->n_used, token = feed->n_moe * row;
	uint16_t *to = feed->items + feed->ordinal[layer] * row + 1;

	for (uint32_t t = 0; t < n_tokens; t++)
		memcpy(to + t * token, experts + (size_t)t * feed->n_used,
			feed->n_used * sizeof(*experts));
}

/* How many layers one entry holds. */
static uint32_t layers_of_entry(const struct routing_feed *feed)
{
	return DRAFT_ROUTING_ITEMS / (1 + feed->n_used);
}

/* Fills in an entry with the layers from l on of the row number `at`. */
static void fill(const struct routing_feed *feed, struct draft_routing *entry,
	const struct draft_routing *head, uint32_t at, uint32_t l)
{
	uint32_t row = 1 + feed->n_used, fit = layers_of_entry(feed);
	uint32_t n = feed->n_moe - l < fit ? feed->n_moe - l : fit;
	const uint16_t *items = feed->items + ((size_t)at * feed->n_moe + l) * row;

	memcpy(entry, head, offsetof(struct draft_routing, items));
	entry->first = (uint16_t)l;
	entry->n_layers = (uint16_t)n;
	memcpy(entry->items, items, (size_t)n * row * sizeof(*items));
}

/* Publishes one token: as many entries as its layers need, or none. */
static bool publish_token(struct routing_feed *feed, const struct draft_routing *head, uint32_t at)
{
	for (uint32_t l = 0; l < feed->n_moe; l += layers_of_entry(feed)) {
		struct draft_routing *entry = ring_reserve(feed->ring);

		if (entry == NULL)
			return false;
		fill(feed, entry, head, at, l);
		ring_publish(feed->ring);
	}
	return true;
}

static void learn_token(const struct routing_feed *feed, const struct draft_routing *head,
	uint32_t at, struct expert_history *history)
{
	struct draft_routing entry;

	for (uint32_t l = 0; l < feed->n_moe; l += layers_of_entry(feed)) {
		fill(feed, &entry, head, at, l);
		/* The history counts layers with experts only. */
		for (uint32_t i = 0; i < entry.n_layers; i++)
			entry.items[(size_t)i * (1 + feed->n_used)] = (uint16_t)(l + i);
		expert_history_learn(history, &entry);
	}
}

void routing_feed_publish(struct routing_feed *feed, const struct batch_token *batch,
	uint32_t first, uint32_t n, uint64_t uid, uint32_t page, int32_t before,
	struct expert_history *history)
{
	bool told = feed->on;

	if (!feed->on && !feed->kept)
		return;
	for (uint32_t i = first; i < first + n && i < feed->n_max; i++) {
		const struct draft_routing head = {
			.session = uid,
			.page = page,
			.token = batch[i].token,
			.before = batch[i].parent < 0 ? before : batch[batch[i].parent].token,
			.position = batch[i].position,
			.n_moe = (uint16_t)feed->n_moe,
			.n_used = (uint16_t)feed->n_used,
		};

		if (told && !publish_token(feed, &head, i)) {
			ring_drop(feed->ring);
			told = false;
		}
		if (feed->kept && history != NULL)
			learn_token(feed, &head, i, history);
	}
}
