/*
 * What the loop thread hands to the draft thread: mapped regions of the other processes, and
 * settings. The loop thread's side is worker_give, worker_tune and worker_refusal (worker.h); the
 * functions here are the draft thread's side.
 */
#pragma once

#include "services/drafter/worker.h"

/* Takes over what was handed in since the last call, regions before settings. */
void worker_take_mail(struct worker *w);
bool worker_has_mail(const struct worker *w);
/* Waits until mail comes, for at most a second. For use while there is no request ring, whose
 * doorbell is where the thread waits otherwise. */
void worker_wait_for_mail(struct worker *w);
/* Wakes the draft thread. Any thread; call under the mutex, which keeps the bell's memory mapped.
 */
void worker_wake(struct worker *w);
/* Closes a model that drafted; sessions forget it. NULL: none. */
void worker_close_model(struct worker *w, struct draft_model **model);
/* Frees a session's entry, if it is in use. */
void worker_end_session(struct worker *w, struct draft_session *s);
/* What worker_head says of a model, which may be NULL. Call under the mutex. */
void worker_head_of(const struct draft_model *model, struct worker_head *out);
