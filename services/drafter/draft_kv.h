/* The KV cache of a draft model: memory of this process, or of a device if that is what computes. Pages that
 * are never used cost no memory, but on a device. Used by the draft thread. */
#pragma once

#include "shared/model/kv/kv.h"

struct draft_kv_memory {
	void *at; /* of the cache; on a device, of its map alone */
	size_t bytes;
};

/* -ENOMEM. On failure draft_kv_close still has to be called. */
int draft_kv_open(struct backend *backend, const struct kv_layout *layout, struct kv *kv,
	struct draft_kv_memory *memory, struct error *err);
void draft_kv_close(struct kv *kv, struct draft_kv_memory *memory);
