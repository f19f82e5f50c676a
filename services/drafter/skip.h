/*
 * A part of the target's layers as a draft model (shared/model/arch/skip.h). It reads the weights where
 * the verifier has them: packed ones in the region "weights", experts in the expert-cache's slots
 * (head_experts.h), and the rest in the mapping of the file. Only its KV cache is its own.
 *
 * It is opened when the first session wants it, and again when the target, the region or the setting
 * has changed. Used by the draft thread.
 */
#pragma once

#include "services/drafter/model.h"

/* weights: the verifier's region, which must outlive the model; header NULL: there is none. Everything
 * else is borrowed. Errors say which setting or file it is about. */
int draft_skip_open(const struct drafter_config *config, const struct sessions_header *header,
	const struct region *weights, struct draft_session *sessions, uint32_t n_sessions,
	struct hints *hints, struct draft_model **out, struct error *err);
