/* From the plan to the tokens of one pass: cells, and whose pages go when there are not enough. Engine thread. */
#pragma once

#include "services/verifier/pass/engine.h"

/* Fills batch[], cells[] and in_batch[] from plan[0..n_plan-1] and this round's drafts; a session for which no cells
 * are found sits this pass out. Returns how many take part. */
uint32_t batch_build(struct engine *engine, uint32_t n_plan);
