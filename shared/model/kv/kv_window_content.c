/* The window cells of a shared page as bytes: see kv_content.h. */
#include "shared/model/kv/kv_content.h"
#include "shared/model/kv/kv_internal.h"
#include "shared/model/kv/kv_vector.h"

#include <assert.h>
#include <errno.h>

bool kv_window_there(const struct kv *kv, uint32_t page)
{
	return kv_windows_filled(kv, page) && !kv->pages[page].unchecked;
}

/* What is copied in which direction. */
struct copy {
	struct kv *kv;
	struct kv_vector k, v;
	unsigned char *content;
	bool out;
};

static struct copy copy_of(struct kv *kv, unsigned char *content, bool out)
{
	const struct kv_layout *layout = &kv->layout;

	return (struct copy){
		.kv = kv,
		.k = {layout->type, layout->k_dim,
			kv_turned(kv) ? KV_VECTOR_TURNED : KV_VECTOR_PLAIN},
		.v = {layout->type, layout->v_dim,
			kv_paired(kv) ? KV_VECTOR_PAIRED : KV_VECTOR_PLAIN},
		.content = content,
		.out = out,
	};
}

/* Copies the vector of a window cell, between `row` and the vectors that begin at an offset of the
 * store. Returns its bytes. */
static size_t copy_vector(const struct copy *c, const struct kv_vector *vector, size_t store,
	uint32_t window_cell, unsigned char *row)
{
	size_t bytes = kv_vector_bytes(vector->type, vector->n);
	unsigned char *turn = c->kv->store.host + store + window_cell / KV_TURN * KV_TURN * bytes;

	if (c->out)
		kv_vector_read(vector, turn, window_cell % KV_TURN, row);
	else
		kv_vector_write(vector, turn, window_cell % KV_TURN, row);
	return bytes;
}

/* Copies all vectors of a cell. */
static void copy_cell(const struct copy *c, uint32_t cell)
{
	const struct kv_layout *layout = &c->kv->layout;
	uint32_t place = (uint32_t)c->kv->position[cell] % KV_PAGE_CELLS;
	unsigned char *row = c->content + place * (kv_windows_page_bytes(layout) / KV_PAGE_CELLS);

	for (uint32_t layer = layout->n_layers - layout->windows.n_layers; layer < layout->n_layers;
		layer++) {
		for (uint32_t head = 0; head < layout->n_kv_heads; head++) {
			uint32_t at = c->kv->windows.of[cell];

			row += copy_vector(c, &c->k, kv_k(c->kv, layer, head), at, row);
			/* Otherwise the values lie in the keys. */
			if (layout->v_dim != 0)
				row += copy_vector(c, &c->v, kv_v(c->kv, layer, head), at, row);
		}
	}
}

void kv_window_read(struct kv *kv, uint32_t page, void *out)
{
	struct copy c = copy_of(kv, out, true);

	assert(kv->store.host && kv_window_there(kv, page));
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		copy_cell(&c, page * KV_PAGE_CELLS + i);
}

int kv_window_write(struct kv *kv, uint32_t page, const void *content)
{
	/* The copy only reads it. */
	struct copy c = copy_of(kv, (unsigned char *)content, false);

	assert(kv->store.host && kv->pages[page].window_seqs > 0);
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++) {
		uint32_t cell = page * KV_PAGE_CELLS + i;

		/* It has what would be written. */
		if (kv->windows.of[cell] != KV_NONE)
			continue;
		if (!kv_windows_left(kv, 1))
			return -ENOSPC;
		kv_windows_take_hidden(kv, cell);
		copy_cell(&c, cell);
		kv_windows_show(kv, cell);
	}
	return 0;
}
