/*
 * TILES, the layout that products of quantised weights like best: sixteen rows interleaved, so that a row is a lane,
 * what a step needs of all of them is one load, and the whole matrix is read as one stream.
 *
 * Rows 16i..16i+15 are a tile of 16 * row_bytes, at the place where those rows were; rows behind the last full tile
 * stay as they are. So a matrix keeps its size and can be packed in place. A tile is a sequence of groups of 256
 * weights of each row (eight blocks of 32 or four of 64, fewer at the end of the row; or one block of 256). In a group every
 * field of a block (tiles_fields) has a plane: [block][unit of the field][row], units of 1, 2 or 4 bytes. Of types whose
 * weights are found by an index (kernels/cpu/grids.h) the indices lie in the planes, not what they stand for, so that a tile
 * is as large as its rows are in the file.
 */
#pragma once

#include "kernels/tensor.h"

#define TILE_LANES 16
#define TILES_GROUP_WEIGHTS 256
/* Of a group of one row, of any type: eight blocks of Q8_0. */
#define TILES_GROUP_BYTES 272

/* Consecutive bytes of a block that move alike. */
struct tiles_field {
	uint8_t unit; /* bytes; 0: no more fields */
	uint8_t count; /* units */
};
#define TILES_FIELDS 5
/* In the order in which they lie in a block, which they cover. type must be quantised. */
const struct tiles_field *tiles_fields(enum tensor_type type);

/* Whether packing makes a difference: a quantised type, and a full tile. */
bool tiles_possible(const struct matrix *w);
/* from (LAYOUT_ROWS) -> to, rows first..last-1 of it, which are tiles (multiples of 16, or the last row). to is the
 * place of row 0 and does not overlap from. */
void tiles_pack(const struct matrix *from, uint32_t first, uint32_t last, void *to);
/* All rows of w, which lie in from, to the same place or one below it; what has no tiles is only moved. scratch: 16 *
 * row_bytes. */
void tiles_pack_down(const struct matrix *w, const void *from, void *to, void *scratch);

/* Group `group` of a row as its blocks lie in a file: in the matrix itself, or copied to buffer. */
const uint8_t *tiles_row_group(const struct matrix *w, uint32_t row, uint32_t group,
	uint8_t buffer[static TILES_GROUP_BYTES]);
