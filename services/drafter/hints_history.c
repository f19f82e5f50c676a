#include "services/drafter/hints.h"
#include "services/drafter/session.h"
#include "shared/base/clock.h"

uint32_t hints_learn(struct hints *hints, struct ring *routings, uint32_t max)
{
	struct draft_routing entry;
	uint32_t n = 0;
	if (!hints_wanted(hints, HINT_HISTORY) && !hints_head_wanted(hints))
		return 0;
	ring_mend_consumer(routings);
	while (n < max && ring_get(routings, &entry, sizeof(entry))) {
		route_recall_learn(&hints->recall, &entry);
		if (hints->history.memory)
			expert_history_learn(&hints->history, &entry);
		n++;
	}
	atomic_store_explicit(&hints->learnt, hints->history.learnt, memory_order_relaxed);
	return n;
}

void hints_history(struct hints *hints, const struct draft_session *s, const int32_t *tokens,
	uint32_t first, uint32_t n, const bool *left_out)
{
	struct expert_history *history = &hints->history;
	if (hints->iteration == 0 || !hints_wanted(hints, HINT_HISTORY))
		return;
	for (uint32_t i = first; i < first + n; i++)
		expert_history_token_but(
			history, s->page, s->uid, i > 0 ? tokens[i - 1] : -1, tokens[i], left_out);
	for (uint32_t o = 0; o < history->n_moe; o++) {
		uint32_t chosen = expert_history_choose(history, o, hints->chosen, hints->score);
		uint64_t now_ns = clock_ns();
		for (uint32_t i = 0; i < chosen; i++)
			hints_tell(hints, HINT_HISTORY, history->layer[o], o, hints->chosen[i],
				hints->score[i], s->uid, now_ns);
		hints_flush(hints);
	}
}
