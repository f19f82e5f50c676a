#define PCRE2_CODE_UNIT_WIDTH 8
#include "shared/model/text/pretokenizer.h"

#include "shared/base/utf8.h"
#include "shared/model/text/pretokenizer_recipes.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pretokenizer {
	const struct recipe *recipe;
	pcre2_code *stages[STAGES_MAX];
	size_t n_stages;
};

struct pretokenizer_scratch {
	pcre2_match_data *match;
	pcre2_match_context *context;
	pcre2_jit_stack *stack; /* NULL without JIT */
};

int pretokenizer_create(
	const char *name, size_t bytes, struct pretokenizer **out, struct error *err)
{
	*out = NULL;
	const struct recipe *recipe = recipe_find(name, bytes);
	if (!recipe)
		return recipe_refuse(name, bytes, err);
	struct pretokenizer *p = calloc(1, sizeof(*p));
	if (!p)
		return error_set(err, ENOMEM, "no memory for a pre-tokenizer");
	p->recipe = recipe;
	for (; p->n_stages < STAGES_MAX && recipe->stages[p->n_stages]; p->n_stages++) {
		int code;
		PCRE2_SIZE at;
		PCRE2_SPTR expression = (PCRE2_SPTR)recipe->stages[p->n_stages];
		/* The expressions are our own, so only lack of memory can be the cause. */
		p->stages[p->n_stages] = pcre2_compile(
			expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
		if (!p->stages[p->n_stages]) {
			pretokenizer_free(&p);
			return error_set(err, ENOMEM, "pre-tokenizer %s: PCRE2 error %d at %zu",
				recipe->names[0], code, (size_t)at);
		}
		/* Without JIT the interpreter finds the same matches. */
		(void)pcre2_jit_compile(p->stages[p->n_stages], PCRE2_JIT_COMPLETE);
	}
	*out = p;
	return 0;
}

void pretokenizer_free(struct pretokenizer **pretokenizer)
{
	struct pretokenizer *p = *pretokenizer;
	if (!p)
		return;
	for (size_t i = 0; i < STAGES_MAX; i++)
		pcre2_code_free(p->stages[i]);
	free(p);
	*pretokenizer = NULL;
}

bool pretokenizer_ignore_merges(const struct pretokenizer *pretokenizer)
{
	return pretokenizer->recipe->ignore_merges;
}

bool pretokenizer_adds_bos(const struct pretokenizer *pretokenizer)
{
	return pretokenizer->recipe->adds_bos;
}

enum normalization pretokenizer_normalization(const struct pretokenizer *pretokenizer)
{
	return pretokenizer->recipe->normalization;
}

int pretokenizer_scratch_create(struct pretokenizer_scratch **out, struct error *err)
{
	struct pretokenizer_scratch *s = calloc(1, sizeof(*s));
	*out = s;
	if (s) {
		s->match = pcre2_match_data_create(1, NULL);
		s->context = pcre2_match_context_create(NULL);
		s->stack = pcre2_jit_stack_create(64 << 10, 16 << 20, NULL);
	}
	if (!s || !s->match || !s->context) {
		pretokenizer_scratch_free(out);
		return error_set(err, ENOMEM, "no memory to tokenize");
	}
	if (s->stack)
		pcre2_jit_stack_assign(s->context, NULL, s->stack);
	return 0;
}

void pretokenizer_scratch_free(struct pretokenizer_scratch **scratch)
{
	struct pretokenizer_scratch *s = *scratch;
	if (!s)
		return;
	pcre2_match_data_free(s->match);
	pcre2_match_context_free(s->context);
	if (s->stack)
		pcre2_jit_stack_free(s->stack);
	free(s);
	*scratch = NULL;
}

/* The limit of steps from one place of the text. The expressions backtrack over one run of
 * characters at most, a few times for each of its characters. One that did more would keep its
 * caller busy for minutes, and is an error instead. PCRE2 counts anew at each place, so the
 * expressions themselves must make sure that a run is not read again from each of its characters.
 */
static uint32_t match_limit(size_t bytes)
{
	enum { STEPS_PER_BYTE = 32, STEPS_MIN = 10000 };
	return bytes < (UINT32_MAX - STEPS_MIN) / STEPS_PER_BYTE
		       ? (uint32_t)bytes * STEPS_PER_BYTE + STEPS_MIN
		       : UINT32_MAX;
}

struct split {
	const struct pretokenizer *p;
	struct pretokenizer_scratch *scratch;
	int (*word)(void *arg, const char *text, size_t bytes);
	void *arg;
	struct error *err;
};

/* Returns 1 and the match; 0 if there is none. */
static int find_match(
	struct split *s, size_t stage, const char *text, size_t bytes, size_t *from, size_t *to)
{
	const pcre2_code *code = s->p->stages[stage];
	pcre2_set_match_limit(s->scratch->context, match_limit(bytes));
	/* The text was validated; to check it again for every word would take quadratic time. */
	int rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, 0, PCRE2_NO_UTF_CHECK,
		s->scratch->match, s->scratch->context);
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, 0,
			PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->scratch->match, s->scratch->context);
	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	if (rc == PCRE2_ERROR_MATCHLIMIT)
		return error_set(s->err, E2BIG,
			"cannot split the text into words: a piece of %zu bytes takes "
			"pre-tokenizer "
			"%s too many steps",
			bytes, s->p->recipe->names[0]);
	if (rc < 0)
		return error_set(s->err, rc == PCRE2_ERROR_NOMEMORY ? ENOMEM : EINVAL,
			"cannot split the text into words: PCRE2 error %d", rc);
	const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(s->scratch->match);
	*from = ends[0];
	*to = ends[1];
	return 1;
}

static int split_stage(struct split *s, size_t stage, const char *text, size_t bytes);

/* How many characters belong to the next piece of a match. */
static size_t next_cut(enum cut cut, size_t characters)
{
	size_t n = 512;
	if (cut == CUT_THOUSANDS)
		return characters % 3 ? characters % 3 : 3;
	while (n > characters)
		n /= 2;
	return n;
}

static int split_match(struct split *s, size_t stage, const char *text, size_t bytes)
{
	const struct recipe *recipe = s->p->recipe;
	if (recipe->cut_stage != (int)stage + 1)
		return split_stage(s, stage + 1, text, bytes);
	size_t characters = 0, at = 0;
	for (size_t i = 0; i < bytes; i += utf8_sequence(text + i, bytes - i))
		characters++;
	while (characters) {
		size_t from = at, n = next_cut(recipe->cut, characters);
		characters -= n;
		while (n-- > 0)
			at += utf8_sequence(text + at, bytes - at);
		int rc = split_stage(s, stage + 1, text + from, at - from);
		if (rc)
			return rc;
	}
	return 0;
}

/* The recursion is as deep as the number of stages. */
static int split_stage(struct split *s, size_t stage, const char *text, size_t bytes)
{
	if (stage == s->p->n_stages)
		return bytes ? s->word(s->arg, text, bytes) : 0;
	while (bytes) {
		size_t from = bytes, to = bytes;
		int rc = find_match(s, stage, text, bytes, &from, &to);
		if (rc < 0)
			return rc;
		if (from > 0) {
			rc = split_stage(s, stage + 1, text, from);
			if (rc)
				return rc;
		}
		/* No expression matches the empty string, so every round advances. */
		if (to > from) {
			rc = split_match(s, stage, text + from, to - from);
			if (rc)
				return rc;
		}
		text += to;
		bytes -= to;
	}
	return 0;
}

int pretokenizer_split(const struct pretokenizer *pretokenizer,
	struct pretokenizer_scratch *scratch, const char *text, size_t bytes,
	int (*word)(void *arg, const char *text, size_t bytes), void *arg, struct error *err)
{
	struct split s = {pretokenizer, scratch, word, arg, err};
	size_t at = 0;
	while (at < bytes) {
		size_t valid = at, n;
		while ((n = utf8_sequence(text + valid, bytes - valid)) > 0)
			valid += n;
		int rc = split_stage(&s, 0, text + at, valid - at);
		if (rc)
			return rc;
		size_t invalid = valid;
		while (invalid < bytes && !utf8_sequence(text + invalid, bytes - invalid))
			invalid++;
		rc = invalid > valid ? word(arg, text + valid, invalid - valid) : 0;
		if (rc)
			return rc;
		at = invalid;
	}
	return 0;
}
