/*
 * TILES, the fastest layout for products of quantised weights: sixteen rows are interleaved, so
 * that a row is a lane, one load brings the same field of all sixteen, and the whole matrix is read
 * as one stream.
 *
 * Rows 16 i to 16 i + 15 are a tile of 16 * row_bytes, at the place where those rows were. The rows
 * behind the last full tile stay as they are. So a matrix keeps its size and can be packed in
 * place. A tile is a sequence of groups, each of 256 weights of every row: eight blocks of 32, four
 * of 64 (fewer at the end of a row), or one block of 256. Within a group, every field of a block
 * (tiles_fields) has a plane: [block][unit of the field][row], with units of 1, 2 or 4 bytes. For
 * types whose weights are found by an index (kernels/cpu/grids.h) the planes hold the indices, not
 * the weights, so that a tile is as large as its rows in the file.
 */
#pragma once

#include "kernels/tensor.h"

#define TILE_LANES 16
#define TILES_GROUP_WEIGHTS 256
/* Bytes of one row in a group, at most: eight blocks of Q8_0. */
#define TILES_GROUP_BYTES 272

/* Consecutive bytes of a block that move together. */
struct tiles_field {
	uint8_t unit; /* bytes of a unit; 0: no more fields */
	uint8_t count; /* units in the field */
};
#define TILES_FIELDS 5
/* The fields of a type's block in their order; together they cover the block. type must be
 * quantised. */
const struct tiles_field *tiles_fields(enum tensor_type type);

/* True when packing changes anything: the type is quantised, and there is a full tile. */
bool tiles_possible(const struct matrix *w);
/* Packs rows first..last-1 from `from` (LAYOUT_ROWS) to `to`. first and last are multiples of 16,
 * or last is the number of rows. to: the place of row 0; must not overlap with `from`. */
void tiles_pack(const struct matrix *from, uint32_t first, uint32_t last, void *to);
/* Packs all rows of w, which lie at `from`, to the same place or to a lower address. Rows that have
 * no tile are only moved. scratch: 16 * row_bytes. */
void tiles_pack_down(const struct matrix *w, const void *from, void *to, void *scratch);

/* Returns group `group` of a row in the file's order: a pointer into the matrix, or to a copy in
 * `buffer`. */
const uint8_t *tiles_row_group(
	const struct matrix *w, uint32_t row, uint32_t group, uint8_t buffer[TILES_GROUP_BYTES]);
