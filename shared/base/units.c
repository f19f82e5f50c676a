#include "shared/base/units.h"

#include "shared/base/config.h"
#include "shared/base/decimal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define GIB ((uint64_t)1 << 30)
/* Below this, MiB with one decimal say more than GiB would. */
#define GIB_FROM (10 * GIB)

#define SECOND UINT64_C(1000000000)
#define YEARS_MAX_NS (100 * 365 * 86400e9)

const char *units_size(uint64_t bytes, char out[static UNITS_BYTES])
{
	if (bytes >= GIB_FROM)
		snprintf(out, UNITS_BYTES, "%.1f GiB", (double)bytes / (double)GIB);
	else
		snprintf(out, UNITS_BYTES, "%.1f MiB", (double)bytes / 1048576);
	return out;
}

const char *units_memory(uint64_t bytes, char out[static UNITS_BYTES])
{
	if (bytes > 0)
		return units_size(bytes, out);
	snprintf(out, UNITS_BYTES, "unknown");
	return out;
}

const char *units_setting(uint64_t bytes, char out[static UNITS_BYTES])
{
	uint64_t tenths = bytes / GIB * 10 + bytes % GIB * 10 / GIB;

	if (bytes >= GIB_FROM)
		snprintf(out, UNITS_BYTES, "%" PRIu64 ".%" PRIu64 "G", tenths / 10, tenths % 10);
	else
		snprintf(out, UNITS_BYTES, "%" PRIu64 "M", bytes >> 20);
	return out;
}

const char *units_period(uint64_t ns, char out[static UNITS_BYTES])
{
	static const struct {
		unsigned long long seconds, part;
		char unit, of_part;
	} units[] = {{86400, 3600, 'd', 'h'}, {3600, 60, 'h', 'm'}, {60, 1, 'm', 's'}};
	unsigned long long s = ns / SECOND + (ns % SECOND >= SECOND / 2);

	if (ns < 10 * SECOND - SECOND / 20) {
		snprintf(out, UNITS_BYTES, "%.1fs", (double)ns / 1e9);
		return out;
	}
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		unsigned long long part = s % units[i].seconds / units[i].part;

		if (s < units[i].seconds)
			continue;
		int n = snprintf(out, UNITS_BYTES, "%llu%c", s / units[i].seconds, units[i].unit);
		if (part > 0)
			snprintf(
				out + n, UNITS_BYTES - (size_t)n, "%llu%c", part, units[i].of_part);
		return out;
	}
	snprintf(out, UNITS_BYTES, "%llus", s);
	return out;
}

int units_read_time(const char *text, uint64_t *ns)
{
	const char *end;
	double value = decimal_read(text, &end);

	if (end == text || !isfinite(value))
		return -EINVAL;
	double unit = config_factor(CONFIG_NS, *end ? end : "s");
	if (unit == 0)
		return -EINVAL;
	value *= unit;
	if (!(value >= 0 && value <= YEARS_MAX_NS))
		return -ERANGE;
	*ns = (uint64_t)(value + 0.5);
	return 0;
}
