#include "shared/spec/budget.h"

#include <errno.h>

const char *const budget_ranking_names[] = {"router", "static", "oracle", NULL};
const char *const budget_coverage_names[] = {"substitution", "truncation", NULL};
static_assert(sizeof(budget_ranking_names) / sizeof(*budget_ranking_names) == BUDGET_RANKINGS + 1 &&
		      sizeof(budget_coverage_names) / sizeof(*budget_coverage_names) ==
			      BUDGET_COVERAGES + 1,
	"each is named");

int budget_read(const char *text, uint32_t ranking, uint32_t coverage,
	const struct budget_means *means, uint16_t *out, struct error *err)
{
	if (means->n_experts == 0)
		return error_set(err, EINVAL, "budget_experts: the model has no experts");
	if (ranking >= BUDGET_RANKINGS || coverage >= BUDGET_COVERAGES)
		return error_set(err, EINVAL,
			"budget_ranking %u and budget_coverage %u: allowed are 0..%d and 0..%d",
			ranking, coverage, BUDGET_RANKINGS - 1, BUDGET_COVERAGES - 1);
	if (ranking == BUDGET_STATIC && !means->profile)
		return error_set(err, EINVAL,
			"budget_ranking static: the verifier was started without budget_profile");
	if (ranking == BUDGET_ORACLE && !means->oracle)
		return error_set(err, EINVAL,
			"budget_ranking oracle: the verifier was started without budget_oracle = "
			"yes");
	return layer_limits_read(
		"budget_experts", text, means->n_layers, means->n_experts, out, err);
}
