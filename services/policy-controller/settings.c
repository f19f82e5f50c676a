#include "services/policy-controller/settings.h"

#include "services/policy-controller/policy.h"

#include <inttypes.h>

int settings_check(const struct settings *settings, struct error *err)
{
	uint32_t k;
	if (!policy_parse(settings->policy, &k))
		return error_set(err, ENOEXEC,
			"policy = %s is not allowed; policy takes yield, goodput, cascade, "
			"static:K with K "
			"0 "
			"to %d, or static:SHAPE like static:4x2x1, up to %d levels of 1 to %d, %d "
			"tokens together",
			settings->policy, LIMIT_DRAFT_DEPTH, DRAFT_SHAPE, POLICY_SHAPE_WIDTH,
			LIMIT_DRAFT_NODES);
	if (settings->set_max < settings->set)
		return error_set(err, ENOEXEC,
			"set_max = %" PRId64 " is not allowed; set_max takes set (%" PRId64
			") to 65536",
			settings->set_max, settings->set);
	return 0;
}
