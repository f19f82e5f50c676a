/*
 * A checksum for memory that others could write to: XXH3 (https://github.com/Cyan4973/xxHash), the
 * same on every machine. It detects accidents; an attacker can forge it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* before: the checksum of the preceding data, or any other number that is to be included. */
uint64_t checksum(uint64_t before, const void *data, size_t bytes);
