#include "shared/model/kv/kv_vector.h"

#include <string.h>

enum { SCALE_BYTES = 2, FOUR = 4 };

/* Where one piece of a vector lies in its turn, and in its row. */
typedef void piece_fn(unsigned char *turn, unsigned char *row, size_t bytes);

static void to_row(unsigned char *turn, unsigned char *row, size_t bytes)
{
	memcpy(row, turn, bytes);
}

static void to_turn(unsigned char *turn, unsigned char *row, size_t bytes)
{
	memcpy(turn, row, bytes);
}

/* The callers give `piece` as a constant, so that no call is left of it. */
__attribute__((always_inline)) static inline void plain_values(const struct kv_vector *v,
	unsigned char *turn, uint32_t lane, unsigned char *row, piece_fn *piece)
{
	size_t bytes = kv_value_bytes(v->type);

	for (uint32_t i = 0; i < v->n; i++)
		piece(turn + ((size_t)i * KV_TURN + lane) * bytes, row + i * bytes, bytes);
}

__attribute__((always_inline)) static inline void blocks(const struct kv_vector *v,
	unsigned char *turn, uint32_t lane, unsigned char *row, piece_fn *piece)
{
	size_t value = kv_value_bytes(v->type);
	uint32_t n_blocks = (v->n + Q8_BLOCK - 1) / Q8_BLOCK;
	unsigned char *at = turn + (size_t)n_blocks * KV_TURN * SCALE_BYTES;

	for (uint32_t b = 0; b < n_blocks; b++) {
		uint32_t left = v->n - b * Q8_BLOCK, some = left < Q8_BLOCK ? left : Q8_BLOCK;
		size_t bytes = some * value;
		unsigned char *pair = at + lane / 2 * 2 * bytes + lane % 2 * value;

		piece(turn + ((size_t)b * KV_TURN + lane) * SCALE_BYTES, row, SCALE_BYTES);
		row += SCALE_BYTES;
		for (uint32_t i = 0; v->form == KV_VECTOR_PAIRED && i < some; i++)
			piece(pair + 2 * i * value, row + i * value, value);
		for (size_t i = 0; v->form == KV_VECTOR_TURNED && i < bytes; i += FOUR) {
			size_t part = bytes - i < FOUR ? bytes - i : FOUR;

			piece(at + i * KV_TURN + part * lane, row + i, part);
		}
		row += bytes;
		at += KV_TURN * bytes;
	}
}

__attribute__((always_inline)) static inline void copy(const struct kv_vector *v,
	unsigned char *turn, uint32_t lane, unsigned char *row, piece_fn *piece)
{
	size_t bytes = kv_vector_bytes(v->type, v->n);

	if (v->form == KV_VECTOR_PLAIN)
		piece(turn + lane * bytes, row, bytes);
	else if (kv_in_blocks(v->type))
		blocks(v, turn, lane, row, piece);
	else
		plain_values(v, turn, lane, row, piece);
}

void kv_vector_read(const struct kv_vector *vector, const unsigned char *turn, uint32_t lane,
	unsigned char *row)
{
	/* to_row only reads the turn. */
	copy(vector, (unsigned char *)turn, lane, row, to_row);
}

void kv_vector_write(const struct kv_vector *vector, unsigned char *turn, uint32_t lane,
	const unsigned char *row)
{
	/* to_turn only reads the row. */
	copy(vector, turn, lane, (unsigned char *)row, to_turn);
}
