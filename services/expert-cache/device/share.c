#include "services/expert-cache/device/share.h"

#include "shared/base/saturate.h"
#include "shared/base/units.h"

#include <errno.h>
#include <stdio.h>

void device_share_find(const struct backend *backend, const struct backend_memory *memory,
	uint64_t needs, uint64_t drafter, uint64_t there, uint64_t had, struct device_share *out)
{
	uint64_t reserve = memory->bytes / DEVICE_RESERVE_PART, all = saturate_add(needs, drafter),
		 taken = saturate_add(needs, reserve);
	uint64_t most = saturate_sub(memory->bytes, taken);
	uint64_t now = saturate_sub(
		saturate_add(saturate_add(memory->free, had), there < all ? there : all), taken);
	uint64_t both = now < most ? now : most;

	*out = (struct device_share){
		.name = backend->device != NULL ? backend->device->name : backend->ops->name,
		.memory = memory->bytes,
		.free = memory->free,
		.needs = needs,
		.drafter = drafter,
		.reserve = reserve,
		.whole = saturate_sub(most, drafter),
		.most = most,
		.both = both,
		.bytes = saturate_sub(both, drafter),
	};
}

void device_share_limit(struct device_share *share, uint64_t most)
{
	uint64_t left;

	share->said_most = most;
	share->limit = saturate_sub(share->memory, share->reserve);
	if (most != 0 && most < share->limit)
		share->limit = most;
	left = saturate_sub(share->limit, share->needs);
	share->most = left < share->most ? left : share->most;
	share->both = left < share->both ? left : share->both;
	share->whole = saturate_sub(share->most, share->drafter);
	share->bytes = saturate_sub(share->both, share->drafter);
}

int device_share_check(
	const struct device_share *share, uint64_t bytes, uint64_t automatic, struct error *err)
{
	char fits[160], drafter[64] = "";

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
	if (share->drafter > 0)
		snprintf(drafter, sizeof(drafter), " and the drafter %s for a draft model",
			UNITS_SIZE(share->drafter));
	return error_set(err, ENOMEM,
		"device_budget: %s for experts, but %s has %s, of which the verifier %s %s for "
		"weights, passes and KV cache%s: %s",
		UNITS_SIZE(bytes), share->name, UNITS_SIZE(share->memory),
		share->said ? "takes" : "is estimated to take", UNITS_SIZE(share->needs), drafter,
		fits);
}

int device_share_drafter(const struct device_share *share, uint64_t least, bool there,
	const char *budget, struct error *err)
{
	uint64_t both = there ? share->most : share->both, left = saturate_sub(both, least);

	if (share->drafter <= left)
		return 0;
	return error_set(err, ENOMEM,
		"%s has %s, of which the verifier takes %s, experts %s (device_budget = %s), and a "
		"reserve %s%s: %s are left",
		share->name, UNITS_SIZE(share->memory), UNITS_SIZE(share->needs), UNITS_SIZE(least),
		budget, UNITS_SIZE(share->reserve),
		both < share->most ? ", and other programs have some" : "", UNITS_SIZE(left));
}
