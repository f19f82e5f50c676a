/* The median of n >= 1 values, which it sorts. */
#pragma once

#include <stddef.h>

double median(double *values, size_t n);
