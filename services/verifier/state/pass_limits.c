#include "services/verifier/state/pass_limits.h"

#include "shared/base/limits.h"
#include "shared/spec/budget.h"
#include "shared/spec/kv_plan.h"

struct forward_limits pass_limits(
	int64_t sessions, int64_t prefill_tokens, int64_t context, bool oracle, bool fast)
{
	uint32_t rows = kv_plan_rows(sessions, 0);

	return (struct forward_limits){
		.n_batch = rows + (uint32_t)prefill_tokens,
		.n_logits = rows < LIMIT_KEPT_LOGITS ? rows : LIMIT_KEPT_LOGITS,
		.n_picks = rows,
		.n_drafts = rows,
		.n_context = (uint32_t)context,
		.n_budgets = (uint32_t)sessions,
		.n_oracle = oracle ? BUDGET_ORACLE_ROWS : 0,
		.fast = fast,
	};
}
