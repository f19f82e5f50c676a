/* Waiting for what another process or thread does. */
#pragma once

#include "shared/base/patience.h"

#include <unistd.h>

/* Fails when it does not come true within 20 s; a test that uses it has cmocka.h. */
#define UNTIL(condition)                                                 \
	do {                                                             \
		struct patience patience_;                               \
		patience_init(&patience_, 20000);                        \
		while (!(condition) && patience_step_ms(&patience_) > 0) \
			usleep(1000);                                    \
		assert_true(condition);                                  \
	} while (0)
