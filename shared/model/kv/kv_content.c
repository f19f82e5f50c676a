#include "shared/model/kv/kv_content.h"

#include "shared/model/kv/kv_internal.h"
#include "shared/model/kv/kv_prefix.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

size_t kv_content_bytes(const struct kv *kv)
{
	size_t cell = kv->k_bytes + (kv->layout.v_dim != 0 ? kv->v_bytes : 0);

	if (!kv->store.host || !kv_shares(kv))
		return 0;
	return cell * KV_PAGE_CELLS * kv->layout.n_layers * kv->layout.n_kv_heads;
}

/* Copies a page out of the store, or into it. */
static void copy(const struct kv *kv, uint32_t page, unsigned char *bytes, bool out)
{
	size_t k_bytes = KV_PAGE_CELLS * kv->k_bytes,
	       v_bytes = kv->layout.v_dim != 0 ? KV_PAGE_CELLS * kv->v_bytes : 0;

	for (uint32_t layer = 0; layer < kv->layout.n_layers; layer++) {
		for (uint32_t head = 0; head < kv->layout.n_kv_heads; head++) {
			unsigned char *k = kv->store.host + kv_k(kv, layer, head) + page * k_bytes;
			unsigned char *v = kv->store.host + kv_v(kv, layer, head) + page * v_bytes;

			memcpy(out ? bytes : k, out ? k : bytes, k_bytes);
			bytes += k_bytes;
			/* Otherwise the values lie in the keys. */
			if (v_bytes != 0)
				memcpy(out ? bytes : v, out ? v : bytes, v_bytes);
			bytes += v_bytes;
		}
	}
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

void kv_content_read(const struct kv *kv, uint32_t page, void *out)
{
	copy(kv, page, out, true);
}

int kv_content_append(struct kv *kv, struct kv_seq *seq, const uint8_t *order, const void *content)
{
	uint32_t cells[KV_PAGE_CELLS], accepted[KV_PAGE_CELLS];

	assert(seq->n == seq->n_shared && seq->own == KV_NONE);
	if (seq->n + KV_PAGE_CELLS > seq->n_max)
		return -ENOSPC;
	int rc = kv_take(kv, seq, KV_PAGE_CELLS, cells);
	if (rc < 0)
		return rc;
	/* The cells of a page that nobody has had yet, in ascending order. */
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		accepted[order[i]] = cells[i];
	/* The copy of bytes that the caller only reads. */
	copy(kv, cells[0] / KV_PAGE_CELLS, (unsigned char *)content, false);
	kv_commit(kv, seq, accepted, KV_PAGE_CELLS, NULL, 0);
	return 0;
}
