#define PCRE2_CODE_UNIT_WIDTH 8
#include "shared/model/pretokenizer.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Unicode's White_Space, written out: PCRE2's own \s also takes U+180E, which the references do not. For use inside
 * a bracket. */
#define SPACE                                                                                   \
	"\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{" \
	"205f}\\x{3000}"

/* Parts that several expressions share. */
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define TRAILING_SPACE "[" SPACE "]+(?![^" SPACE "])"
#define GPT2_WORDS CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" TRAILING_SPACE
#define GPT2 GPT2_WORDS "|[" SPACE "]+"
#define NEWLINES "[" SPACE "]*[\\r\\n]+"
#define LLAMA3(digits)                                                              \
	"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACE \
	"\\p{L}\\p{N}]+[\\r\\n]*|" NEWLINES "|" TRAILING_SPACE "|[" SPACE "]+"

enum { STAGES_MAX = 4 };

/* The expressions of each name (GGUF_NOTES section 4 and the golden generator): each stage cuts the pieces of the one
 * before it, and what an expression does not match stays a piece. */
static const struct recipe {
	const char *names[4];
	const char *stages[STAGES_MAX];
	bool ignore_merges, adds_bos;
} recipes[] = {
	{
		.names = {"default"},
		.stages = {"[\\p{P}$+<=>^~|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"},
	},
	{
		.names = {"gpt-2", "phi-2", "olmo"},
		.stages = {GPT2},
	},
	{
		.names = {"llama-bpe", "llama3", "llama-v3"},
		.stages = {LLAMA3("\\p{N}{1,3}")},
		.ignore_merges = true,
		.adds_bos = true,
	},
	{
		.names = {"dbrx"},
		.stages = {LLAMA3("\\p{N}{1,3}")},
	},
	{
		.names = {"qwen2", "deepseek-r1-qwen"},
		.stages = {LLAMA3("\\p{N}")},
	},
	{
		.names = {"smollm"},
		.stages = {"\\p{N}", GPT2},
	},
	{
		.names = {"deepseek-v3"},
		.stages = {"\\p{N}{1,3}",
			"[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
			"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
			"|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
			"| ?[\\p{P}\\p{S}]+[\\r\\n]*|" NEWLINES "|" TRAILING_SPACE "|[" SPACE "]+"},
	},
	{
		.names = {"gpt-4o"},
		.stages = {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
			   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:" CONTRACTIONS ")?"
			   "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
			   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:" CONTRACTIONS ")?"
			   "|\\p{N}{1,3}| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES
			   "|" TRAILING_SPACE "|[" SPACE "]+"},
	},
};

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

static const struct recipe *find_recipe(const char *name, size_t bytes)
{
	for (size_t r = 0; r < sizeof(recipes) / sizeof(recipes[0]); r++) {
		for (size_t i = 0; i < 4 && recipes[r].names[i]; i++) {
			if (strlen(recipes[r].names[i]) == bytes &&
				memcmp(recipes[r].names[i], name, bytes) == 0)
				return &recipes[r];
		}
	}
	return NULL;
}

static int refuse(const char *name, size_t bytes, struct error *err)
{
	char known[256] = "", shown[64];
	size_t used = 0;
	for (size_t r = 0; r < sizeof(recipes) / sizeof(recipes[0]); r++) {
		for (size_t i = 0; i < 4 && recipes[r].names[i] && used < sizeof(known); i++)
			used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
				used ? ", " : "", recipes[r].names[i]);
	}
	size_t n = bytes < sizeof(shown) - 1 ? bytes : sizeof(shown) - 1;
	for (size_t i = 0; i < n; i++)
		shown[i] = name[i] >= ' ' && name[i] < 127 ? name[i] : '?';
	shown[n] = '\0';
	return error_set(err, ENOTSUP,
		"key tokenizer.ggml.pre is \"%s\", which is not supported (supported: %s)", shown,
		known);
}

int pretokenizer_create(
	const char *name, size_t bytes, struct pretokenizer **out, struct error *err)
{
	*out = NULL;
	const struct recipe *recipe = find_recipe(name, bytes);
	if (!recipe)
		return refuse(name, bytes, err);
	struct pretokenizer *p = calloc(1, sizeof(*p));
	if (!p)
		return error_set(err, ENOMEM, "no memory for a pre-tokenizer");
	p->recipe = recipe;
	for (; p->n_stages < STAGES_MAX && recipe->stages[p->n_stages]; p->n_stages++) {
		int code;
		PCRE2_SIZE at;
		PCRE2_SPTR expression = (PCRE2_SPTR)recipe->stages[p->n_stages];
		/* The expressions are ours, so only memory can be the cause. */
		p->stages[p->n_stages] = pcre2_compile(
			expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
		if (!p->stages[p->n_stages]) {
			pretokenizer_free(&p);
			return error_set(err, ENOMEM, "pre-tokenizer %s: PCRE2 error %d at %zu",
				recipe->names[0], code, (size_t)at);
		}
		/* Where there is no JIT the interpreter gives the same matches. */
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
	/* The expressions backtrack over one run of characters at most, so work is linear in the text; the default limit
	 * of 10 million would refuse a few megabytes of spaces. */
	pcre2_set_match_limit(s->context, UINT32_MAX);
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

struct split {
	const struct pretokenizer *p;
	struct pretokenizer_scratch *scratch;
	int (*word)(void *arg, const char *text, size_t bytes);
	void *arg;
	struct error *err;
};

/* 1 and the match, 0 when there is none. */
static int find_match(
	struct split *s, size_t stage, const char *text, size_t bytes, size_t *from, size_t *to)
{
	const pcre2_code *code = s->p->stages[stage];
	/* The text was validated; checking it again for every word would be quadratic. */
	int rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, 0, PCRE2_NO_UTF_CHECK,
		s->scratch->match, s->scratch->context);
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, 0,
			PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->scratch->match, s->scratch->context);
	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	if (rc < 0)
		return error_set(s->err, rc == PCRE2_ERROR_NOMEMORY ? ENOMEM : EINVAL,
			"cannot split the text into words: PCRE2 error %d", rc);
	const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(s->scratch->match);
	*from = ends[0];
	*to = ends[1];
	return 1;
}

/* Recursion is as deep as there are stages. */
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
		/* No expression matches the empty string, so every round moves on. */
		if (to > from) {
			rc = split_stage(s, stage + 1, text + from, to - from);
			if (rc)
				return rc;
		}
		text += to;
		bytes -= to;
	}
	return 0;
}

size_t utf8_sequence(const char *text, size_t bytes)
{
	const unsigned char *p = (const unsigned char *)text;
	if (!bytes || p[0] >= 0xf5 || (p[0] >= 0x80 && p[0] < 0xc2))
		return 0;
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	if (bytes < n)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	}
	/* Overlong forms, surrogates, beyond U+10FFFF. */
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
		(p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
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
