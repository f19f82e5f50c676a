/*
 * The grammar that a session's output follows, if its request has one: where the output is in it, which tokens may come next, and
 * which must. It is made from the request alone, so that a successor makes the same one and follows the tokens that are there.
 * Made on a text's thread, or at start by the loop; used by whoever has the session, as struct stop_match.
 */
#pragma once

#include "shared/model/grammar/vocab.h"
#include "shared/spec/draft.h"
#include "shared/spec/session.h"

#include <pthread.h>

/* The tokens' tree of all constraints: made when the first is, because that takes a part of a second. Any thread. */
struct constraint_vocab {
	const struct tokenizer *tokenizer;
	uint32_t n_vocab; /* of the model */
	pthread_mutex_t mutex;
	struct vocab *vocab;
};
void constraint_vocab_init(
	struct constraint_vocab *vocab, const struct tokenizer *tokenizer, uint32_t n_vocab);
void constraint_vocab_exit(struct constraint_vocab *vocab);

struct constraint;

/* *out is NULL for a request without a grammar. -EINVAL, -E2BIG: "grammar: " and what is wrong with it, and where. */
int constraint_create(const struct session_request *request, struct constraint_vocab *vocab,
	struct constraint **out, struct error *err);
void constraint_free(struct constraint **constraint);

enum constraint_said {
	CONSTRAINT_MORE, /* more may follow, or must */
	CONSTRAINT_COMPLETE, /* nothing may follow: the output ends here */
	CONSTRAINT_BROKEN, /* the output does not follow the grammar, or takes too much room */
};

/* The output token of this index, after those before it; one that was seen already is not looked at again. constraint NULL:
 * there is none. */
enum constraint_said constraint_token(struct constraint *constraint, uint32_t index, int32_t token);

/* Which nodes of a draft behind the newest output token the grammar allows (kept[], for draft_keep; *n of them), and the tokens that
 * may follow: allowed[0] those behind the newest token, allowed[1 + i] those behind the i-th node that is kept. They hold until
 * the next call. draft NULL: there is none. False: there was no room, allowed[0] is NULL and nothing is kept; the output is broken. */
bool constraint_draft(struct constraint *constraint, const struct draft_reply *draft,
	const uint64_t **allowed, const uint16_t **kept, uint32_t *n);

bool constraint_broken(const struct constraint *constraint);

/* What must follow, in tokens: at most n; how many. Where one token is all that may follow, or the beginning of a text without
 * alternatives, it is drafted by this. constraint NULL: 0. */
enum { CONSTRAINT_FORCED = 15 };
uint32_t constraint_forced(
	struct constraint *constraint, int32_t out[static CONSTRAINT_FORCED], uint32_t n);
