/*
 * A checksum of memory that others could write to: XXH3 (https://github.com/Cyan4973/xxHash), the same on every machine. It finds
 * accidents. Who means harm can make one that fits.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* before: the checksum of what comes before, or any other number that is to count. */
uint64_t checksum(uint64_t before, const void *data, size_t bytes);
