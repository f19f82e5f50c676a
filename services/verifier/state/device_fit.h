/*
 * What the sessions take of a device's memory beside the weights, and which settings would take less.
 * The verifier asks before it allocates anything, outrider doctor before a service is started. Pure,
 * but for what the back end says of its buffers.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "kernels/backend.h"

/* The settings that decide: sessions_max, prefill_chunk, context, kv_tokens. */
struct device_extent {
	int64_t sessions, chunk, context, kv_tokens;
};

struct device_extent device_extent_of(const struct verifier_config *config);

/* Bytes for passes. Tables that the host has are counted in. */
uint64_t device_pass_bytes(const struct verifier_config *config, const struct model *model,
	struct backend *backend, const struct device_extent *extent);
/* Bytes for the KV cache; 0: the host's memory has it. */
uint64_t device_cells_bytes(const struct verifier_config *config, const struct model *model,
	const struct backend *backend, const struct device_extent *extent);

/* The first extent that takes at most `room` bytes, from that of the settings downwards: fewer
 * sessions, then shorter chunks of prompts, then a shorter context. False: there is none. */
bool device_fit(const struct verifier_config *config, const struct model *model,
	struct backend *backend, uint64_t room, struct device_extent *out);

enum { DEVICE_FIT_TEXT = 160 };
/* The extent as settings, such as "sessions_max = 4, prefill_chunk = 256, context = 4096 and
 * kv_tokens = 8300", in a buffer of DEVICE_FIT_TEXT, which is returned. */
const char *device_fit_text(const struct device_extent *extent, char *out);
