/* Keys and values in float32 and float16: chains of fma, a thread for each. attend.cuh includes
 * this. */
#pragma once

template <int TYPE> DEV float plain_value(const unsigned char *p)
{
	return TYPE == KV_F32 ? *(const float *)p : float_of_half(*(const uint16_t *)p);
}

/* Queries by value, then by row, so that a thread reads those of several rows at once. */
template <int R>
DEV void plain_queries(const attend_args *a, const attend_group *g, size_t head, float *q)
{
	for (unsigned i = threadIdx.x; i < R * a->k_dim; i += ATTEND_THREADS) {
		unsigned d = i % a->k_dim, r = i / a->k_dim;

		q[(size_t)d * R + r] = r < g->rows
					       ? float_row(a->q, g->first + r / g->n_heads)
							 [(head + r % g->n_heads) * a->q_stride + d]
					       : 0.0f;
	}
}

/* Scores of the warp's chunk; a lane has two cells. */
template <int TYPE, int R>
DEV void plain_scores(const attend_args *a, unsigned kv_head, const float *q, unsigned c,
	unsigned lane, attend_shared<R> *s)
{
	const unsigned bytes = TYPE == KV_F32 ? 4 : 2;
	const unsigned char *k = a->cells.k + kv_head * a->cells.k_head_bytes;
	const size_t step = a->cells.turned ? KV_TURN * bytes : bytes;

	for (unsigned i = c * GPU_CHUNK + lane; i < (c + 1) * GPU_CHUNK; i += 32) {
		gpu_vector key = vector_at(k, a->cells.k_bytes, a->cells.turned, s->cells[i]);
		const unsigned char *p = key.at + key.lane * bytes;
		float sum[R];

		for (unsigned r = 0; r < R; r++)
			sum[r] = 0;
		for (unsigned d = 0; d < a->k_dim; d++, p += step) {
			float x = plain_value<TYPE>(p);

			for (unsigned r = 0; r < R; r++)
				sum[r] = f_fma(q[(size_t)d * R + r], x, sum[r]);
		}
		for (unsigned r = 0; r < R; r++)
			s->scores[r][i] = f_mul(sum[r], a->scale);
	}
}

/* The weighted values; a thread has a dimension of all rows. */
template <int TYPE, int R>
DEV void plain_values(const attend_args *a, const attend_group *g, unsigned kv_head, size_t part,
	attend_shared<R> *s)
{
	const unsigned bytes = TYPE == KV_F32 ? 4 : 2;
	const unsigned char *v = a->cells.v + kv_head * a->cells.v_head_bytes;

	for (unsigned d = threadIdx.x; d < a->v_dim; d += ATTEND_THREADS) {
		float out[R];

		for (unsigned r = 0; r < R; r++)
			out[r] = 0;
		for (unsigned i = g->low; i < g->high; i++) {
			const bool begins = i == g->low || i % GPU_CHUNK == 0;
			float x = plain_value<TYPE>(
				v + s->cells[i] * a->cells.v_bytes + (size_t)d * bytes);

			for (unsigned r = 0; r < R; r++) {
				attend_row row = s->row[r];

				/* The row's first position in a chunk, or the chunk's. */
				if (i < row.first || i >= row.last)
					continue;
				if (begins || i == row.first)
					out[r] = f_mul(out[r], s->factor[i / GPU_CHUNK][r]);
				out[r] = f_fma(s->scores[r][i], x, out[r]);
			}
		}
		for (unsigned r = 0; r < R && r < g->rows; r++) {
			size_t row = part + (size_t)(r / g->n_heads) * a->n_heads * a->n_kv_heads +
				     r % g->n_heads;

			a->part_out[row * a->v_dim + d] = out[r];
		}
	}
}
