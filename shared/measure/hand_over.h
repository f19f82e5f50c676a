/* The cost of giving work to the threads of a pool, which every divided step of a pass has. */
#pragma once

#include "kernels/pool.h"

/* The time in microseconds of one run in which all threads have to meet. The caller drives the
 * pool. */
double hand_over_us(struct pool *pool);
