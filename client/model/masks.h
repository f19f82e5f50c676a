/*
 * Generating with a gated adapter (shared/model/arch/adapter.h): a pass verifies the drafts and has
 * masks behind each token of it, from which the next drafts are read (Samragh et al., arXiv
 * 2507.11851). The tokens are those that engine_step picks. One thread.
 */
#pragma once

#include "client/model/engine.h"

/* What is picked in the rows of a pass: behind the newest token, and behind each draft. */
struct masks {
	struct pick_result picked[LIMIT_MTP_DRAFT + 1];
	struct token_logprob top[LIMIT_MTP_DRAFT + 1][LIMIT_TOP_LOGPROBS];
	uint32_t next, n; /* picked[next..n-1] stand, and are not given out yet */
	int32_t drafted[LIMIT_MTP_DRAFT];
	float chance[LIMIT_MTP_DRAFT];
	uint32_t n_drafted; /* drafts for the next pass */
	uint64_t passes, drafts, accepted; /* in all */
};

/* As engine_step, of an engine with an adapter: the token after the last of e->tokens. Runs a pass
 * if the last one has given none. */
int masks_step(struct masks *m, struct engine *e, struct error *err);
