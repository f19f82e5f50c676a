/* What it costs to hand work to the threads of a pool: each step of a pass that is cut for them pays it. */
#pragma once

#include "kernels/pool.h"

/* One run in which all threads that take part must meet, in microseconds. The caller drives the pool. */
double hand_over_us(struct pool *pool);
