#include "services/expert-cache/hints.h"

#include <math.h>
#include <stdlib.h>

static uint32_t *place_of(const struct hints *hints, const struct hint *hint)
{
	return &hints->place[(size_t)hint->layer * hints->n_experts + hint->expert];
}

int hints_init(
	struct hints *hints, uint32_t n_layers, uint32_t n_experts, uint32_t max, struct error *err)
{
	*hints = (struct hints){.max = max, .n_experts = n_experts};
	hints->heap = calloc(max, sizeof(*hints->heap));
	hints->place = calloc((size_t)n_layers * n_experts, sizeof(*hints->place));
	if (hints->heap != NULL && hints->place != NULL)
		return 0;
	hints_exit(hints);
	return error_set(err, ENOMEM, "no memory for %u hints", max);
}

void hints_exit(struct hints *hints)
{
	free(hints->heap);
	free(hints->place);
	hints->heap = NULL;
	hints->place = NULL;
}

static void put(struct hints *hints, uint32_t at, const struct hint *hint)
{
	hints->heap[at] = *hint;
	*place_of(hints, hint) = at + 1;
}

static void rise(struct hints *hints, uint32_t at)
{
	struct hint hint = hints->heap[at];
	while (at > 0 && hints->heap[(at - 1) / 2].score < hint.score) {
		put(hints, at, &hints->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	put(hints, at, &hint);
}

static void sink(struct hints *hints, uint32_t at)
{
	struct hint hint = hints->heap[at];
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= hints->n)
			break;
		if (child + 1 < hints->n && hints->heap[child + 1].score > hints->heap[child].score)
			child++;
		if (hints->heap[child].score <= hint.score)
			break;
		put(hints, at, &hints->heap[child]);
		at = child;
	}
	put(hints, at, &hint);
}

static void remove_at(struct hints *hints, uint32_t at)
{
	*place_of(hints, &hints->heap[at]) = 0;
	struct hint last = hints->heap[--hints->n];
	if (at == hints->n)
		return;
	put(hints, at, &last);
	rise(hints, at);
	sink(hints, *place_of(hints, &last) - 1);
}

/* The lowest score is among the leaves. */
static uint32_t lowest(const struct hints *hints)
{
	uint32_t at = hints->n / 2;
	for (uint32_t i = at + 1; i < hints->n; i++)
		if (hints->heap[i].score < hints->heap[at].score)
			at = i;
	return at;
}

void hints_add(struct hints *hints, const struct hint *hint)
{
	if (!isfinite(hint->score))
		return;
	uint32_t place = *place_of(hints, hint);
	if (place != 0) {
		struct hint *old = &hints->heap[place - 1];
		if (old->needed_by_ns != 0 &&
			(hint->needed_by_ns == 0 || hint->needed_by_ns > old->needed_by_ns))
			old->needed_by_ns = hint->needed_by_ns;
		if (hint->score > old->score) {
			old->score = hint->score;
			rise(hints, place - 1);
		}
		return;
	}
	if (hints->n == hints->max) {
		uint32_t worst = lowest(hints);
		hints->dropped++;
		if (hints->heap[worst].score >= hint->score)
			return;
		remove_at(hints, worst);
	}
	hints->heap[hints->n] = *hint;
	rise(hints, hints->n++);
}

void hints_remove(struct hints *hints, uint32_t layer, uint32_t expert)
{
	struct hint key = {.layer = layer, .expert = expert};
	uint32_t place = *place_of(hints, &key);
	if (place != 0)
		remove_at(hints, place - 1);
}

bool hints_take(struct hints *hints, uint64_t now_ns, struct hint *out)
{
	while (hints->n > 0) {
		*out = hints->heap[0];
		remove_at(hints, 0);
		if (out->needed_by_ns == 0 || out->needed_by_ns > now_ns)
			return true;
		hints->dropped++;
	}
	return false;
}
