/* The target's layers that draft (skip.h), as the draft thread opens and closes them. */
#pragma once

#include "services/drafter/worker.h"

/* Opens them, unless that was tried before. Where they cannot be used, the log and the status say why,
 * and n-grams draft. Call for a session that wants them. */
void worker_skip_want(struct worker *w);
/* Closes them. They are opened again when somebody wants them. A setting that the target cannot do is
 * refused at once. */
void worker_skip_forget(struct worker *w);
/* Call when the target has changed: notes what its layers are, and closes those of the old one. */
void worker_skip_meet(struct worker *w);
/* Why the target cannot do without these layers, a value of skip_layers: "" if it can, or is not known.
 * Any thread; call under the mutex. */
void worker_skip_check(const struct worker *w, const char *layers, char *out, size_t bytes);
/* Refuses a value that is about to be set and that worker_skip_check refuses: -ENOEXEC. Any thread;
 * takes the mutex. */
int worker_skip_can(struct worker *w, const char *layers, struct error *err);
/* Call when regions or settings have changed: opens them if they are the method of requests that name
 * none. */
void worker_skip_settle(struct worker *w);
