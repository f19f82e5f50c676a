#include "shared/base/checksum.h"

#include <xxhash.h>

uint64_t checksum(uint64_t before, const void *data, size_t bytes)
{
	return XXH3_64bits_withSeed(data, bytes, before);
}
