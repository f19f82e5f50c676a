/*
 * Decoding with the engine alone, in this process: what `cache record` and `budget` share. One
 * thread.
 */
#pragma once

#include "client/model/engine.h"

enum { DECODING_TOKENS_MAX = 1 << 15 };

struct decoding_options {
	const char *model;
	uint32_t threads;
	uint32_t chunk; /* tokens of a pass at most */
	uint32_t n_oracle; /* tokens of a pass with the hook `outputs`; 0: none has it */
	bool quiet; /* notices are not printed */
};

/* Opens a model with room for passes of `chunk` tokens, all with logits. -errno with *err. The
 * caller closes it, also then. */
int decoding_open(struct engine *e, const struct decoding_options *options, struct error *err);
/* Runs tokens as one pass behind the committed ones, all with logits; all but the first may be
 * drafts. The caller commits. */
int decoding_run(
	struct engine *e, const int32_t *tokens, uint32_t n, bool drafts, struct error *err);
/* Commits the first `accepted` of the n tokens of the last decoding_run. */
void decoding_commit(struct engine *e, uint32_t accepted, uint32_t n);
