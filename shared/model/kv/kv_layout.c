/* The layout of a cache: where everything lies in its map and its store. */
#include "shared/model/kv/kv_internal.h"
#include "shared/base/round.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static const char *const type_names[] = {
	[KV_F32] = "f32",
	[KV_F16] = "f16",
	[KV_Q8_0] = "q8_0",
	[KV_Q16_0] = "q16_0",
};
enum { N_TYPES = sizeof(type_names) / sizeof(type_names[0]) };

const char *kv_type_name(enum kv_type type)
{
	return type_names[type];
}

int kv_type_named(const char *name, enum kv_type *type)
{
	for (int i = 0; i < N_TYPES; i++) {
		if (strcmp(name, type_names[i]) == 0) {
			*type = (enum kv_type)i;
			return 0;
		}
	}
	return -EINVAL;
}

enum kv_type kv_type_auto(const struct model *model)
{
	bool plain = model->embedding.type == TENSOR_F32 && model->output.type == TENSOR_F32;
	return plain ? KV_F32 : KV_Q16_0;
}

enum kv_type kv_type_of(const char *setting, const struct model *model)
{
	enum kv_type type;
	return setting && kv_type_named(setting, &type) == 0 ? type : kv_type_auto(model);
}

struct kv_layout kv_layout_of(const struct model *model, enum kv_type type, uint32_t n_pages)
{
	const struct model_config *config = &model->config;
	struct kv_layout layout = {
		.n_layers = config->n_kv_layers,
		.n_kv_heads = config->n_kv_heads,
		.k_dim = config->head_dim,
		.v_dim = config->head_dim,
		.type = type,
		.n_pages = n_pages,
		.states = recurrent_layout_of(model, 1),
	};
	if (config->mla.kv_rank) {
		layout.n_kv_heads = 1;
		layout.k_dim = config->mla.kv_rank + config->mla.rope;
		layout.v_dim = 0;
	}
	return layout;
}

bool kv_layout_valid(const struct kv_layout *layout)
{
	return layout->n_layers >= 1 && layout->n_layers <= LIMIT_LAYERS &&
	       layout->n_kv_heads >= 1 && layout->n_kv_heads <= LIMIT_HEADS && layout->k_dim >= 1 &&
	       layout->k_dim <= LIMIT_HEAD_DIM && layout->v_dim <= LIMIT_HEAD_DIM &&
	       (unsigned int)layout->type < N_TYPES && layout->n_pages >= 1 &&
	       layout->n_pages <= KV_PAGES_MAX && layout->n_records <= KV_PAGES_MAX &&
	       layout->states.n_snapshots <= layout->n_pages &&
	       layout->windows.n_layers <= layout->n_layers &&
	       layout->windows.n_cells < layout->n_pages * KV_PAGE_CELLS;
}

static_assert((uint64_t)LIMIT_LAYERS * LIMIT_HEADS * LIMIT_HEAD_DIM * 2 * 4 * KV_PAGES_MAX *
			      KV_PAGE_CELLS <=
		      (uint64_t)1 << 60,
	"kv_bytes cannot overflow");

size_t kv_head_bytes(const struct kv_layout *layout, uint32_t n_cells, uint32_t dim)
{
	size_t n = ((size_t)n_cells + KV_TURN - 1) / KV_TURN * KV_TURN;
	return round_lines(n * kv_vector_bytes(layout->type, dim));
}

struct kv_parts kv_parts_of(const struct kv_layout *layout)
{
	uint32_t n_cells = layout->n_pages * KV_PAGE_CELLS;
	const struct kv_windows_layout *w = &layout->windows;
	size_t cell = kv_head_bytes(layout, n_cells, layout->k_dim) +
		      kv_head_bytes(layout, n_cells, layout->v_dim);
	size_t window_cell = kv_head_bytes(layout, w->n_cells, layout->k_dim) +
			     kv_head_bytes(layout, w->n_cells, layout->v_dim);
	struct kv_parts p = {.records = round_lines(layout->n_pages * sizeof(struct kv_page_meta))};
	p.table = p.records + round_lines(layout->n_records * sizeof(struct kv_record));
	p.state_records = p.table + (w->n_layers ? round_lines(n_cells * sizeof(uint32_t)) : 0);
	p.snapshot_records = p.state_records + recurrent_map_bytes(&layout->states);
	p.map_end = p.snapshot_records + layout->states.n_snapshots * sizeof(struct snapshot_meta);
	p.window_cells = cell * layout->n_kv_heads * (layout->n_layers - w->n_layers);
	p.states = p.window_cells + window_cell * layout->n_kv_heads * w->n_layers;
	p.snapshots = p.states + recurrent_store_bytes(&layout->states);
	p.store_end =
		p.snapshots + layout->states.n_snapshots * recurrent_state_bytes(&layout->states);
	return p;
}

size_t kv_map_bytes(const struct kv_layout *layout)
{
	return kv_layout_valid(layout) ? kv_parts_of(layout).map_end : 0;
}

size_t kv_store_bytes(const struct kv_layout *layout)
{
	return kv_layout_valid(layout) ? kv_parts_of(layout).store_end : 0;
}

size_t kv_bytes(const struct kv_layout *layout)
{
	return kv_map_bytes(layout) + kv_store_bytes(layout);
}

/* Offset of a layer; sets the bytes of its heads' keys and values. */
static size_t layer_at(
	const struct kv *kv, uint32_t layer, size_t *k_head_bytes, size_t *v_head_bytes)
{
	bool own = kv_own_window(kv, layer);
	*k_head_bytes = own ? kv->windows.k_head_bytes : kv->k_head_bytes;
	*v_head_bytes = own ? kv->windows.v_head_bytes : kv->v_head_bytes;
	if (own)
		layer -= kv->layout.n_layers - kv->layout.windows.n_layers;
	return (own ? kv->windows.at : 0) +
	       (*k_head_bytes + *v_head_bytes) * kv->layout.n_kv_heads * layer;
}

size_t kv_k(const struct kv *kv, uint32_t layer, uint32_t kv_head)
{
	size_t k_bytes, v_bytes, at = layer_at(kv, layer, &k_bytes, &v_bytes);
	return at + k_bytes * kv_head;
}

size_t kv_v(const struct kv *kv, uint32_t layer, uint32_t kv_head)
{
	if (kv->layout.v_dim == 0)
		return kv_k(kv, layer, kv_head);
	size_t k_bytes, v_bytes, at = layer_at(kv, layer, &k_bytes, &v_bytes);
	return at + k_bytes * kv->layout.n_kv_heads + v_bytes * kv_head;
}

void kv_copy_bytes(struct kv *kv, size_t to, size_t from, size_t bytes)
{
	if (kv->store.host)
		memcpy(kv->store.host + to, kv->store.host + from, bytes);
	else
		kv->queue->ops->copy(kv->queue, (struct place){&kv->store, to},
			(struct place){&kv->store, from}, bytes);
}

bool kv_copy_page(struct kv *kv, uint32_t to, uint32_t from)
{
	size_t k_bytes = KV_PAGE_CELLS * kv->k_bytes, v_bytes = KV_PAGE_CELLS * kv->v_bytes;
	for (uint32_t layer = 0; layer < kv->layout.n_layers && !kv_own_window(kv, layer);
		layer++) {
		for (uint32_t head = 0; head < kv->layout.n_kv_heads; head++) {
			size_t k = kv_k(kv, layer, head), v = kv_v(kv, layer, head);
			kv_copy_bytes(kv, k + to * k_bytes, k + from * k_bytes, k_bytes);
			/* Otherwise the values lie in the keys. */
			if (kv->layout.v_dim != 0)
				kv_copy_bytes(kv, v + to * v_bytes, v + from * v_bytes, v_bytes);
		}
	}
	/* Markers promise that the vectors are there. */
	return kv->store.host ||
	       kv->queue->ops->wait(kv->queue, kv->queue->ops->ticket(kv->queue)) == 0;
}
