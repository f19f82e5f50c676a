/* Scans the weights of a packed file's experts row by row, as the original had them. */
#include "kernels/tiles.h"
#include "shared/model/gguf/gguf_scan.h"
#include "shared/model/arch/model.h"
#include "shared/model/arch/pack.h"

#include <stdlib.h>
#include <string.h>

const char *pack_part_name(int part)
{
	static const char *const names[] = {"gate", "up", "down"};
	return names[part];
}

static void copy_row(const struct matrix *w, uint32_t row, unsigned char *to)
{
	const struct tensor_type_info *type = tensor_type_info((uint32_t)w->type);
	size_t per = TILES_GROUP_WEIGHTS / type->block_weights * type->block_bytes;
	uint8_t buffer[TILES_GROUP_BYTES];
	for (size_t at = 0; at < w->row_bytes; at += per) {
		size_t n = w->row_bytes - at < per ? w->row_bytes - at : per;
		memcpy(to + at, tiles_row_group(w, row, (uint32_t)(at / per), buffer), n);
	}
}

static bool scan_expert(
	const struct matrix *w, bool first_only, unsigned char *row, struct gguf_scan *out)
{
	*out = (struct gguf_scan){0};
	if (w->layout == LAYOUT_ROWS)
		return gguf_scan_rows(
			(uint32_t)w->type, w->cols, w->data, w->rows, first_only, out);
	for (uint32_t r = 0; r < w->rows && !(first_only && out->n > 0); r++) {
		struct gguf_scan one;
		copy_row(w, r, row);
		if (!gguf_scan_rows((uint32_t)w->type, w->cols, row, 1, first_only, &one))
			return false;
		uint64_t n = out->n + one.n;
		if (out->n == 0 && one.n > 0) {
			*out = one;
			out->row = r;
		}
		out->n = n;
	}
	return true;
}

bool pack_scan(const struct model *model, uint32_t layer, int part, bool first_only,
	struct gguf_scan *scan, uint32_t *expert, int *rc)
{
	const struct layer *l = &model->layers[layer];
	const struct expert_tensor *parts[PACK_PARTS] = {&l->gate, &l->up, &l->down};
	struct matrix w = parts[part]->shape;
	unsigned char *row = malloc(w.row_bytes);
	uint64_t n = 0;
	bool known = true;
	*scan = (struct gguf_scan){0};
	*rc = row != NULL ? 0 : -ENOMEM;
	w.layout = tiles_possible(&w) ? LAYOUT_TILES : LAYOUT_ROWS;
	for (uint32_t e = 0; known && *rc == 0 && e < model->config.n_experts; e++) {
		struct gguf_scan one;
		w.data = model_expert_data(parts[part], e);
		known = scan_expert(&w, first_only, row, &one);
		if (n == 0 && one.n > 0) {
			*scan = one;
			*expert = e;
		}
		n += one.n;
		if (first_only && n > 0)
			break;
	}
	scan->n = n;
	free(row);
	return known;
}
