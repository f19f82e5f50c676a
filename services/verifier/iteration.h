/*
 * One iteration: ask for drafts, one forward pass over everything that runs, accept, commit, record. Engine thread.
 * Invariant between iterations: a live session's page holds prompt and emitted tokens, its KV cache all of them
 * but the last at most; that one is the root of its part of the next batch.
 */
#pragma once

#include "services/verifier/engine.h"

/* Returns how many sessions took part; 0: nothing can run now. */
uint32_t iteration_run(struct engine *engine);

/* What the committed tokens say: an end that was reached but, the process having died in between, not written down.
 * Brings s->text up to date with them. */
enum session_end iteration_replay_text(struct engine *engine, struct engine_session *s);
