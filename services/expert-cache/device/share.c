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

/* Whether device_memory allows less than there is but for the reserve. */
static bool is_limited(const struct device_share *share)
{
	return share->said_most != 0 &&
	       share->said_most < saturate_sub(share->memory, share->reserve);
}

enum { WHOLE_TEXT = 192 };

/* What is shared out: the device's memory, or the part of it that device_memory allows. */
static const char *whole_text(const struct device_share *share, char out[static WHOLE_TEXT])
{
	if (is_limited(share))
		snprintf(out, WHOLE_TEXT, "the service may take %s of %.96s (device_memory)",
			UNITS_SIZE(share->limit), share->name);
	else
		snprintf(out, WHOLE_TEXT, "%.96s has %s", share->name, UNITS_SIZE(share->memory));
	return out;
}

/* What would fit instead. */
static void say_what_fits(const struct device_share *share, uint64_t automatic, size_t out_bytes,
	char out[static out_bytes])
{
	char reserve[64] = "";
	bool limited = is_limited(share);

	if (automatic <= share->whole) {
		if (!limited)
			snprintf(reserve, sizeof(reserve), " and keeps %s in reserve",
				UNITS_SIZE(share->reserve));
		snprintf(out, out_bytes, "%s is the largest allowed, auto takes %s%s",
			units_setting(share->whole, (char[UNITS_BYTES]){0}), UNITS_SIZE(automatic),
			reserve);
	} else if (limited) {
		snprintf(out, out_bytes,
			"%s are left, but the fewest experts need %s: set a larger device_memory, "
			"or a smaller context or sessions_max for the verifier",
			UNITS_SIZE(share->whole), UNITS_SIZE(automatic));
	} else {
		snprintf(out, out_bytes,
			"one layer may need %s of them: set device = cpu for both, or a smaller "
			"context or sessions_max for the verifier",
			UNITS_SIZE(automatic));
	}
}

int device_share_check(
	const struct device_share *share, uint64_t bytes, uint64_t automatic, struct error *err)
{
	char fits[192], drafter[64] = "", whole[WHOLE_TEXT];

	if (bytes <= (share->said ? share->whole : share->memory))
		return 0;
	say_what_fits(share, automatic, sizeof(fits), fits);
	if (share->drafter > 0)
		snprintf(drafter, sizeof(drafter), " and the drafter %s for a draft model",
			UNITS_SIZE(share->drafter));
	return error_set(err, ENOMEM,
		"device_budget: %s for experts, but %s, of which the verifier %s %s for "
		"weights, passes and KV cache%s: %s",
		UNITS_SIZE(bytes), whole_text(share, whole),
		share->said ? "takes" : "is estimated to take", UNITS_SIZE(share->needs), drafter,
		fits);
}

int device_share_drafter(const struct device_share *share, uint64_t least, bool there,
	const char *budget, struct error *err)
{
	uint64_t both = there ? share->most : share->both, left = saturate_sub(both, least);
	char whole[WHOLE_TEXT], reserve[64] = "";

	if (share->drafter <= left)
		return 0;
	if (!is_limited(share))
		snprintf(
			reserve, sizeof(reserve), ", and a reserve %s", UNITS_SIZE(share->reserve));
	return error_set(err, ENOMEM,
		"%s, of which the verifier takes %s, experts %s (device_budget = %s)%s%s: %s are "
		"left",
		whole_text(share, whole), UNITS_SIZE(share->needs), UNITS_SIZE(least), budget,
		reserve, both < share->most ? ", and other programs have some" : "",
		UNITS_SIZE(left));
}
