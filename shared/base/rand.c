#include "shared/base/rand.h"

void rand_philox(
	uint64_t seed, enum rand_stream stream, uint64_t position, uint32_t index, uint32_t out[4])
{
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	uint32_t c0 = index, c1 = (uint32_t)stream, c2 = (uint32_t)position,
		 c3 = (uint32_t)(position >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c1 = (uint32_t)p1;
		c3 = (uint32_t)p0;
		c0 = n0;
		c2 = n2;
		k0 += PHILOX_W0;
		k1 += PHILOX_W1;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

double rand_uniform(uint64_t seed, enum rand_stream stream, uint64_t position, uint32_t index)
{
	uint32_t bits[4];
	rand_philox(seed, stream, position, index, bits);
	return rand_uniform_of(bits[0] >> 8);
}
