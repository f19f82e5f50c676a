#include "services/expert-cache/config.h"

#include "kernels/gpu/choice.h"
#include "services/expert-cache/budget.h"
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
	int status = gpu_choice_read(config->device, &choice, &device, err);
	if (status == 0 && choice != GPU_CHOICE_CPU && config->device_shared &&
		budget_is_auto(config->device_budget))
		return error_set(err, ENOEXEC,
			"device_shared = yes needs a device_budget, such as 8G: with auto, each "
			"service would count on all of the device's memory");
	return status;
}
