/*
 * Follows texts through a grammar. Where a text may be is a state: a number. States are sets of pairs (state of the automaton,
 * what follows the rules under way), and what follows is such a set again, so that stacks share what they have in common and
 * two texts after which the same may follow have the same state. States of all sessions with the same grammar lie in one
 * matcher, and what was computed for one (transitions, masks) serves all. A state costs no copy: a tree of drafts holds one
 * number per node.
 *
 * States live until matcher_compact. One thread at a time.
 */
#pragma once

#include "shared/model/grammar/grammar.h"

/* No text leads here. */
#define MATCHER_DEAD 0u
/* There was no room for the state: compact, and try again. */
#define MATCHER_FULL UINT32_MAX

struct matcher;

enum {
	MATCHER_BYTES_DEFAULT = 16 << 20, /* beyond this it says MATCHER_FULL */
};

/* The grammar is borrowed. bytes_max: of the states. -E2BIG: its rules begin within each other more than GRAMMAR_DEPTH_MAX deep;
 * -ENOMEM. */
int matcher_create(const struct grammar *grammar, size_t bytes_max, struct matcher **out);
void matcher_free(struct matcher **matcher);
const struct grammar *matcher_grammar(const struct matcher *matcher);

/* Before the first byte. Never dead. */
uint32_t matcher_start(struct matcher *matcher);
/* Behind one more byte. A state that is dead or full stays so. */
uint32_t matcher_byte(struct matcher *matcher, uint32_t state, uint8_t byte);
uint32_t matcher_text(struct matcher *matcher, uint32_t state, const void *text, size_t bytes);
/* The text may end here. */
bool matcher_can_end(const struct matcher *matcher, uint32_t state);
/* The text must end here: no byte may follow. */
bool matcher_must_end(const struct matcher *matcher, uint32_t state);
/* The bytes that must follow, if only one can each time and the text may not end before: at most n. *after: the state behind
 * them. */
size_t matcher_forced(
	struct matcher *matcher, uint32_t state, uint8_t *out, size_t n, uint32_t *after);

/* Whether half of the room is used: a good time to compact. */
bool matcher_wants_compact(const struct matcher *matcher);
/* Forgets all states but the n given and what those need, and renumbers them in place. Dead ones stay dead. */
int matcher_compact(struct matcher *matcher, uint32_t *const *states, uint32_t n);
/* Bytes that the states take now. */
size_t matcher_bytes(const struct matcher *matcher);
