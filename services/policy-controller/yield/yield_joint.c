/* yield: the best K for all sessions of a pass together (yield.h, What is maximised). */
#include "services/policy-controller/yield/yield_plan.h"

/* A session's next position, with the chance that it is accepted when it is reached. */
struct candidate {
	double chance; /* above 0 */
	uint32_t index;
};

/* A binary heap with the likeliest candidate on top; among equally likely ones the first session's.
 */
struct heap {
	uint32_t n;
	struct candidate items[LIMIT_RUNNING];
};

static bool before(const struct candidate *a, const struct candidate *b)
{
	return a->chance > b->chance || (a->chance >= b->chance && a->index < b->index);
}

/* Fills the hole at i with item or with a child; below i there are heaps. */
static void sink(struct heap *heap, uint32_t i, struct candidate item)
{
	for (uint32_t child; (child = 2 * i + 1) < heap->n; i = child) {
		if (child + 1 < heap->n && before(&heap->items[child + 1], &heap->items[child]))
			child++;
		if (!before(&heap->items[child], &item))
			break;
		heap->items[i] = heap->items[child];
	}
	heap->items[i] = item;
}

/* The chance that the session's position k is accepted when it is reached; 0: there is no such
 * position. */
static double chance_of(const struct yield_plan_pass *p, uint32_t index, uint32_t k)
{
	const struct yield_option *o = &p->shared->options[index];
	if (k >= (uint32_t)p->states[index]->settings.k_max || o->drafted[k] <= 0)
		return 0;
	return o->accepted[k] / o->drafted[k];
}

static void fill(struct heap *heap, const struct yield_plan_pass *p)
{
	heap->n = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		double chance = chance_of(p, i, 0);
		if (chance > 0)
			heap->items[heap->n++] = (struct candidate){chance, i};
	}
	for (uint32_t i = heap->n / 2; i-- > 0;)
		sink(heap, i, heap->items[i]);
}

/* The session on top goes on to its next position, or is removed when it has none that may be
 * accepted. */
static void renew(struct heap *heap, double chance)
{
	struct candidate item = {chance, heap->items[0].index};
	if (!(chance > 0))
		item = heap->items[--heap->n];
	if (heap->n > 0)
		sink(heap, 0, item);
}

/* Beyond a target no rate counts for more than this share of one within them. */
#define LATE_SHARE 1e-3

double yield_value(const struct yield_plan_pass *p, double rate, double late)
{
	return late > 1 ? LATE_SHARE * plan_rate_of(p, 0, 0, 0) / late : rate;
}

/* How many times a pass of 1 ns exceeds the session's targets if it gains this many tokens. */
static double lateness(const struct yield_option *o, double gained)
{
	double late = o->ttft_ns > 0 ? 1 / o->ttft_ns : 0;
	return o->tpot_ns > 0 ? yield_max(late, 1 / (o->tpot_ns * (1 + gained))) : late;
}

double yield_late(const struct yield_plan_pass *p, uint32_t index, uint32_t k, double ns)
{
	const struct yield_option *options = p->shared->options;
	double worst = 0;
	for (uint32_t i = 0; p->targets && i < p->n; i++) {
		const struct yield_option *o = &options[i];
		worst = yield_max(worst, lateness(o, o->gained[i == index ? k : o->k]));
	}
	return worst * ns;
}

void yield_choose_jointly(struct yield_plan_pass *p)
{
	struct yield_option *options = p->shared->options;
	uint16_t *taken = p->shared->taken;
	uint32_t n = 0, best = 0;
	double gained = 0, extra = 0, wait = 0;
	struct heap heap;
	fill(&heap, p);
	for (uint32_t i = 0; i < p->n; i++)
		options[i].k = 0;
	p->rate = plan_rate_of(p, 0, 0, 0);
	double value =
		yield_value(p, p->rate, yield_late(p, 0, 0, passes_at(p->passes, p->others)));
	while (heap.n > 0) {
		uint32_t next = heap.items[0].index;
		struct yield_option *o = &options[next];
		gained += o->accepted[o->k];
		extra += o->drafted[o->k];
		renew(&heap, chance_of(p, next, ++o->k));
		wait = yield_max(wait, plan_wait_of(p, next, o->k));
		taken[n++] = (uint16_t)next;
		double rate = plan_rate_of(p, gained, extra, wait);
		double late =
			p->targets ? yield_late(p, next, o->k, (p->sessions + gained) / rate) : 0;
		if (yield_value(p, rate, late) > value) {
			value = yield_value(p, rate, late);
			p->rate = rate;
			best = n;
		}
	}
	/* Undoes the positions behind the best prefix. */
	while (n > best)
		options[taken[--n]].k--;
}
