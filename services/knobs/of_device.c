#include "services/knobs/of_device.h"

#include "shared/base/log.h"

#include <stdio.h>
#include <string.h>

static bool is_of_device(const char *name)
{
	static const char *const names[] = {"device_shared", "device_lost", "device_memory",
		"device_kv", "device_budget", "kv_memory", "hybrid"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

void of_device_say_idle(const struct config_key *keys, const void *config, const char *device)
{
	char list[256] = "";
	size_t n = 0, at = 0;

	for (; keys->name != NULL; keys++) {
		if (!is_of_device(keys->name) || config_is_default(keys, config))
			continue;
		at += (size_t)snprintf(
			list + at, sizeof(list) - at, "%s%s", n++ > 0 ? ", " : "", keys->name);
	}
	if (n > 0)
		log_notice("no device is used (device = %s), so %s no effect: %s", device,
			n == 1 ? "this setting has" : "these settings have", list);
}

const char *of_device_idle(const struct config_key *key, const void *used)
{
	return used == NULL && is_of_device(key->name)
		       ? "it has no effect, because no device is used"
		       : NULL;
}
