/* The number of an arithmetic in which a device's library multiplies prompts. */
#pragma once

#include "kernels/kernels.h"
#include "shared/base/arithmetic.h"
#include "shared/base/checksum.h"

#include <string.h>

/* Raise it when other products become fast, or others rows, or when they are made otherwise. */
#define KERNELS_FAST 1

/* name: as backend_ops.fast gave it. */
static inline uint32_t arithmetic_fast(const char *name)
{
	const uint64_t versions = (uint64_t)KERNELS_ARITHMETIC << 32 | KERNELS_FAST;

	return ARITHMETIC_FAST | (uint32_t)checksum(versions, name, strlen(name));
}
