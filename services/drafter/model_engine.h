/*
 * What computes a draft model: a back end, with a KV cache, experts and a forward pass of its own. It
 * begins on the CPU. If there is a device, the model may move to its memory, and back: its sessions
 * lose their cells, which are computed again from their tokens, and every draft stays the same, but
 * for what the device's own library multiplies (draft_model.use_library).
 */
#pragma once

#include "services/drafter/model.h"

/* Opens everything but the model and its tokenizer, which are there, on the CPU. */
int draft_engine_open(
	struct draft_model *m, const struct drafter_config *config, struct error *err);
/* Closes what it has opened, on whatever computes; the CPU's back end stays. */
void draft_engine_close(struct draft_model *m);

/* Bytes of a device's memory that a model takes. */
struct draft_engine_needs {
	uint64_t weights, kv, passes;
	uint32_t kv_tokens; /* for which kv is */
};
static inline uint64_t draft_engine_bytes(const struct draft_engine_needs *needs)
{
	return needs->weights + needs->kv + needs->passes;
}
/* Adds those of a model with this cache and these passes. */
void draft_engine_add_needs(const struct model *model, const struct kv_layout *layout,
	const struct forward_limits *limits, struct backend *device,
	struct draft_engine_needs *needs);
void draft_engine_needs(struct draft_model *m, const struct drafter_config *config,
	struct backend *device, struct draft_engine_needs *out);

/* Moves the model to a device, whose back end's `fast` must have succeeded if m->use_library, or, with
 * NULL, to the CPU. No session may have cells. -ENOMEM names
 * what a device lacks. On failure the model cannot be used until another call has succeeded. */
int draft_engine_move(struct draft_model *m, const struct drafter_config *config,
	struct backend *device, struct error *err);
