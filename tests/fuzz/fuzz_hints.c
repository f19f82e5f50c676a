/* Any bytes as what the verifier tells of its passes, and as hints: the drafter's history stays a history of probabilities,
 * the cache's judge counts no more found than there was. */
#include "shared/spec/expert_history.h"
#include "services/expert-cache/hints/hint_quality.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { LAYERS = 5, EXPERTS = 70, USED = 4 };

static void check_choice(struct expert_history *h)
{
	uint16_t experts[EXPERTS];
	float score[EXPERTS];
	for (uint32_t o = 0; o < LAYERS; o++) {
		uint32_t n = expert_history_choose(h, o, experts, score);
		if (n > EXPERTS)
			abort();
		for (uint32_t i = 0; i < n; i++)
			if (experts[i] >= EXPERTS || !(score[i] >= 0 && score[i] <= 1))
				abort();
	}
}

static void fuzz_history(const uint8_t *data, size_t bytes)
{
	static struct expert_history h;
	struct draft_routing entry;
	if (expert_history_shape(&h, LAYERS, EXPERTS, USED, 64 << 10, NULL) < 0)
		abort();
	for (; bytes >= sizeof(entry); data += sizeof(entry), bytes -= sizeof(entry)) {
		memcpy(&entry, data, sizeof(entry));
		expert_history_learn(&h, &entry);
		expert_history_begin(&h);
		expert_history_token(&h, entry.page, entry.session, entry.before, entry.token);
		expert_history_token(&h, entry.page, entry.session ^ 1, entry.token, entry.before);
		check_choice(&h);
	}
	expert_history_exit(&h);
}

struct event {
	struct slot_hint hint;
	uint64_t used; /* 1: what the hint says was used */
};

static void fuzz_quality(const uint8_t *data, size_t bytes)
{
	struct hint_quality q;
	struct event event;
	if (hint_quality_init(&q, LAYERS, EXPERTS, NULL) < 0)
		abort();
	for (; bytes >= sizeof(event); data += sizeof(event), bytes -= sizeof(event)) {
		memcpy(&event, data, sizeof(event));
		struct slot_hint *hint = &event.hint;
		/* As the worker has checked. */
		hint->layer %= LAYERS;
		hint->expert %= EXPERTS;
		hint->source %= HINT_SOURCES;
		if (event.used & 1)
			hint_quality_used(
				&q, hint->layer, hint->expert, hint->iteration, hint->made_ns);
		else
			hint_quality_hinted(&q, hint);
	}
	for (uint32_t l = 0; l < LAYERS; l++)
		for (unsigned s = 0; s <= HINT_SOURCES; s++) {
			const struct hint_counts *c = hint_quality_counts(&q, l, s);
			if (c->found > c->used || c->found > c->hinted ||
				c->used > c->passes * EXPERTS || c->hinted > c->passes * EXPERTS)
				abort();
		}
	hint_quality_exit(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	fuzz_history(data, bytes);
	fuzz_quality(data, bytes);
	return 0;
}
