#include "services/expert-cache/config.h"

#include "kernels/gpu/choice.h"
#include "services/expert-cache/policies/policy.h"

int cache_config_check(const struct cache_config *config, struct error *err)
{
	if (config->model[0] == '\0')
		return error_set(err, ENOEXEC,
			"model: no file given (--model FILE, or model = FILE in the "
			"configuration)");
	if (cache_policy_find(config->policy) == NULL)
		return error_set(err, ENOEXEC, "policy: \"%s\" is not one of %s", config->policy,
			cache_policy_list());
	enum gpu_choice choice;
	const char *device;
	return gpu_choice_read(config->device, &choice, &device, err);
}
