/* Waiting for what another process or thread does. */
#pragma once

#include "shared/base/patience.h"

#include <unistd.h>

/* Whether it comes true within 30 s in which this process ran. */
#define COMES_TRUE(condition)                                            \
	({                                                               \
		struct patience patience_;                               \
		patience_init(&patience_, 30000);                        \
		while (!(condition) && patience_step_ms(&patience_) > 0) \
			usleep(1000);                                    \
		(condition);                                             \
	})
/* Fails when it does not; a test that uses it has cmocka.h. */
#define UNTIL(condition) assert_true(COMES_TRUE(condition))
