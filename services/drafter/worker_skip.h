/* The target's layers that draft (skip.h), as the draft thread opens and closes them. */
#pragma once

#include "services/drafter/worker.h"

/* Opens them, unless that was tried before. Where they cannot be used, the log and the status say why,
 * and n-grams draft. Call for a session that wants them. */
void worker_skip_want(struct worker *w);
/* Closes them. They are opened again when somebody wants them. */
void worker_skip_forget(struct worker *w);
/* Call when regions or settings have changed: opens them if they are the method of requests that name
 * none. */
void worker_skip_settle(struct worker *w);
