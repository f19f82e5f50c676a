/*
 * One iteration: ask for drafts, one forward pass over everything that runs, accept, commit, record. Engine thread.
 * Invariant between iterations: a live session's page holds prompt and emitted tokens, its KV cache all of them
 * but the last at most; that one is the root of its part of the next batch.
 */
#pragma once

#include "services/verifier/pass/engine.h"

/* Returns how many sessions took part; 0: nothing can run now. */
uint32_t iteration_run(struct engine *engine);
