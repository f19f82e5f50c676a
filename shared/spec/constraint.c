#include "shared/spec/constraint.h"

#include "shared/base/bits.h"

#include <stdlib.h>
#include <string.h>

enum {
	MASKS_SPARE = 64, /* masks that are kept in addition to those of a draft */
	FORCED_BYTES = 256, /* most bytes that constraint_forced looks ahead */
};

struct constraint {
	const struct vocab *vocab;
	uint32_t n_vocab; /* tokens of a mask */
	struct grammar *grammar;
	struct matcher *matcher;
	struct masks *masks;
	uint32_t state, n; /* the state behind the first n output tokens */
	bool failed;
	uint32_t states[LIMIT_DRAFT_NODES]; /* the states behind the nodes of a draft */
	uint16_t kept[LIMIT_DRAFT_NODES];
};

void constraint_vocab_init(
	struct constraint_vocab *vocab, const struct tokenizer *tokenizer, uint32_t n_vocab)
{
	*vocab = (struct constraint_vocab){.tokenizer = tokenizer, .n_vocab = n_vocab};
	pthread_mutex_init(&vocab->mutex, NULL);
}

void constraint_vocab_exit(struct constraint_vocab *vocab)
{
	pthread_mutex_destroy(&vocab->mutex);
	vocab_free(&vocab->vocab);
}

static int vocab_of(struct constraint_vocab *vocab, const struct vocab **out)
{
	int rc = 0;

	pthread_mutex_lock(&vocab->mutex);
	if (vocab->vocab == NULL)
		rc = vocab_create(vocab->tokenizer, vocab->n_vocab, &vocab->vocab);
	*out = vocab->vocab;
	pthread_mutex_unlock(&vocab->mutex);
	return rc;
}

int constraint_create(const struct session_request *request, struct constraint_vocab *vocab,
	struct constraint **out, struct error *err)
{
	uint32_t nodes = request->draft_nodes > 0 ? request->draft_nodes : LIMIT_DRAFT_DEPTH;
	struct constraint *c;

	*out = NULL;
	if (request->grammar_kind == GRAMMAR_NONE)
		return 0;
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		return error_set(err, ENOMEM, "no memory for a grammar");
	int rc = grammar_compile((enum grammar_kind)request->grammar_kind, session_grammar(request),
		request->grammar_bytes, &c->grammar, err);
	if (rc != 0) {
		free(c);
		return error_prefix(err, rc, "grammar");
	}
	c->n_vocab = vocab->n_vocab;
	rc = vocab_of(vocab, &c->vocab);
	if (rc == 0)
		rc = matcher_create(c->grammar, MATCHER_BYTES_DEFAULT, &c->matcher);
	if (rc == 0)
		rc = masks_create(c->vocab, c->matcher, 1 + nodes + MASKS_SPARE, &c->masks);
	if (rc != 0) {
		constraint_free(&c);
		return rc == -E2BIG ? error_set(err, E2BIG,
					      "grammar: its rules are nested more than %d deep at "
					      "their beginning",
					      GRAMMAR_DEPTH_MAX)
				    : error_set(err, ENOMEM, "no memory for a grammar");
	}
	c->state = matcher_start(c->matcher);
	*out = c;
	return 0;
}

void constraint_free(struct constraint **constraint)
{
	struct constraint *c = *constraint;

	if (c == NULL)
		return;
	masks_free(&c->masks);
	matcher_free(&c->matcher);
	grammar_free(&c->grammar);
	free(c);
	*constraint = NULL;
}

/* Drops everything but the output's position. What that needs takes far less memory, unless the
 * grammar is extreme. */
static void compact(struct constraint *c)
{
	uint32_t *state = &c->state;

	c->failed = matcher_compact(c->matcher, &state, 1) != 0 || c->failed;
}

enum constraint_said constraint_token(struct constraint *c, uint32_t index, int32_t token)
{
	uint32_t next;

	if (c == NULL)
		return CONSTRAINT_MORE;
	if (index == c->n) {
		next = vocab_token(c->vocab, c->matcher, c->state, token);
		if (next == MATCHER_FULL) {
			compact(c);
			next = vocab_token(c->vocab, c->matcher, c->state, token);
		}
		c->failed = c->failed || next == MATCHER_DEAD || next == MATCHER_FULL;
		c->state = c->failed ? MATCHER_DEAD : next;
		c->n++;
	}
	if (c->failed)
		return CONSTRAINT_BROKEN;
	return index + 1 == c->n && matcher_must_end(c->matcher, c->state) ? CONSTRAINT_COMPLETE
									   : CONSTRAINT_MORE;
}

bool constraint_draft(struct constraint *c, const struct draft_reply *draft,
	const uint64_t **allowed, const uint16_t **kept, uint32_t *n_kept)
{
	uint32_t n = draft != NULL ? draft->n : 0;

	*kept = c->kept;
	*n_kept = 0;
	if (matcher_wants_compact(c->matcher))
		compact(c);
	masks_begin(c->masks, n + 1);
	allowed[0] = masks_of(c->masks, c->state);
	if (allowed[0] == NULL) {
		compact(c);
		allowed[0] = masks_of(c->masks, c->state);
	}
	c->failed = c->failed || allowed[0] == NULL;
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_node *node = &draft->node[i];
		const uint64_t *before = allowed[0], *mask;
		uint32_t state = c->state;

		c->kept[i] = 0;
		if (c->failed || (node->parent >= 0 && c->kept[node->parent] == 0))
			continue;
		if (node->parent >= 0) {
			state = c->states[node->parent];
			before = masks_of(c->masks, state);
		}
		if (before == NULL || !bits_get(before, (uint32_t)node->token))
			continue;
		/* Nothing may follow the end of the output; and a state for which there is no
		 * memory is left out. */
		state = vocab_token(c->vocab, c->matcher, state, node->token);
		mask = masks_of(c->masks, state);
		if (mask == NULL)
			continue;
		c->states[i] = state;
		c->kept[i] = 1;
		allowed[++*n_kept] = mask;
	}
	return !c->failed;
}

const uint64_t *constraint_ahead(struct constraint *c, const int32_t *tokens, uint32_t n)
{
	uint32_t state;

	if (matcher_wants_compact(c->matcher))
		compact(c);
	if (c->failed)
		return NULL;
	state = c->state;
	for (uint32_t i = 0; i < n; i++)
		state = vocab_token(c->vocab, c->matcher, state, tokens[i]);
	if (state == MATCHER_DEAD || state == MATCHER_FULL)
		return NULL;
	masks_begin(c->masks, 1);
	return masks_of(c->masks, state);
}

/* A token that leads nowhere may still be the one that ends the output. */
static bool ends(struct constraint *c, uint32_t state, int32_t token)
{
	const uint64_t *mask;

	masks_begin(c->masks, 1);
	mask = token >= 0 && (uint32_t)token < c->n_vocab ? masks_of(c->masks, state) : NULL;
	return mask != NULL && bits_get(mask, (uint32_t)token);
}

uint32_t constraint_allows(struct constraint *c, const int32_t *tokens, uint32_t n)
{
	uint32_t state;

	if (matcher_wants_compact(c->matcher))
		compact(c);
	state = c->state;
	for (uint32_t i = 0; i < n && !c->failed; i++) {
		uint32_t next = vocab_token(c->vocab, c->matcher, state, tokens[i]);

		if (next == MATCHER_DEAD || next == MATCHER_FULL)
			return i + (next == MATCHER_DEAD && ends(c, state, tokens[i]));
		state = next;
	}
	return c->failed ? 0 : n;
}

bool constraint_broken(const struct constraint *c)
{
	return c->failed;
}

uint32_t constraint_forced(struct constraint *c, int32_t out[static CONSTRAINT_FORCED], uint32_t n)
{
	uint8_t text[FORCED_BYTES];
	uint32_t after;

	if (c == NULL || c->failed)
		return 0;
	size_t bytes = matcher_forced(c->matcher, c->state, text, sizeof(text), &after);
	return vocab_split(
		c->vocab, text, bytes, out, n < CONSTRAINT_FORCED ? n : CONSTRAINT_FORCED);
}
