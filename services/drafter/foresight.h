/*
 * Foresight: drafts that are compared with what the session generates, but never sent to be
 * verified. While the policy has K = 0 for a session and asks for it (draft_request.foresight), the
 * drafter learns from the requests how the session goes on, and compares that with what it would
 * have drafted. Thus the policy knows the acceptance of a session for which nothing is drafted, and
 * knowing it costs no pass: a verified draft of which nothing is accepted takes two to five times
 * as long as the pass at K = 0 where experts are missing.
 *
 * N-grams: a proposal is a look-up that takes less than 1 us. It is kept until all the tokens for
 * which it stands have been generated, or until one of them contradicts it.
 *
 * A draft model has to read the generated tokens in any case. The logits behind some of them tell
 * which token it would have drafted next. A draft is right up to its first wrong token, so each of
 * these choices, made after the right tokens, extends the draft that is compared, and a wrong one
 * ends it.
 *
 * Used by the draft thread.
 */
#pragma once

#include "services/drafter/draft.h"

/* Call when the session has more tokens and no draft was asked for. True: *reply reports a
 * comparison (foreseen, right, n, method, confidence); the caller fills in the fields that identify
 * the session and the request. */
bool foresight_follow(struct draft_session *s, struct draft_context *context,
	enum draft_method fallback, struct draft_reply *reply);

/* Call when a draft was asked for: drops what was not compared yet. */
void foresight_forget(struct draft_session *s);

/* True when foresight is asked for and the comparison of tokens tells what would be accepted. It
 * does not with maximal coupling, where acceptance is random and depends on q. */
bool foresight_wanted(const struct draft_session *s);
/* Drops the model's comparisons, because comparisons of another pass follow. */
void foresight_begin(struct draft_session *s);
/* Adds one place to the model's comparisons: the token that the model would have drafted there, its
 * confidence, and the token that was generated. Does nothing when FORESIGHT_TOKENS drafts are held
 * and the last one is over. */
void foresight_add(struct draft_session *s, int32_t drafted, float confidence, int32_t came);
