#include "services/policy-controller/estimates/passes.h"

#include "shared/base/memory.h"

#include <math.h>

/* standard deviation of the ln of the ratio of two pass times when nothing is known */
#define DOUBT 0.3

void passes_init(struct passes *passes)
{
	memory_clear(passes, sizeof(*passes));
	cost_init(&passes->cost);
	prices_init(&passes->prices);
}

void passes_observe(struct passes *passes, const struct iteration_record *record, bool first)
{
	if (passes->any && record->iteration == passes->iteration)
		return;
	passes->any = true;
	passes->iteration = record->iteration;
	passes->sessions = record->batch_sessions;
	passes->tolerance.last = NULL;
	if (record->batch_tokens < record->batch_sessions ||
		record->iteration_ns <= record->draft_ns)
		return;
	passes->curve_sessions = 0;
	if (record->iteration_ns <= COST_NS_MAX) {
		tolerance_pass(&passes->tolerance, &passes->cost, record);
		prices_observe(&passes->prices, record->batch_tokens, record->unique_experts,
			record->expert_misses, (double)(record->iteration_ns - record->draft_ns));
	}
	cost_observe(&passes->cost, &(struct cost_pass){
					    .sessions = record->batch_sessions,
					    .extra = record->batch_tokens - record->batch_sessions,
					    .ns = record->iteration_ns - record->draft_ns,
					    .experts = record->unique_experts,
					    .hits = record->expert_hits,
					    .misses = record->expert_misses,
					    .first = first,
				    });
}

void passes_brought(struct passes *passes, const struct iteration_record *record)
{
	if (passes->any && record->iteration == passes->iteration)
		tolerance_brought(&passes->tolerance, record);
}

bool passes_curve(struct passes *passes, uint32_t sessions, uint32_t extra)
{
	if (passes->curve_sessions == sessions && extra <= passes->curve_extra)
		return true;
	bool seen = cost_curve(&passes->cost, sessions, extra, passes->ns);
	passes->curve_sessions = seen ? sessions : 0;
	passes->curve_extra = extra;
	return seen;
}

double passes_at(const struct passes *passes, double extra)
{
	uint32_t low = (uint32_t)extra;
	if (low >= COST_EXTRA_MAX)
		return (double)passes->ns[COST_EXTRA_MAX];
	double part = extra - low;
	return (double)passes->ns[low] * (1 - part) + (double)passes->ns[low + 1] * part;
}

double passes_doubt(const struct passes *passes, uint32_t sessions, double extra, double ratio)
{
	uint32_t nearest = (uint32_t)extra;
	nearest += extra - nearest >= 0.5;
	double seen = cost_evidence(&passes->cost, sessions, nearest);
	return DOUBT * fabs(log(ratio)) / sqrt(1 + seen);
}
