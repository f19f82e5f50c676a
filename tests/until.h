/* Waiting for what another process or thread does. */
#pragma once

#include "shared/base/clock.h"

#include <unistd.h>

/* Fails when it does not come true within 20 s. */
#define UNTIL(condition)                                        \
	do {                                                    \
		uint64_t end_ns_ = clock_ns() + 20000000000ull; \
		while (!(condition) && clock_ns() < end_ns_)    \
			usleep(1000);                           \
		assert_true(condition);                         \
	} while (0)
