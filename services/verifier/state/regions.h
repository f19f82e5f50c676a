/*
 * The regions that the verifier owns: "sessions", "draft", "supports", "hidden" and "kv". They are made new,
 * or taken over from the predecessor through the fd store or a peer that kept them; a region that
 * does not fit this model and configuration is closed. packed.h owns "weights".
 */
#pragma once

#include "services/verifier/state/config.h"
#include "services/verifier/state/resources.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/region.h"
#include "shared/model/kv/kv.h"
#include "shared/spec/draft.h"
#include "shared/spec/hidden.h"
#include "shared/spec/session.h"
#include "shared/spec/slots.h"

#define KV_REGION "kv"
#define KV_REGION_LAYOUT 10

/* The payload of "kv": this, then the map and the store of the KV cache (kv.h). On a device the store
 * lies in its memory instead (kv_memory.h). */
struct kv_region_header {
	uint64_t model_fingerprint;
	uint64_t arithmetic; /* of the process that filled it (shared/base/arithmetic.h) */
	struct kv_layout layout;
	uint64_t device; /* kv_memory_device; 0: the store is here */
	uint64_t number; /* random, of this region; the device's memory has it too */
	uint64_t pid; /* of the process that writes to the device's memory */
	unsigned char pad[128 - 5 * sizeof(uint64_t) - sizeof(struct kv_layout)];
};
static_assert(sizeof(struct kv_region_header) == 128, "the cells stay 64-byte aligned");

struct regions {
	struct region sessions, draft, supports, kv;
	struct region hidden; /* header NULL: no drafter wants states */
	/* our own copy; the one in the region is written, but never read again */
	struct sessions_header header;
	void *kv_mem; /* in kv */
	/* The store of the KV cache on a device, for who makes the cache of it; backend NULL: it is in
	 * kv. And its descriptor, or -1. */
	struct buffer kv_store;
	int kv_store_fd;
	struct kv_layout kv_layout;
	bool recovered; /* the session pages are a predecessor's */
	uint32_t places; /* pages that are used at a time, by the configuration of the start */
	bool kv_recovered; /* the KV pages are a predecessor's */
};

/* Descriptors of what a predecessor left; -1 where there is none or it has been taken. */
struct regions_left {
	int sessions, draft, supports, hidden, kv, kv_memory, weights;
};

/* Before the broker opens. Touches nothing, because the predecessor may still live. */
void regions_recover(struct daemon *daemon, struct regions_left *left);
/* Bytes of a device's memory that the predecessor's KV cache has, if its region says so. */
uint64_t regions_left_device(const struct regions_left *left);
/* Closes what has not been taken. */
void regions_left_close(struct regions_left *left);

/* The layout of the KV cache with this configuration. */
struct kv_layout regions_kv_layout(const struct verifier_config *config, const struct model *model);

/* With the broker open, so that no other process works in these regions. Takes what it can use from
 * left. */
int regions_open(struct broker *broker, struct regions_left *left,
	const struct verifier_config *config, const struct model *model, struct backend *backend,
	struct resources_needs *needs, uint64_t tokenizer_fingerprint, struct regions *out,
	struct error *err);
/* The memory of these regions, and of the weights that every token needs, of which packed has a
 * copy if its header is not NULL. */
void regions_needs(const struct regions *regions, const struct region *packed,
	const struct model *model, struct slots_needs *out);
/* Makes the KV cache anew, with the settings' size, in place of the one that is there, which nobody uses
 * any more. On failure there is none. */
int regions_remake_kv(struct regions *regions, const struct verifier_config *config,
	const struct model *model, struct backend *backend, struct error *err);
/* Makes a region for the hidden states of `shape` in place of the one that is there. */
int regions_make_hidden(
	struct regions *regions, const struct hidden_shape *shape, struct error *err);
/* Call when the model's files were checked and have the same weights: stamps the regions with the
 * files' present state, so that a successor recognises them. */
void regions_stamp(struct regions *regions, const struct region *packed, const struct model *model);
/* How much of regions_needs is allocated already, in bytes; it grows as the KV cache is filled. */
uint64_t regions_there(const struct regions *regions, const struct region *packed);
void regions_close(struct regions *regions);
/* The page of the session with that index in the region. */
struct session_page *regions_page(const struct regions *regions, uint32_t index);
/* The first session page from `from` on that was ever written; n_sessions: there is none. */
uint32_t regions_next_page(const struct regions *regions, uint32_t from);
