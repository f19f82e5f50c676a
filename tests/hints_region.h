/* The region of hints as the expert-cache makes it. */
#pragma once

#include "shared/spec/slots.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static inline void make_hints(struct region *hints, struct slots *slots)
{
	struct error err;
	assert_int_equal(
		region_create(HINTS_REGION, HINTS_LAYOUT, slots_hints_bytes(), 0, hints, &err), 0);
	slots_hints_format(hints);
	assert_int_equal(slots_map_hints(hints, slots, &err), 0);
}
