#include "shared/model/gguf/gguf_scan.h"

#include "shared/model/gguf/gguf_internal.h"

#include <string.h>

enum format { F32 = 1, F16, BF16, E8M0, F64, F16_NIBBLES, E4M3_4 };

/* The places in a block where numbers can be NaN or infinite. GGUF_NOTES section 3. */
struct field {
	/* 0: none; F16_NIBBLES: in the highest bits of four words; E4M3_4: four of them */
	enum format format;
	uint32_t offset;
};

static const struct layout {
	uint32_t block, bytes;
	struct field scale, minimum;
} layouts[] = {
	[0] = {1, 4, {F32, 0}, {0}},
	[1] = {1, 2, {F16, 0}, {0}},
	[2] = {32, 18, {F16, 0}, {0}}, /* Q4_0 */
	[3] = {32, 20, {F16, 0}, {F16, 2}},
	[6] = {32, 22, {F16, 0}, {0}}, /* Q5_0 */
	[7] = {32, 24, {F16, 0}, {F16, 2}},
	[8] = {32, 34, {F16, 0}, {0}}, /* Q8_0 */
	[9] = {32, 36, {F16, 0}, {F16, 2}},
	[10] = {256, 84, {F16, 80}, {F16, 82}}, /* Q2_K */
	[11] = {256, 110, {F16, 108}, {0}},
	[12] = {256, 144, {F16, 0}, {F16, 2}}, /* Q4_K */
	[13] = {256, 176, {F16, 0}, {F16, 2}},
	[14] = {256, 210, {F16, 208}, {0}}, /* Q6_K */
	[15] = {256, 292, {F32, 0}, {0}},
	[16] = {256, 66, {F16, 0}, {0}}, /* IQ2_XXS */
	[17] = {256, 74, {F16, 0}, {0}},
	[18] = {256, 98, {F16, 0}, {0}}, /* IQ3_XXS */
	[19] = {256, 50, {F16, 0}, {0}},
	[20] = {32, 18, {F16, 0}, {0}}, /* IQ4_NL */
	[21] = {256, 110, {F16, 0}, {0}},
	[22] = {256, 82, {F16, 0}, {0}}, /* IQ2_S */
	[23] = {256, 136, {F16, 0}, {0}}, /* IQ4_XS */
	[28] = {1, 8, {F64, 0}, {0}},
	[29] = {256, 56, {F16_NIBBLES, 48}, {0}}, /* IQ1_M */
	[30] = {1, 2, {BF16, 0}, {0}},
	[34] = {256, 54, {F16, 52}, {0}}, /* TQ1_0 */
	[35] = {256, 66, {F16, 64}, {0}},
	[39] = {32, 17, {E8M0, 0}, {0}}, /* MXFP4 */
	[40] = {64, 36, {E4M3_4, 0}, {0}}, /* NVFP4 */
	[41] = {128, 18, {F16, 0}, {0}}, /* Q1_0 */
	[42] = {64, 18, {F16, 0}, {0}},
};

/* Integers are always finite. */
static bool is_integer(uint32_t type)
{
	return type >= 24 && type <= 27;
}

static uint32_t load_u16(const unsigned char *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

/* 0: finite, 1: infinite, 2: NaN. */
static int judge(enum format format, const unsigned char *p)
{
	uint64_t bits, exponent;
	switch (format) {
	case F32:
		bits = gguf_load_u32(p) & 0x7fffffff;
		exponent = 0x7f800000;
		break;
	case F16:
		bits = load_u16(p) & 0x7fff;
		exponent = 0x7c00;
		break;
	case BF16:
		bits = load_u16(p) & 0x7fff;
		exponent = 0x7f80;
		break;
	case F64:
		bits = gguf_load_u64(p) & INT64_MAX;
		exponent = 0x7ff0000000000000;
		break;
	case F16_NIBBLES:
		bits = (uint64_t)p[1] >> 4 | (p[3] & 0xf0u) | (p[5] & 0xf0u) << 4 |
		       (p[7] & 0x70u) << 8;
		exponent = 0x7c00;
		break;
	case E4M3_4:
		/* In a NaN all bits but the sign are one; there is no infinity. */
		for (int i = 0; i < 4; i++)
			if ((p[i] & 127) == 127)
				return 2;
		return 0;
	case E8M0:
	default:
		/* 255 is NaN (OCP MX 1.0, section 5.4.1). From 253 on, 12 times the scale of 2^(e -
		 * 128) is beyond float32. */
		return *p == 255 ? 2 : *p >= 253;
	}
	return bits < exponent ? 0 : bits == exponent ? 1 : 2;
}

/* Whether any of n blocks has a field that is not finite. All data go through this loop, so it has
 * no branch. */
static bool any_bad(const struct field *field, const struct layout *layout,
	const unsigned char *blocks, uint64_t n)
{
	const unsigned char *p = blocks + field->offset;
	const size_t step = layout->bytes;
	uint32_t bad = 0;
	switch (field->format) {
	case F32:
		for (uint64_t i = 0; i < n; i++)
			bad |= (gguf_load_u32(p + i * step) & 0x7f800000) == 0x7f800000;
		return bad != 0;
	case F16:
		for (uint64_t i = 0; i < n; i++)
			bad |= (p[i * step + 1] & 0x7c) == 0x7c;
		return bad != 0;
	case BF16:
		for (uint64_t i = 0; i < n; i++)
			bad |= (load_u16(p + i * step) & 0x7f80) == 0x7f80;
		return bad != 0;
	case E8M0:
	case F64:
	case F16_NIBBLES:
	case E4M3_4:
		for (uint64_t i = 0; i < n; i++)
			bad |= judge(field->format, p + i * step) != 0;
		return bad != 0;
	}
	return false;
}

static void count_row(const struct layout *layout, const unsigned char *row, uint64_t row_index,
	uint64_t n_blocks, struct gguf_scan *out)
{
	for (uint64_t b = 0; b < n_blocks; b++) {
		const struct field *fields[] = {&layout->scale, &layout->minimum};
		for (int f = 0; f < 2 && fields[f]->format; f++) {
			int bad = judge(
				fields[f]->format, row + b * layout->bytes + fields[f]->offset);
			if (bad && out->n++ == 0) {
				out->row = row_index;
				out->column = b * layout->block;
				out->value = bad == 1 ? "inf" : "nan";
				out->what = layout->block == 1 ? "the weight"
					    : f == 0	       ? "the scale"
							       : "the minimum";
			}
		}
	}
}

bool gguf_scan_rows(uint32_t type, uint64_t ne, const unsigned char *data, uint64_t rows,
	bool first_only, struct gguf_scan *out)
{
	*out = (struct gguf_scan){0};
	if (is_integer(type))
		return true;
	if (type >= sizeof(layouts) / sizeof(layouts[0]) || !layouts[type].scale.format)
		return false;
	const struct layout *layout = &layouts[type];
	uint64_t per_row = ne / layout->block, row_bytes = per_row * layout->bytes;
	for (uint64_t r = 0; r < rows && !(first_only && out->n); r++) {
		const unsigned char *row = data + r * row_bytes;
		if (any_bad(&layout->scale, layout, row, per_row) ||
			any_bad(&layout->minimum, layout, row, per_row))
			count_row(layout, row, r, per_row, out);
	}
	return true;
}

bool gguf_scan_tensor(const struct gguf *gguf, const struct gguf_tensor *tensor, bool first_only,
	struct gguf_scan *out)
{
	uint64_t rows = tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
	return gguf_scan_rows(
		tensor->type, tensor->ne[0], gguf_tensor_data(gguf, tensor), rows, first_only, out);
}

int gguf_scan_small(const struct gguf *gguf, struct error *err)
{
	if (gguf->bytes > GGUF_SCAN_BYTES)
		return 0;
	for (size_t i = 0; i < gguf->n_tensors; i++) {
		struct gguf_scan scan;
		const struct gguf_tensor *t = &gguf->tensors[i];
		if (gguf_scan_tensor(gguf, t, true, &scan) && scan.n)
			return error_set(err, EINVAL,
				"tensor %s: %s at column %llu of row %llu is %s",
				gguf_name_text(t->name).text, scan.what,
				(unsigned long long)scan.column, (unsigned long long)scan.row,
				scan.value);
	}
	return 0;
}
