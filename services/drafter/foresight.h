/*
 * Drafts that are kept back. While the policy has K = 0 and learns from them (draft_request.foresight), the drafter, told how a
 * session goes on, compares what it would have drafted with the tokens that came. So acceptance is known where nothing is drafted, and finding out costs no pass: a
 * verified draft in which nothing is right takes two to five times the pass at K = 0 where experts are missing.
 *
 * N-grams: a proposal is a look-up (below 1 us); it is kept until what it is about has come. A draft model: while it reads
 * what it has not drafted, which it does anyway, the logits behind some tokens say which one it would have drafted next; a
 * chain is right exactly as long as each of them, given the right ones before it, is. Used by the draft thread.
 */
#pragma once

#include "services/drafter/draft.h"

/* The session has gone on, and nothing was asked for. True: *reply says what was foreseen (foreseen, right, n, method,
 * confidence); the caller fills what identifies it. */
bool foresight_follow(struct draft_session *s, struct draft_context *context,
	enum draft_method fallback, struct draft_reply *reply);

/* A draft was asked for: what was kept back is of the time before. */
void foresight_forget(struct draft_session *s);

/* Whether they are asked for, and the model's choice is what tells right from wrong: with maximal coupling q decides, by chance. */
bool foresight_wanted(const struct draft_session *s);
/* The model begins to look at what it reads. */
void foresight_begin(struct draft_session *s);
/* Of the next token: what the model would have drafted, how sure it was, and what came; at most FORESIGHT_TOKENS. */
void foresight_add(struct draft_session *s, int32_t drafted, float confidence, int32_t came);
