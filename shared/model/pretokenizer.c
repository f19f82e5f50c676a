#define PCRE2_CODE_UNIT_WIDTH 8
#include "shared/model/pretokenizer.h"

#include "shared/base/utf8.h"

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
/* Space that ends the text. Only where a run begins, and whole: from each of its characters it would be tried again. */
#define SPACE_AT_END "(?<![" SPACE "])[" SPACE "]++$"
#define GPT2_WORDS CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" TRAILING_SPACE
#define GPT2 GPT2_WORDS "|[" SPACE "]+"
#define NEWLINES "[" SPACE "]*[\\r\\n]+"
#define LLAMA3(digits)                                                              \
	"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACE \
	"\\p{L}\\p{N}]+[\\r\\n]*|" NEWLINES "|" TRAILING_SPACE "|[" SPACE "]+"

#define CJK "\\x{4e00}-\\x{9fa5}"
#define WORDS_BY_CASE(suffix)                                                                      \
	"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]" \
	"+" suffix "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}"   \
	"\\p{Lo}\\p{M}]*" suffix
#define SLASHED_REST \
	" ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES "|" TRAILING_SPACE "|[" SPACE "]+"
/* The letters that DeepSeek's first expression lists one by one: those with case in an old Unicode, not today's \p{L&}. */
#define DEEPSEEK_LETTERS                                                                        \
	"A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"          \
	"\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"  \
	"\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"           \
	"\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                \
	"\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"          \
	"\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"          \
	"\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}" \
	"\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"  \
	"\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"          \
	"\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"           \
	"\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"            \
	"\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}" \
	"\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"  \
	"\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"           \
	"\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"          \
	"\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"        \
	"\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"  \
	"\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

/* Han, and the ranges that its author gave for kana and Hangul. */
#define DEEPSEEK_CJK "[" CJK "\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

enum { STAGES_MAX = 6, NAMES_MAX = 12 };

/* The expressions of each name (GGUF_NOTES section 4 and the golden generator): each stage cuts the pieces of the one
 * before it, and what an expression does not match stays a piece. */
static const struct recipe {
	const char *names[NAMES_MAX]; /* the first is the one to show */
	const char *stages[STAGES_MAX];
	bool ignore_merges, adds_bos;
} recipes[] = {
	{
		.names = {"default"},
		.stages = {"[\\p{P}$+<=>^~|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"},
	},
	{
		.names = {"gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "gigachat", "mellum",
			"a.x-4.0", "modern-bert"},
		.stages = {GPT2},
	},
	{
		.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral",
			"midm-2.0", "lfm2"},
		.stages = {LLAMA3("\\p{N}{1,3}")},
		.ignore_merges = true,
		.adds_bos = true,
	},
	{
		.names = {"glm4", "glm5"},
		.stages = {LLAMA3("\\p{N}{1,3}")},
		.ignore_merges = true,
	},
	{
		.names = {"dbrx", "smaug-bpe", "chatglm-bpe"},
		.stages = {LLAMA3("\\p{N}{1,3}")},
	},
	{
		.names = {"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo",
			"f2llmv2", "grok-2", "solar-open"},
		.stages = {LLAMA3("\\p{N}")},
	},
	{
		/* As qwen2, but marks belong to the letters before them. */
		.names = {"qwen35"},
		.stages = {"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
			   "| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" NEWLINES
			   "|" TRAILING_SPACE "|[" SPACE "]+"},
	},
	{
		.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone",
			"minerva-7b", "mellum2"},
		.stages = {"\\p{N}", GPT2},
	},
	{
		.names = {"falcon"},
		.stages = {"[\\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"},
	},
	{
		.names = {"deepseek-llm"},
		.stages = {"[\\r\\n]", "[" SPACE "]?[" DEEPSEEK_LETTERS "]+",
			"[" SPACE "]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}"
			"\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
			SPACE_AT_END, DEEPSEEK_CJK, "\\p{N}+"},
	},
	{
		.names = {"deepseek-coder"},
		.stages = {"[\\r\\n]", "[" SPACE "]?\\p{L}+", "[" SPACE "]?\\p{P}+", DEEPSEEK_CJK,
			"\\p{N}"},
	},
	{
		.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm"},
		.stages = {"\\p{N}{1,3}", "[" CJK "\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
			"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
			"|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
			"| ?[\\p{P}\\p{S}]+[\\r\\n]*|" NEWLINES "|" TRAILING_SPACE "|[" SPACE "]+"},
	},
	{
		.names = {"gpt-4o", "llama4", "kanana2", "minimax-m2"},
		.stages = {WORDS_BY_CASE("(?i:" CONTRACTIONS ")?") "|\\p{N}{1,3}|" SLASHED_REST},
	},
	{
		.names = {"tekken"},
		.stages = {WORDS_BY_CASE("") "|\\p{N}|" SLASHED_REST},
		.ignore_merges = true,
		.adds_bos = true,
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
		for (size_t i = 0; i < NAMES_MAX && recipes[r].names[i]; i++) {
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
	for (size_t r = 0; r < sizeof(recipes) / sizeof(recipes[0]) && used < sizeof(known); r++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
			used ? ", " : "", recipes[r].names[0]);
	size_t n = bytes < sizeof(shown) - 1 ? bytes : sizeof(shown) - 1;
	for (size_t i = 0; i < n; i++)
		shown[i] = name[i] >= ' ' && name[i] < 127 ? name[i] : '?';
	shown[n] = '\0';
	return error_set(err, ENOTSUP,
		"key tokenizer.ggml.pre is \"%s\", which is not supported (supported: %s); where "
		"the model's tokenizer cuts text as one of these does, convert it with that name",
		shown, known);
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

/* Steps from one place of the text. The expressions backtrack over one run of characters at most, a few times for each of its
 * characters; one that did more would hold its caller for minutes, and is an error instead. PCRE2 counts anew at each place:
 * that a run is not read again from each of its characters is up to the expressions. */
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

/* 1 and the match, 0 when there is none. */
static int find_match(
	struct split *s, size_t stage, const char *text, size_t bytes, size_t *from, size_t *to)
{
	const pcre2_code *code = s->p->stages[stage];
	pcre2_set_match_limit(s->scratch->context, match_limit(bytes));
	/* The text was validated; checking it again for every word would be quadratic. */
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
