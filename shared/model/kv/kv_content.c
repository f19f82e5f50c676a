#include "shared/model/kv/kv_content.h"

#include "shared/model/kv/kv_internal.h"
#include "shared/model/kv/kv_prefix.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

size_t kv_content_bytes_of(const struct kv_layout *layout)
{
	size_t cell = kv_vector_bytes(layout->type, layout->k_dim) +
		      (layout->v_dim != 0 ? kv_vector_bytes(layout->type, layout->v_dim) : 0);

	return kv_can_share(layout) ? cell * KV_PAGE_CELLS * layout->n_kv_heads *
					      (layout->n_layers - layout->windows.n_layers)
				    : 0;
}

size_t kv_content_bytes(const struct kv *kv)
{
	return kv->store.host || kv->layout.windows.n_layers == 0 ? kv_content_bytes_of(&kv->layout)
								  : 0;
}

/* Copies bytes between two offsets: of the store, and of the content, which lies at `content` where
 * this process sees the store, and else in kv->staging. */
static void copy_part(
	struct kv *kv, size_t store, unsigned char *content, size_t at, size_t bytes, bool out)
{
	struct queue *q = kv->queue;
	struct place in_store = {&kv->store, store}, in_content = {&kv->staging, at};

	if (!kv->store.host)
		q->ops->copy(q, out ? in_content : in_store, out ? in_store : in_content, bytes);
	else if (out)
		memcpy(content + at, kv->store.host + store, bytes);
	else
		memcpy(kv->store.host + store, content + at, bytes);
}

static void copy_parts(struct kv *kv, uint32_t page, unsigned char *content, bool out)
{
	size_t k_bytes = KV_PAGE_CELLS * kv->k_bytes, at = 0,
	       v_bytes = kv->layout.v_dim != 0 ? KV_PAGE_CELLS * kv->v_bytes : 0;

	for (uint32_t layer = 0; layer < kv->layout.n_layers && !kv_own_window(kv, layer);
		layer++) {
		for (uint32_t head = 0; head < kv->layout.n_kv_heads; head++) {
			copy_part(kv, kv_k(kv, layer, head) + page * k_bytes, content, at, k_bytes,
				out);
			at += k_bytes;
			/* Otherwise the values lie in the keys. */
			if (v_bytes != 0)
				copy_part(kv, kv_v(kv, layer, head) + page * v_bytes, content, at,
					v_bytes, out);
			at += v_bytes;
		}
	}
}

/* Copies a page out of the store, or into it. */
static int copy(struct kv *kv, uint32_t page, unsigned char *content, bool out)
{
	struct queue *q = kv->queue;
	size_t bytes = kv_content_bytes(kv);

	assert(kv_reaches(kv));
	if (!kv->store.host && !out)
		memcpy(kv->staging.host, content, bytes);
	copy_parts(kv, page, content, out);
	if (kv->store.host)
		return 0;
	int rc = q->ops->wait(q, q->ops->ticket(q));
	if (rc == 0 && out)
		memcpy(content, kv->staging.host, bytes);
	return rc;
}

bool kv_content_name(struct kv *kv, uint32_t page, struct kv_content_name *out)
{
	const int32_t *positions = &kv->position[page * KV_PAGE_CELLS];

	if (!kv_prefix_has(kv, page) || (kv->pages[page].unchecked && !kv_keep_check(kv, page)))
		return false;
	out->tokens = kv_prefix_tokens(kv, page, &out->domain);
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		out->order[i] = (uint8_t)(positions[i] % KV_PAGE_CELLS);
	return true;
}

int kv_content_read(struct kv *kv, uint32_t page, void *out)
{
	return copy(kv, page, out, true);
}

int kv_content_append(struct kv *kv, struct kv_seq *seq, const uint8_t *order, const void *content)
{
	uint32_t cells[KV_PAGE_CELLS], accepted[KV_PAGE_CELLS];

	assert(seq->n == seq->n_shared && seq->own == KV_NONE);
	if (seq->n + KV_PAGE_CELLS > seq->n_max)
		return -ENOSPC;
	if (!kv_has_room(kv, seq, KV_PAGE_CELLS))
		return -ENOSPC;
	/* Without a state and without a window, which come from a snapshot. */
	kv_take_cells(kv, seq, KV_PAGE_CELLS, cells);
	/* The cells of a page that nobody has had yet, in ascending order. */
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		accepted[order[i]] = cells[i];
	/* The copy of bytes that the caller only reads. */
	int rc = copy(kv, cells[0] / KV_PAGE_CELLS, (unsigned char *)content, false);
	if (rc != 0) {
		kv_commit(kv, seq, NULL, 0, cells, KV_PAGE_CELLS);
		return rc;
	}
	kv_windows_skip(kv, seq, seq->n + KV_PAGE_CELLS);
	kv_commit(kv, seq, accepted, KV_PAGE_CELLS, NULL, 0);
	return 0;
}
