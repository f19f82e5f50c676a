/*
 * Numbers of arithmetics, as messages, regions and files have them. One below ARITHMETIC_FAST is a version
 * of the exact arithmetic (kernels/numerics.md). From ARITHMETIC_FAST on it is one in which prompts are
 * multiplied by a device's own library: the version of the exact one, and what the library's bits depend
 * on, hashed (kernels/arithmetic.h).
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#define ARITHMETIC_FAST (UINT32_C(1) << 31)
enum { ARITHMETIC_TEXT = 16 };

/* For messages: "3", or "fast-1b2c3d4e". Returns `out`. */
static inline const char *arithmetic_text(uint32_t number, char out[ARITHMETIC_TEXT])
{
	if (number < ARITHMETIC_FAST)
		snprintf(out, ARITHMETIC_TEXT, "%u", number);
	else
		snprintf(out, ARITHMETIC_TEXT, "fast-%08x", number - ARITHMETIC_FAST);
	return out;
}
