#include "services/verifier/pass/pace.h"

#include <string.h>

/* The expected yield before the first measurement: as much as a pass without a draft. */
#define YIELD_FIRST 1.0f
/* The factor by which a pass without the draft has to be better. */
#define CLEARLY 1.5f

void pace_took(struct pace *pace, uint64_t ns)
{
	uint64_t off = ns > pace->mean_ns ? ns - pace->mean_ns : pace->mean_ns - ns;

	if (pace->n_times == 0) {
		pace->mean_ns = ns;
		pace->dev_ns = ns / 2;
	} else {
		pace->dev_ns = (3 * pace->dev_ns + off) / 4;
		pace->mean_ns = (7 * pace->mean_ns + ns) / 8;
	}
	pace->n_times++;
}

void pace_yielded(struct pace *pace, uint32_t n_accepted)
{
	if (pace->n_yields == 0)
		pace->yield = (float)n_accepted;
	else
		pace->yield += ((float)n_accepted - pace->yield) / 8;
	pace->n_yields++;
}

uint64_t pace_limit_ns(const struct pace *pace)
{
	return pace->n_times == 0 ? UINT64_MAX : pace->mean_ns + 4 * pace->dev_ns;
}

float pace_yield(const struct pace *pace)
{
	return pace->n_yields == 0 ? YIELD_FIRST : pace->yield;
}

/* How much longer a draft is expected to take. Once the mean has passed, all that is known is that
 * this draft is slow: as long again. */
static uint64_t left_ns(const struct pace *pace, uint64_t elapsed_ns)
{
	return elapsed_ns < pace->mean_ns ? pace->mean_ns - elapsed_ns : elapsed_ns;
}

/* How many passes a session has to sit out before its draft is there. */
static float passes_out(const struct pace *pace, uint64_t elapsed_ns, uint64_t pass_ns)
{
	uint64_t passes = left_ns(pace, elapsed_ns) / (pass_ns > 0 ? pass_ns : 1);

	return 1 + (float)passes;
}

void pace_wait_init(struct pace_wait *wait, uint64_t pass_ns, uint64_t most_ns)
{
	memset(wait, 0, sizeof(*wait));
	wait->pass_ns = pass_ns;
	wait->most_ns = most_ns;
}

void pace_wait_ready(struct pace_wait *wait, float tokens)
{
	wait->ready += tokens;
}

uint32_t pace_wait_add(struct pace_wait *wait, const struct pace *pace, uint64_t elapsed_ns)
{
	uint64_t mean_ns = pace->n_times == 0 ? 0 : left_ns(pace, elapsed_ns);
	uint64_t limit_ns = pace_limit_ns(pace);
	uint32_t i = mean_ns == 0 ? 0 : 63 - (uint32_t)__builtin_clzll(mean_ns);
	struct pace_group *group = &wait->group[i];
	float with = 1 + pace_yield(pace);
	float out = with / (1 + passes_out(pace, elapsed_ns, wait->pass_ns));

	if (limit_ns != UINT64_MAX)
		limit_ns = limit_ns > elapsed_ns ? limit_ns - elapsed_ns : 0;
	group->n++;
	group->with += with;
	group->without += out > 1 ? out : 1;
	if (mean_ns > group->mean_ns)
		group->mean_ns = mean_ns;
	if (limit_ns > group->limit_ns)
		group->limit_ns = limit_ns;
	if (i >= wait->n_groups)
		wait->n_groups = i + 1;
	return i;
}

uint32_t pace_wait_choose(const struct pace_wait *wait, uint64_t *limit_ns)
{
	float tokens = wait->ready, best = -1;
	uint64_t limit = 0, mean_ns = 0;
	uint32_t chosen = 0;

	for (uint32_t i = 0; i < wait->n_groups; i++)
		tokens += wait->group[i].without;
	*limit_ns = 0;
	/* The rate of a pass that waits for no draft. It is no choice where every session would
	 * have to wait. */
	if (wait->ready > 0 && wait->pass_ns > 0)
		best = tokens / (float)wait->pass_ns / CLEARLY;
	for (uint32_t i = 0; i < wait->n_groups; i++) {
		const struct pace_group *group = &wait->group[i];

		if (group->n == 0)
			continue;
		tokens += group->with - group->without;
		if (group->mean_ns > mean_ns)
			mean_ns = group->mean_ns;
		if (group->limit_ns > limit)
			limit = group->limit_ns;
		if (mean_ns >= wait->most_ns)
			break;
		float rate = tokens / ((float)wait->pass_ns + (float)mean_ns + 1);
		if (rate < best)
			continue;
		best = rate;
		chosen = i + 1;
		*limit_ns = limit < wait->most_ns ? limit : wait->most_ns;
	}
	return chosen;
}

bool pace_sits_out(const struct pace *pace, uint64_t elapsed_ns, uint64_t pass_ns)
{
	if (pace->n_times == 0 || pass_ns == 0)
		return false;
	return pace_yield(pace) > passes_out(pace, elapsed_ns, pass_ns);
}
