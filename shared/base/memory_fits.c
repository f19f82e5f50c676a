#include "shared/base/memory_fits.h"

#include "shared/base/units.h"

#include <errno.h>

int memory_fits(const struct memory_limit *limit, uint64_t bytes, const char *takes,
	const char *instead, struct error *err)
{
	if (bytes <= limit->available)
		return 0;
	return error_set(err, ENOMEM,
		"%s %s, but %s has %s, of which %s are free: %s%smake room for %s more", takes,
		UNITS_SIZE(bytes), limit->where, UNITS_SIZE(limit->bytes),
		UNITS_SIZE(limit->available), instead ? instead : "", instead ? ", or " : "",
		UNITS_SIZE(bytes - limit->available));
}
