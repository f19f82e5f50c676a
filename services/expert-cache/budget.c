#include "services/expert-cache/budget.h"

#include "shared/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORMS "all, min, a share as 30%, or bytes as 2G"

static int refuse(const char *text, struct error *err)
{
	return error_set(err, ENOEXEC, "budget: \"%s\" is not one of: %s", text, FORMS);
}

/* Bytes after a number with this suffix, 0 for none such. */
static double unit_of(const char *suffix)
{
	static const struct {
		const char *suffix;
		double bytes;
	} units[] = {{"", 1}, {"K", 1024.}, {"M", 1048576.}, {"G", 1073741824.}};
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strcmp(units[i].suffix, suffix) == 0)
			return units[i].bytes;
	return 0;
}

static int parse(
	const char *text, const struct slots_geometry *geometry, double *slots, struct error *err)
{
	if (strcmp(text, "all") == 0) {
		*slots = geometry->n_total;
		return 0;
	}
	if (strcmp(text, "min") == 0) {
		*slots = slots_min(geometry);
		return 0;
	}
	char *end;
	double value = strtod(text, &end);
	if (end == text || !isfinite(value) || value <= 0)
		return refuse(text, err);
	if (strcmp(end, "%") == 0) {
		if (value > 100)
			return error_set(err, ENOEXEC, "budget: %s is not in 0%%..100%%", text);
		/* A share that is whole but for rounding is not rounded up. */
		*slots = ceil(geometry->n_total * value / 100 - 1e-9);
		return 0;
	}
	double unit = unit_of(end);
	if (unit == 0)
		return refuse(text, err);
	if (value * unit >= 0x1p63)
		return error_set(err, ENOEXEC, "budget: %s is 2^63 bytes or more", text);
	*slots = floor(value * unit / (double)geometry->slot_bytes);
	return 0;
}

int budget_slots(const char *text, const struct slots_geometry *geometry, struct budget *out,
	struct error *err)
{
	double slots = 0;
	int status = parse(text, geometry, &slots, err);
	if (status != 0)
		return status;
	uint32_t least = slots_min(geometry);
	if (slots < least)
		return error_set(err, ENOEXEC,
			"budget: %s is %.0f expert slots; one layer of one verification may need "
			"%u: at "
			"least min, %.1f MiB",
			text, slots, least, (double)least * (double)geometry->slot_bytes / 1048576);
	out->n_slots = slots > geometry->n_total ? geometry->n_total : (uint32_t)slots;
	out->bytes = out->n_slots * geometry->slot_bytes;
	/* Below 2^63: see parse. */
	out->asked_bytes = (uint64_t)(slots * (double)geometry->slot_bytes);
	return 0;
}

int budget_check_memory(const struct budget *budget, uint64_t had_bytes, struct error *err)
{
	struct memory_limit limit;
	memory_limit_read(&cgroup_files, "/proc/meminfo", &limit);
	if (budget->asked_bytes > limit.bytes)
		return error_set(err, ENOMEM,
			"budget: %.1f MiB for experts, but %s has at most %.1f MiB",
			(double)budget->asked_bytes / 1048576, limit.where,
			(double)limit.bytes / 1048576);
	if (budget->bytes > had_bytes && budget->bytes - had_bytes > limit.available)
		return error_set(err, ENOMEM,
			"budget: %.1f MiB for experts are %.1f MiB more than they have, but only "
			"%.1f MiB of memory are available",
			(double)budget->bytes / 1048576,
			(double)(budget->bytes - had_bytes) / 1048576,
			(double)limit.available / 1048576);
	return 0;
}
