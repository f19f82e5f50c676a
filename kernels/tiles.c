#include "kernels/tiles.h"

#include <assert.h>
#include <string.h>

static const struct {
	enum tensor_type type;
	struct tiles_field fields[TILES_FIELDS];
} layouts[] = {
	{TENSOR_Q8_0, {{2, 1}, {4, 8}}},
	{TENSOR_Q4_0, {{2, 1}, {4, 4}}},
	{TENSOR_Q4_1, {{2, 1}, {2, 1}, {4, 4}}},
	{TENSOR_Q5_0, {{2, 1}, {4, 1}, {4, 4}}},
	{TENSOR_Q5_1, {{2, 1}, {2, 1}, {4, 1}, {4, 4}}},
	{TENSOR_IQ4_NL, {{2, 1}, {4, 4}}},
	{TENSOR_MXFP4, {{1, 1}, {4, 4}}},
	{TENSOR_Q2_K, {{4, 4}, {4, 16}, {2, 1}, {2, 1}}},
	{TENSOR_Q3_K, {{4, 8}, {4, 16}, {4, 3}, {2, 1}}},
	{TENSOR_Q4_K, {{4, 4}, {4, 32}}},
	{TENSOR_Q5_K, {{4, 4}, {4, 8}, {4, 32}}},
	{TENSOR_Q6_K, {{4, 32}, {4, 16}, {4, 4}, {2, 1}}},
	{TENSOR_IQ4_XS, {{2, 1}, {2, 1}, {4, 1}, {4, 32}}},
	{TENSOR_NVFP4, {{4, 9}}},
	{TENSOR_IQ1_S, {{2, 1}, {4, 12}}},
	{TENSOR_IQ1_M, {{4, 14}}},
	{TENSOR_IQ2_XXS, {{2, 1}, {4, 16}}},
	{TENSOR_IQ2_XS, {{2, 1}, {4, 18}}},
	{TENSOR_IQ2_S, {{2, 1}, {4, 20}}},
	{TENSOR_IQ3_XXS, {{2, 1}, {4, 24}}},
	{TENSOR_IQ3_S, {{2, 1}, {4, 27}}},
	{TENSOR_TQ1_0, {{4, 13}, {2, 1}}},
	{TENSOR_TQ2_0, {{4, 16}, {2, 1}}},
};

const struct tiles_field *tiles_fields(enum tensor_type type)
{
	size_t i = 0;

	while (layouts[i].type != type) {
		i++;
		assert(i < sizeof(layouts) / sizeof(layouts[0]));
	}
	return layouts[i].fields;
}

bool tiles_possible(const struct matrix *w)
{
	return w->rows >= TILE_LANES && tensor_type_info((uint32_t)w->type)->quantised;
}

typedef uint32_t four_words __attribute__((vector_size(16)));

static four_words load_four(const uint8_t *at)
{
	four_words words;
	memcpy(&words, at, sizeof(words));
	return words;
}

/* Moves four words of each of four rows to four planes, TILE_LANES words apart; each plane gets one
 * word of every row. */
static void transpose_four(const uint8_t *rows, size_t row_bytes, uint8_t *planes)
{
	four_words row0 = load_four(rows), row1 = load_four(rows + row_bytes);
	four_words row2 = load_four(rows + 2 * row_bytes), row3 = load_four(rows + 3 * row_bytes);
	four_words low01 = __builtin_shufflevector(row0, row1, 0, 4, 1, 5);
	four_words low23 = __builtin_shufflevector(row2, row3, 0, 4, 1, 5);
	four_words high01 = __builtin_shufflevector(row0, row1, 2, 6, 3, 7);
	four_words high23 = __builtin_shufflevector(row2, row3, 2, 6, 3, 7);
	const four_words out[4] = {
		__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
		__builtin_shufflevector(low01, low23, 2, 3, 6, 7),
		__builtin_shufflevector(high01, high23, 0, 1, 4, 5),
		__builtin_shufflevector(high01, high23, 2, 3, 6, 7),
	};

	for (size_t i = 0; i < 4; i++)
		memcpy(planes + i * TILE_LANES * 4, &out[i], sizeof(out[i]));
}

/* Moves one unit of sixteen rows. With constant sizes these become single moves. */
static void pack_unit(uint8_t unit, const uint8_t *at, size_t row_bytes, uint8_t *planes)
{
	for (uint32_t r = 0; r < TILE_LANES; r++, at += row_bytes, planes += unit) {
		if (unit == 4)
			memcpy(planes, at, 4);
		else if (unit == 2)
			memcpy(planes, at, 2);
		else
			*planes = *at;
	}
}

/* Moves a field of one block of sixteen rows to its planes. */
static void pack_field(
	const struct tiles_field *field, const uint8_t *at, size_t row_bytes, uint8_t *planes)
{
	uint32_t u = 0;

	for (; field->unit == 4 && u + 4 <= field->count; u += 4)
		for (uint32_t r = 0; r < TILE_LANES; r += 4)
			transpose_four(at + (size_t)u * 4 + r * row_bytes, row_bytes,
				planes + ((size_t)u * TILE_LANES + r) * 4);
	for (; u < field->count; u++)
		pack_unit(field->unit, at + (size_t)u * field->unit, row_bytes,
			planes + (size_t)u * TILE_LANES * field->unit);
}

/* Moves n blocks of sixteen rows to the group's planes. blocks: those of row 0; the other rows' are
 * row_bytes apart. */
static void pack_group(const struct tiles_field *field, uint32_t block_bytes, uint32_t n,
	const uint8_t *blocks, size_t row_bytes, uint8_t *planes)
{
	for (; field->unit; field++) {
		uint32_t field_bytes = field->unit * (uint32_t)field->count;

		for (uint32_t b = 0; b < n; b++, planes += field_bytes * TILE_LANES)
			pack_field(field, blocks + (size_t)b * block_bytes, row_bytes, planes);
		blocks += field_bytes;
	}
}

static void pack_tile(const struct matrix *w, const uint8_t *rows, uint8_t *tile)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)w->type);
	const struct tiles_field *fields = tiles_fields(w->type);
	uint32_t blocks = w->cols / info->block_weights;
	uint32_t per_group = TILES_GROUP_WEIGHTS / info->block_weights;

	for (uint32_t b = 0; b < blocks; b += per_group) {
		uint32_t n = blocks - b < per_group ? blocks - b : per_group;
		size_t at = (size_t)b * info->block_bytes;

		pack_group(fields, info->block_bytes, n, rows + at, w->row_bytes,
			tile + at * TILE_LANES);
	}
}

void tiles_pack(const struct matrix *from, uint32_t first, uint32_t last, void *to)
{
	const uint8_t *data = from->data;
	uint8_t *out = to;
	uint32_t row = first;

	assert(from->layout == LAYOUT_ROWS && first % TILE_LANES == 0 && last <= from->rows);
	for (; row + TILE_LANES <= last; row += TILE_LANES)
		pack_tile(from, data + row * from->row_bytes, out + row * from->row_bytes);
	assert(row == last || last == from->rows);
	memcpy(out + row * from->row_bytes, data + row * from->row_bytes,
		(size_t)(last - row) * from->row_bytes);
}

void tiles_pack_down(const struct matrix *w, const void *from, void *to, void *scratch)
{
	size_t tile_bytes = TILE_LANES * w->row_bytes;
	uint32_t tiled = tiles_possible(w) ? w->rows / TILE_LANES * TILE_LANES : 0, row = 0;
	const uint8_t *rows = from;
	uint8_t *out = to;

	assert(out <= rows);
	for (; row < tiled; row += TILE_LANES) {
		memcpy(scratch, rows, tile_bytes);
		pack_tile(w, scratch, out);
		rows += tile_bytes;
		out += tile_bytes;
	}
	memmove(out, rows, (size_t)(w->rows - row) * w->row_bytes);
}

const uint8_t *tiles_row_group(
	const struct matrix *w, uint32_t row, uint32_t group, uint8_t buffer[TILES_GROUP_BYTES])
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)w->type);
	uint32_t per_group = TILES_GROUP_WEIGHTS / info->block_weights;
	uint32_t left = w->cols / info->block_weights - group * per_group;
	uint32_t n = left < per_group ? left : per_group, lane = row % TILE_LANES, at = 0;
	size_t skip = (size_t)group * per_group * info->block_bytes;
	const uint8_t *tile = w->data;

	if (w->layout == LAYOUT_ROWS || row - lane + TILE_LANES > w->rows)
		return tile + row * w->row_bytes + skip;
	tile += (row - lane) * w->row_bytes + skip * TILE_LANES;
	for (const struct tiles_field *f = tiles_fields(w->type); f->unit; f++) {
		for (uint32_t b = 0; b < n; b++)
			for (uint32_t u = 0; u < f->count; u++, tile += f->unit * TILE_LANES)
				memcpy(buffer + (size_t)b * info->block_bytes + at +
						(size_t)u * f->unit,
					tile + lane * f->unit, f->unit);
		at += f->unit * f->count;
	}
	return buffer;
}
