/*
 * Keys and values in blocks of integers, by 8-bit MMAs, exactly. A 16-bit integer is two bytes, and
 * a product of two such integers is three sums: of high bytes, of low bytes, and mixed. attend.cuh
 * includes this.
 */
#pragma once

template <int TYPE> struct block_type {
	enum { BYTES = TYPE == KV_Q8_0 ? 1 : 2 };
};

template <int TYPE> DEV float scale_value(uint16_t stored)
{
	return TYPE == KV_Q8_0 ? float_of_half(stored) : float_of_bfloat(stored);
}

/* Rows of the queries' integers, low bytes and, of 16-bit ones, high bytes, and their scales. */
template <int R> struct query_parts {
	unsigned char *low, *high;
	float *scale; /* [R][blocks] */
};

template <int R> DEV query_parts<R> query_at(unsigned char *q, unsigned k_dim)
{
	unsigned bytes = R * query_stride(k_dim);

	return {q, q + bytes, (float *)(q + 2 * bytes)};
}

/* Quantises the rows' queries; a warp takes a block at a time. Rows beyond the group become 0. */
template <int TYPE, int R>
DEV void block_queries(const attend_args *a, const attend_group *g, size_t head, unsigned char *q)
{
	const float least = 0x1p-110f, bound = TYPE == KV_Q8_0 ? 127.0f : (float)KV_Q16_QUERY_MOST;
	unsigned blocks = attend_blocks(a->k_dim), lane = threadIdx.x % 32;
	query_parts<R> to = query_at<R>(q, a->k_dim);

	for (unsigned i = threadIdx.x / 32; i < R * blocks; i += ATTEND_THREADS / 32) {
		unsigned r = i / blocks, b = i % blocks, d = b * Q8_BLOCK + lane;
		float x = 0;

		if (r < g->rows && d < a->k_dim)
			x = float_row(a->q,
				g->first +
					r / g->n_heads)[(head + r % g->n_heads) * a->q_stride + d];
		float amax = float_of_bits(warp_max(bits_of_float(x) & 0x7fffffffu));
		uint32_t n = 0;

		if (amax >= least && amax < INFINITE)
			n = integer_bits(f_mul(x, bound / amax));
		to.low[r * query_stride(a->k_dim) + d] = (unsigned char)n;
		to.high[r * query_stride(a->k_dim) + d] = (unsigned char)(n >> 8);
		if (lane == 0)
			to.scale[r * blocks + b] = amax < least ? 0.0f : amax / bound;
	}
}

/* Two words that are loaded at once. */
struct alignas(8) word_pair {
	uint32_t x, y;
};

/* Bytes of four integers of two rows of an MMA's operand. */
struct operand {
	uint32_t low[4], high[4];
};

/* Four integers 4j.. of a cell's block of keys, zeros behind its end. */
template <int TYPE>
DEV void key_bytes(
	gpu_vector key, const attend_args *a, unsigned b, unsigned j, uint32_t *low, uint32_t *high)
{
	const unsigned bytes = block_type<TYPE>::BYTES;
	bool turned = a->cells.turned;
	const unsigned char *p = block_integers_at(key, bytes, turned, a->k_dim, b);
	unsigned all = block_values_in(a->k_dim, b) * bytes;

	*low = *high = 0;
	for (unsigned i = 0; i < 4; i++) {
		unsigned at = (4 * j + i) * bytes;

		if (at >= all)
			break;
		*low |= (uint32_t)p[turned ? turned_byte(at, all, key.lane) : at] << 8 * i;
		if (TYPE == KV_Q16_0)
			*high |= (uint32_t)p[turned ? turned_byte(at + 1, all, key.lane) : at + 1]
				 << 8 * i;
	}
}

/* The keys of two cells as an operand: rows g and g + 8 of the MMA are cells 2g and 2g + 1 of a
 * turn of positions. whole: the block lies turned, the cells are neighbours. */
template <int TYPE>
DEV void key_operand(
	const gpu_vector *key, const attend_args *a, unsigned b, unsigned t, bool whole, operand *x)
{
	if (!whole) {
		for (unsigned i = 0; i < 4; i++)
			key_bytes<TYPE>(key[i % 2], a, b, t + 4 * (i / 2), &x->low[i], &x->high[i]);
		return;
	}
	const unsigned char *p =
		block_integers_at(key[0], block_type<TYPE>::BYTES, true, a->k_dim, b) +
		4 * key[0].lane;
	for (unsigned h = 0; h < 2; h++) {
		unsigned j = t + 4 * h;

		if (TYPE == KV_Q8_0) {
			word_pair w = *(const word_pair *)(p + (size_t)j * 64);

			x->low[2 * h] = w.x;
			x->low[2 * h + 1] = w.y;
		} else {
			word_pair w = *(const word_pair *)(p + (size_t)(2 * j) * 64);
			word_pair u = *(const word_pair *)(p + (size_t)(2 * j + 1) * 64);

			x->low[2 * h] = byte_perm(w.x, u.x, 0x6420);
			x->high[2 * h] = byte_perm(w.x, u.x, 0x7531);
			x->low[2 * h + 1] = byte_perm(w.y, u.y, 0x6420);
			x->high[2 * h + 1] = byte_perm(w.y, u.y, 0x7531);
		}
	}
}

/* The sums of an MMA's three products of bytes. */
struct byte_sums {
	int32_t high[4], mixed[4], low[4];
};

DEV float whole_sum(const byte_sums *s, unsigned i)
{
	return (float)(int32_t)(((uint32_t)s->high[i] << 16) + ((uint32_t)s->mixed[i] << 8) +
				(uint32_t)s->low[i]);
}

/* Scores of the warp's chunk. */
template <int TYPE, int R>
DEV void block_scores(const attend_args *a, unsigned kv_head, unsigned char *q, unsigned c,
	unsigned lane, attend_shared<R> *s)
{
	const unsigned bytes = block_type<TYPE>::BYTES, blocks = attend_blocks(a->k_dim);
	const unsigned stride = query_stride(a->k_dim), g = lane / 4, t = lane % 4;
	const unsigned char *k = a->cells.k + kv_head * a->cells.k_head_bytes;
	query_parts<R> from = query_at<R>(q, a->k_dim);

	for (unsigned m = 0; m < GPU_CHUNK / 16; m++) {
		unsigned position = c * GPU_CHUNK + m * 16 + 2 * g;
		float sum[R / 8][4];
		gpu_vector key[2];

		for (unsigned i = 0; i < 2; i++)
			key[i] = vector_at(
				k, a->cells.k_bytes, a->cells.turned, s->cells[position + i]);
		for (unsigned n = 0; n < R / 8; n++)
			for (unsigned i = 0; i < 4; i++)
				sum[n][i] = 0;
		for (unsigned b = 0; b < blocks; b++) {
			bool whole = a->cells.turned && s->paired[c] &&
				     block_values_in(a->k_dim, b) == Q8_BLOCK;
			operand x;
			float d[2];

			key_operand<TYPE>(key, a, b, t, whole, &x);
			for (unsigned i = 0; i < 2; i++)
				d[i] = scale_value<TYPE>(
					stored_scale(key[i], bytes, a->cells.turned, b));
			for (unsigned n = 0; n < R / 8; n++) {
				unsigned at = (n * 8 + g) * stride + b * Q8_BLOCK + 4 * t;
				uint32_t low[2], high[2];
				byte_sums y = {};

				for (unsigned i = 0; i < 2; i++) {
					low[i] = *(const uint32_t *)(from.low + at + 16 * i);
					high[i] = *(const uint32_t *)(from.high + at + 16 * i);
				}
				if (TYPE == KV_Q8_0) {
					MMA(y.low, x.low, low, true, true);
				} else {
					MMA(y.high, x.high, high, true, true);
					MMA(y.mixed, x.high, low, true, false);
					MMA(y.mixed, x.low, high, false, true);
					MMA(y.low, x.low, low, false, false);
				}
				for (unsigned i = 0; i < 4; i++) {
					float e = from.scale[(n * 8 + 2 * t + i % 2) * blocks + b];

					sum[n][i] = f_fma(
						f_mul(d[i / 2], e), whole_sum(&y, i), sum[n][i]);
				}
			}
		}
		for (unsigned n = 0; n < R / 8; n++)
			for (unsigned i = 0; i < 4; i++)
				s->scores[n * 8 + 2 * t + i % 2][position + i / 2] =
					f_mul(sum[n][i], a->scale);
	}
}

/* The greatest scale of each value of the warp's chunk; infinite where one is no number. */
template <int TYPE, int R>
DEV void block_greatest(
	const attend_args *a, unsigned kv_head, unsigned c, unsigned lane, attend_shared<R> *s)
{
	const unsigned char *v = a->cells.v + kv_head * a->cells.v_head_bytes;

	for (unsigned i = lane; i < GPU_CHUNK; i += 32) {
		gpu_vector value = vector_at(
			v, a->cells.v_bytes, a->cells.paired, s->cells[c * GPU_CHUNK + i]);
		float most = 0;

		for (unsigned b = 0; b < attend_blocks(a->v_dim); b++) {
			float d = scale_value<TYPE>(
				stored_scale(value, block_type<TYPE>::BYTES, a->cells.paired, b));

			d = d < INFINITE ? d : INFINITE;
			most = f_max(most, d);
		}
		s->greatest[c][i] = most;
	}
}

/* The warp's scales of block b. One that is no number counts as 0: the row's unit is infinite. */
template <int TYPE, int R>
DEV void block_scales(const attend_args *a, const unsigned char *v, unsigned b, unsigned c,
	unsigned lane, attend_shared<R> *s)
{
	for (unsigned i = lane; i < GPU_CHUNK; i += 32) {
		gpu_vector value = vector_at(
			v, a->cells.v_bytes, a->cells.paired, s->cells[c * GPU_CHUNK + i]);
		float d = scale_value<TYPE>(
			stored_scale(value, block_type<TYPE>::BYTES, a->cells.paired, b));

		s->scales[c][i] = d < INFINITE ? f_max(d, 0.0f) : 0.0f;
	}
}

/* Four integers of value e of block b, of the cells of positions at[0..3]; zeros behind the end. */
template <int TYPE>
DEV void value_bytes(const attend_args *a, const unsigned char *v, unsigned b, unsigned e,
	const uint32_t *at, uint32_t *low, uint32_t *high)
{
	const unsigned bytes = block_type<TYPE>::BYTES, some = block_values_in(a->v_dim, b);
	bool paired = a->cells.paired;

	*low = *high = 0;
	for (unsigned i = 0; i < 4 && e < some; i++) {
		gpu_vector value = vector_at(v, a->cells.v_bytes, paired, at[i]);
		const unsigned char *p = block_integers_at(value, bytes, paired, a->v_dim, b);

		p += (paired ? value.lane / 2 * 2 * some + 2 * e + value.lane % 2 : e) * bytes;
		*low |= (uint32_t)p[0] << 8 * i;
		if (TYPE == KV_Q16_0)
			*high |= (uint32_t)p[1] << 8 * i;
	}
}

/* 32 cells' values as an operand: rows g and g + 8 of the MMA are values 2g and 2g + 1 of half a
 * block; at: the cells of 32 positions. whole: the block is whole and paired in memory. */
template <int TYPE>
DEV void value_operand(const attend_args *a, const unsigned char *v, unsigned b, unsigned half,
	const uint32_t *at, unsigned lane, bool whole, operand *x)
{
	const unsigned g = lane / 4, t = lane % 4, e = half * 16 + 2 * g;

	if (!whole) {
		for (unsigned i = 0; i < 4; i++)
			value_bytes<TYPE>(a, v, b, e + i % 2, at + 16 * (i / 2) + 4 * t, &x->low[i],
				&x->high[i]);
		return;
	}
	for (unsigned h = 0; h < 2; h++) {
		const uint32_t *cell = at + 16 * h + 4 * t;
		const unsigned char *p[2];

		for (unsigned i = 0; i < 2; i++) {
			gpu_vector value = vector_at(v, a->cells.v_bytes, true, cell[2 * i]);

			p[i] = block_integers_at(
				       value, block_type<TYPE>::BYTES, true, a->v_dim, b) +
			       (value.lane * Q8_BLOCK + 2 * e) * block_type<TYPE>::BYTES;
		}
		if (TYPE == KV_Q8_0) {
			uint32_t w = *(const uint32_t *)p[0], u = *(const uint32_t *)p[1];

			x->low[2 * h] = byte_perm(w, u, 0x5410);
			x->low[2 * h + 1] = byte_perm(w, u, 0x7632);
		} else {
			word_pair w = *(const word_pair *)p[0], u = *(const word_pair *)p[1];

			x->low[2 * h] = byte_perm(w.x, u.x, 0x6420);
			x->high[2 * h] = byte_perm(w.x, u.x, 0x7531);
			x->low[2 * h + 1] = byte_perm(w.y, u.y, 0x6420);
			x->high[2 * h + 1] = byte_perm(w.y, u.y, 0x7531);
		}
	}
}

/* The integers of the weights of four positions, as low and high bytes. */
DEV void weight_bytes(const float *w, const float *d, uint32_t *low, uint32_t *high)
{
	uint32_t one =
		byte_perm(integer_bits(f_mul(w[0], d[0])), integer_bits(f_mul(w[1], d[1])), 0x5140);
	uint32_t two =
		byte_perm(integer_bits(f_mul(w[2], d[2])), integer_bits(f_mul(w[3], d[3])), 0x5140);

	*low = byte_perm(one, two, 0x5410);
	*high = byte_perm(one, two, 0x7632);
}

/* The warp's part of block b's values, times the integers of the weights, to s->dot. */
template <int TYPE, int R>
DEV void block_dots(const attend_args *a, const unsigned char *v, unsigned b, unsigned c,
	unsigned lane, attend_shared<R> *s)
{
	const unsigned g = lane / 4, t = lane % 4;
	const bool whole =
		a->cells.paired && s->paired[c] && block_values_in(a->v_dim, b) == Q8_BLOCK;

	for (unsigned half = 0; half < 2; half++) {
		operand x[2];

		for (unsigned h = 0; h < 2; h++)
			value_operand<TYPE>(a, v, b, half, s->cells + c * GPU_CHUNK + 32 * h, lane,
				whole, &x[h]);
		for (unsigned n = 0; n < R / 8; n++) {
			byte_sums y = {};

			for (unsigned h = 0; h < 2; h++) {
				uint32_t low[2], high[2];

				for (unsigned i = 0; i < 2; i++) {
					unsigned at = 32 * h + 16 * i + 4 * t;

					weight_bytes(&s->scores[n * 8 + g][c * GPU_CHUNK + at],
						&s->scales[c][at], &low[i], &high[i]);
				}
				if (TYPE == KV_Q16_0) {
					MMA(y.high, x[h].high, high, true, true);
					MMA(y.mixed, x[h].high, low, true, false);
					MMA(y.mixed, x[h].low, high, false, true);
					MMA(y.low, x[h].low, low, false, false);
				} else {
					MMA(y.mixed, x[h].low, high, true, true);
					MMA(y.low, x[h].low, low, true, false);
				}
			}
			for (unsigned i = 0; i < 4; i++)
				s->dot[c][n * 8 + 2 * t + i % 2][half * 16 + 2 * g + i / 2] =
					whole_sum(&y, i);
		}
	}
}

/* The weighted values of the split: chunk after chunk, block by block. */
template <int TYPE, int R>
DEV void block_values(const attend_args *a, const attend_group *g, unsigned kv_head, size_t part,
	unsigned c, unsigned lane, attend_shared<R> *s)
{
	const unsigned char *v = a->cells.v + kv_head * a->cells.v_head_bytes;
	const bool any = c * GPU_CHUNK < g->high && (c + 1) * GPU_CHUNK > g->low;

	for (unsigned b = 0; b < attend_blocks(a->v_dim); b++) {
		if (any) {
			block_scales<TYPE, R>(a, v, b, c, lane, s);
			__syncwarp();
			block_dots<TYPE, R>(a, v, b, c, lane, s);
		}
		__syncthreads();
		for (unsigned i = threadIdx.x; i < g->rows * Q8_BLOCK; i += ATTEND_THREADS) {
			unsigned r = i / Q8_BLOCK, e = i % Q8_BLOCK;
			float out = 0;

			for (unsigned j = 0; j < 4; j++) {
				unsigned first;

				if (row_in_chunk(s->row[r], j, &first))
					out = f_fma(s->dot[j][r][e], s->unit[j][r],
						f_mul(out, s->factor[j][r]));
			}
			size_t row = part + (size_t)(r / g->n_heads) * a->n_heads * a->n_kv_heads +
				     r % g->n_heads;
			if (b * Q8_BLOCK + e < a->v_dim)
				a->part_out[row * a->v_dim + b * Q8_BLOCK + e] = out;
		}
		__syncthreads();
	}
}
