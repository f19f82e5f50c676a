/*
 * What the loop thread hands to the draft thread: mapped regions of the other processes, and settings. worker_give, worker_tune
 * and worker_refusal (worker.h) are its other side; these are the draft thread's.
 */
#pragma once

#include "services/drafter/worker.h"

/* Takes what has come since, regions before settings. */
void worker_take_mail(struct worker *w);
bool worker_has_mail(const struct worker *w);
/* Until some comes, or a second has passed: without a region of drafts there is no bell to sleep on. */
void worker_wait_for_mail(struct worker *w);
/* Any thread, under the mutex, so that the bell's memory is there while it is rung. */
void worker_wake(struct worker *w);
/* Forgets a session, if there is one. */
void worker_end_session(struct worker *w, struct draft_session *s);
