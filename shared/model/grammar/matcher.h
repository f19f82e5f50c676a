/*
 * Follows texts through a grammar. The position of a text is a state, which is a number. It stands
 * for a set of pairs: a state of the automaton, and what follows the rules in progress. What
 * follows is such a set again, so that stacks share what they have in common, and two texts after
 * which the same may follow have the same state. All sessions with the same grammar have their
 * states in one matcher, and what was computed for a state (transitions, masks) serves all of them.
 * To keep a state costs no copy: a tree of drafts holds one number per node.
 *
 * States are valid until matcher_compact. One thread at a time.
 */
#pragma once

#include "shared/model/grammar/grammar.h"

/* No text leads here. */
#define MATCHER_DEAD 0u
/* There was no memory for the state: compact, and try again. */
#define MATCHER_FULL UINT32_MAX

struct matcher;

enum {
	MATCHER_BYTES_DEFAULT = 16 << 20, /* the default of bytes_max */
};

/* The grammar is borrowed. bytes_max: memory for states; beyond it functions return MATCHER_FULL.
 * -E2BIG: its rules begin within each other more than GRAMMAR_DEPTH_MAX deep; -ENOMEM. */
int matcher_create(const struct grammar *grammar, size_t bytes_max, struct matcher **out);
void matcher_free(struct matcher **matcher);
const struct grammar *matcher_grammar(const struct matcher *matcher);

/* The state before the first byte. Never dead. */
uint32_t matcher_start(struct matcher *matcher);
/* The state after one more byte. A dead or full state stays so. */
uint32_t matcher_byte(struct matcher *matcher, uint32_t state, uint8_t byte);
uint32_t matcher_text(struct matcher *matcher, uint32_t state, const void *text, size_t bytes);
/* Whether the text may end here. */
bool matcher_can_end(const struct matcher *matcher, uint32_t state);
/* Whether the text must end here, because no byte may follow. */
bool matcher_must_end(const struct matcher *matcher, uint32_t state);
/* The bytes that must follow, at most n: while only one byte may come next and the text may not
 * end. *after: the state behind them. */
size_t matcher_forced(
	struct matcher *matcher, uint32_t state, uint8_t *out, size_t n, uint32_t *after);

/* Whether half of the memory is used, so that this is a good time to compact. */
bool matcher_wants_compact(const struct matcher *matcher);
/* Drops all states except the n given ones and those that they need, and renumbers the given ones
 * in place. Dead ones stay dead. */
int matcher_compact(struct matcher *matcher, uint32_t *const *states, uint32_t n);
/* Bytes that the states take now. */
size_t matcher_bytes(const struct matcher *matcher);
