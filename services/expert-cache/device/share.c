#include "services/expert-cache/device/share.h"

#include "shared/base/saturate.h"
#include "shared/base/units.h"

#include <errno.h>
#include <stdio.h>

void device_share_find(const struct backend *backend, const struct backend_memory *memory,
	uint64_t needs, uint64_t there, uint64_t had, struct device_share *out)
{
	uint64_t reserve = memory->bytes / DEVICE_RESERVE_PART,
		 taken = saturate_add(needs, reserve);
	uint64_t whole = saturate_sub(memory->bytes, taken);
	uint64_t now = saturate_sub(
		saturate_add(saturate_add(memory->free, had), there < needs ? there : needs),
		taken);

	*out = (struct device_share){
		.name = backend->device != NULL ? backend->device->name : backend->ops->name,
		.memory = memory->bytes,
		.free = memory->free,
		.needs = needs,
		.reserve = reserve,
		.whole = whole,
		.bytes = now < whole ? now : whole,
	};
}

int device_share_check(
	const struct device_share *share, uint64_t bytes, uint64_t automatic, struct error *err)
{
	char fits[160];

	if (bytes <= (share->said ? share->whole : share->memory))
		return 0;
	if (automatic <= share->whole)
		snprintf(fits, sizeof(fits),
			"%s is the largest allowed, auto takes %s and keeps %s in reserve",
			units_setting(share->whole, (char[UNITS_BYTES]){0}), UNITS_SIZE(automatic),
			UNITS_SIZE(share->reserve));
	else
		snprintf(fits, sizeof(fits),
			"one layer may need %s of them: set device = cpu for both, or a smaller "
			"context or sessions_max for the verifier",
			UNITS_SIZE(automatic));
	return error_set(err, ENOMEM,
		"device_budget: %s for experts, but %s has %s, of which the verifier %s %s for "
		"weights, passes and KV cache: %s",
		UNITS_SIZE(bytes), share->name, UNITS_SIZE(share->memory),
		share->said ? "takes" : "is estimated to take", UNITS_SIZE(share->needs), fits);
}
