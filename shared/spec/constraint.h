/*
 * The grammar that a session's output has to follow, if its request has one: the position of the
 * output in it, the tokens that may come next, and those that must. It is made from the request
 * alone, so a successor makes the same one and goes through the tokens that are there.
 *
 * The verifier makes it on a text's thread, or by the loop at start; like struct stop_match it is
 * used by the side that has the session. The drafter makes one of its own
 * (services/drafter/grammars.h), to draft the tokens that may follow.
 */
#pragma once

#include "shared/model/grammar/vocab.h"
#include "shared/spec/draft.h"
#include "shared/spec/session.h"

#include <pthread.h>

/* The tree of all tokens, which every constraint uses. It is made with the first constraint,
 * because that takes part of a second. Any thread. */
struct constraint_vocab {
	const struct tokenizer *tokenizer;
	uint32_t n_vocab; /* the model's */
	pthread_mutex_t mutex;
	struct vocab *vocab;
};
void constraint_vocab_init(
	struct constraint_vocab *vocab, const struct tokenizer *tokenizer, uint32_t n_vocab);
void constraint_vocab_exit(struct constraint_vocab *vocab);

struct constraint;

/* *out is NULL for a request without a grammar. -EINVAL, -E2BIG: the error is "grammar: " and what
 * is wrong, and where. */
int constraint_create(const struct session_request *request, struct constraint_vocab *vocab,
	struct constraint **out, struct error *err);
void constraint_free(struct constraint **constraint);

enum constraint_said {
	CONSTRAINT_MORE, /* more may follow, or must */
	CONSTRAINT_COMPLETE, /* nothing may follow: the output ends here */
	CONSTRAINT_BROKEN, /* the output does not follow the grammar, or needs too much memory */
};

/* Advances by the output token of this index, whose predecessors came before. A token that was seen
 * already is skipped. constraint NULL: CONSTRAINT_MORE. */
enum constraint_said constraint_token(struct constraint *constraint, uint32_t index, int32_t token);

/* Finds which nodes of a draft behind the newest output token the grammar allows (kept[0..*n-1],
 * for draft_keep), and which tokens may follow: allowed[0] behind the newest token, allowed[1 + i]
 * behind the i-th kept node. They are valid until the next call. draft NULL: there is none. False:
 * memory ran out, allowed[0] is NULL and nothing is kept; the output is broken. */
bool constraint_draft(struct constraint *constraint, const struct draft_reply *draft,
	const uint64_t **allowed, const uint16_t **kept, uint32_t *n);

/* For drafters: the tokens that may follow n tokens behind the newest output token. Valid until the
 * next call. NULL: these n tokens are not allowed, or there was no room; it is then unknown what
 * may follow. */
const uint64_t *constraint_ahead(struct constraint *constraint, const int32_t *tokens, uint32_t n);
/* How many of n tokens behind the newest output token the grammar allows, counted from the first.
 */
uint32_t constraint_allows(struct constraint *constraint, const int32_t *tokens, uint32_t n);

bool constraint_broken(const struct constraint *constraint);

/* The tokens that must follow: writes at most n, returns how many. Where only one token may follow,
 * or only the beginning of one text, this drafts it. constraint NULL: 0. */
enum { CONSTRAINT_FORCED = 15 };
uint32_t constraint_forced(
	struct constraint *constraint, int32_t out[static CONSTRAINT_FORCED], uint32_t n);
