/* Storing keys and values in their cells (kernels/kv_format.h), by a warp. */
#pragma once

#include "kernels/gpu/kernels/attend_cells.cuh"
#include "kernels/gpu/kernels/attend_numbers.cuh"

/* How a vector lies among the 16 of its turn. */
enum kv_place { PLACE_ALONE, PLACE_TURNED, PLACE_PAIRED };

/* The scale of a block with the greatest magnitude amax, as it is stored, and in *by the factor that
 * makes integers; 0 where all are 0. */
template <int TYPE> DEV uint16_t block_scale(float amax, float *by)
{
	bool none = amax < QUANTISE_LEAST, finite = amax < INFINITE;

	*by = 0;
	if (TYPE == KV_Q8_0) {
		if (!none && finite)
			*by = 127.0f / amax;
		return half_of_float(none ? 0.0f : amax / 127.0f);
	}
	if (!finite)
		return 0x7f80;
	if (none)
		return 0;
	uint32_t d = bits_of_float(amax / (float)KV_Q16_MOST);

	d += d & 0xffffu ? 0x10000u - (d & 0xffffu) : 0;
	*by = 1.0f / float_of_bits(d);
	return (uint16_t)(d >> 16);
}

template <int TYPE>
DEV void store_block(
	const float *x, unsigned n, unsigned b, gpu_vector to, kv_place place, unsigned lane)
{
	const unsigned bytes = TYPE == KV_Q8_0 ? 1 : 2;
	const unsigned some = block_values_in(n, b);
	const bool turn = place != PLACE_ALONE;
	float value = lane < some ? x[b * Q8_BLOCK + lane] : 0.0f, by;
	float amax = float_of_bits(warp_max(bits_of_float(value) & 0x7fffffffu));
	uint16_t scale = block_scale<TYPE>(amax, &by);
	uint32_t q = by > 0 ? integer_bits(f_mul(value, by)) : 0;
	unsigned char *p = (unsigned char *)block_integers_at(to, bytes, turn, n, b);

	if (lane == 0)
		*(uint16_t *)(to.at + (turn ? (b * KV_TURN + to.lane) * 2
					    : b * (2 + Q8_BLOCK * bytes))) = scale;
	if (lane >= some)
		return;
	if (place == PLACE_TURNED)
		p += turned_byte(lane * bytes, some * bytes, to.lane);
	else if (place == PLACE_PAIRED)
		p += (to.lane / 2 * 2 * some + 2 * lane + to.lane % 2) * bytes;
	else
		p += lane * bytes;
	if (TYPE == KV_Q8_0)
		*p = (unsigned char)q;
	else
		*(uint16_t *)p = (uint16_t)q;
}

/* Stores x[n] in a cell; bytes: those of one vector. */
template <int TYPE>
DEV void store_vector(const float *x, unsigned n, unsigned char *cells, size_t bytes, uint32_t cell,
	kv_place place, unsigned lane)
{
	gpu_vector to = vector_at(cells, bytes, place != PLACE_ALONE, cell);

	if constexpr (TYPE == KV_Q8_0 || TYPE == KV_Q16_0) {
		for (unsigned b = 0; b < (n + Q8_BLOCK - 1) / Q8_BLOCK; b++)
			store_block<TYPE>(x, n, b, to, place, lane);
	} else {
		for (unsigned d = lane; d < n; d += 32) {
			size_t at = place == PLACE_TURNED ? (size_t)d * KV_TURN + to.lane : d;

			if (TYPE == KV_F32)
				((float *)to.at)[at] = x[d];
			else
				((uint16_t *)to.at)[at] = half_of_float(x[d]);
		}
	}
}

DEV void store_any(int type, const float *x, unsigned n, unsigned char *cells, size_t bytes,
	uint32_t cell, kv_place place, unsigned lane)
{
	if (type == KV_F32)
		store_vector<KV_F32>(x, n, cells, bytes, cell, place, lane);
	else if (type == KV_F16)
		store_vector<KV_F16>(x, n, cells, bytes, cell, place, lane);
	else if (type == KV_Q8_0)
		store_vector<KV_Q8_0>(x, n, cells, bytes, cell, place, lane);
	else
		store_vector<KV_Q16_0>(x, n, cells, bytes, cell, place, lane);
}
