#include "shared/base/rand.h"

double rand_uniform(uint64_t seed, enum rand_stream stream, uint64_t position, uint32_t index)
{
	uint32_t bits[4];
	rand_philox(seed, stream, position, index, bits);
	return rand_uniform_of(bits[0] >> 8);
}
