#include "shared/model/text/pretokenizer_recipes.h"

#include <stdio.h>
#include <string.h>

/* Unicode's White_Space, written out, because PCRE2's own \s includes U+180E, which the references
 * do not. For use within brackets. */
#define WIDE_SPACE \
	"\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE "\\x09-\\x0d" WIDE_SPACE

/* Parts that several expressions share. */
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define TRAILING_SPACE "[" SPACE "]+(?![^" SPACE "])"
/* Space at the end of the text: only from the beginning of a run, and the whole run; otherwise it
 * would be tried again from each of its characters. */
#define SPACE_AT_END "(?<![" SPACE "])[" SPACE "]++$"
#define GPT2_WORDS CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" TRAILING_SPACE
#define GPT2 GPT2_WORDS "|[" SPACE "]+"
#define NEWLINES "[" SPACE "]*[\\r\\n]+"
#define LLAMA3(digits)                                                              \
	"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACE \
	"\\p{L}\\p{N}]+[\\r\\n]*|" NEWLINES "|" TRAILING_SPACE "|[" SPACE "]+"

#define CJK "\\x{4e00}-\\x{9fa5}"
#define KANA "\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORDS_OF(upper, lower, suffix)                                                      \
	"[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" upper \
	"+" lower "*" suffix
#define WORDS_BY_CASE(suffix) WORDS_OF(UPPER, LOWER, suffix)
#define REST(punctuation) \
	" ?[^" SPACE "\\p{L}\\p{N}]+" punctuation "|" NEWLINES "|" TRAILING_SPACE "|[" SPACE "]+"
#define SLASHED_REST REST("[\\r\\n/]*")
/* A script's bare name means Script_Extensions in PCRE2, which would include punctuation. */
#define HAN "\\p{sc:Han}"
#define NO_HAN(class) "(?:(?!" HAN ")" class ")"
#define GPT4O WORDS_BY_CASE("(?i:" CONTRACTIONS ")?") "|\\p{N}{1,3}|" SLASHED_REST
#define DEEPSEEK_V3_WORDS(rest)                                                                  \
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"                                  \
	"|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+" rest "|" TRAILING_SPACE \
	"|[" SPACE "]+"
#define DEEPSEEK_V3 DEEPSEEK_V3_WORDS("[\\r\\n]*|" NEWLINES)
/* BLOOM's sentence marks; its expression lists them with brackets and a bar among them. */
#define BLOOM " ?[^(" SPACE "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
/* What Oniguruma's \b treats as part of a word: UTS #18's \w, and six of Latin-1's numbers. */
#define WORD_CHARACTERS                                                                            \
	"\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe\\x{24b6}-\\x{24e9}\\x{1f130}" \
	"-"                                                                                        \
	"\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
/* The letters that DeepSeek's first expression lists one by one: those with case in an old version
 * of Unicode, not today's \p{L&}. */
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

static const struct recipe recipes[] = {
	{
		.names = {"default"},
		.stages = {"[\\p{P}$+<=>^~|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"},
	},
	{
		.names = {"gpt-2", "phi-2", "jais", "gigachat", "mellum", "a.x-4.0", "jina-es",
			"jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code",
			"roberta-bpe", "trillion", "granite-docling"},
		.stages = {GPT2},
	},
	{
		.names = {"olmo", "mpt", "modern-bert"},
		.stages = {GPT2},
		.normalization = NORMALIZATION_NFC,
	},
	{
		.names = {"exaone4"},
		.stages = {GPT2},
		.normalization = NORMALIZATION_NFKC,
	},
	{
		.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral",
			"midm-2.0", "lfm2", "jina-v5-nano"},
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
		.names = {"minicpm5"},
		.stages = {"\\p{N}{1,3}", LLAMA3("\\p{N}+")},
		.ignore_merges = true,
	},
	{
		.names = {"jais-2"},
		.stages = {LLAMA3("\\p{N}{1,3}"), "\\A[\\t\\x0b\\x0c" WIDE_SPACE "]++\\z"},
		.cut_stage = 2,
		.cut = CUT_POWERS,
	},
	{
		.names = {"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "f2llmv2"},
		.stages = {LLAMA3("\\p{N}")},
		.normalization = NORMALIZATION_NFC,
	},
	{
		.names = {"grok-2", "megrez", "kormo", "solar-open", "bailingmoe", "bailingmoe2",
			"llada-moe"},
		.stages = {LLAMA3("\\p{N}")},
	},
	{
		.names = {"laguna"},
		.stages = {"\\n+", LLAMA3("\\p{N}")},
	},
	{
		/* Suffixes after an apostrophe stay with it. */
		.names = {"ufakzeka"},
		.stages = {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" REST("[\\r\\n]*")},
	},
	{
		.names = {"seed-coder"},
		.stages = {"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" SPACE
			   "\\p{L}\\p{N}\\r\\n]+|" NEWLINES "|" TRAILING_SPACE "|[" SPACE "]+"},
	},
	{
		/* Words with single spaces between them form one word. */
		.names = {"exaone-moe"},
		.stages = {"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: "
			   "\\p{L}\\p{M}*+)*+)++|\\p{N}|" REST("[\\r\\n/]?")},
		.normalization = NORMALIZATION_NFC,
	},
	{
		/* As qwen2, but marks belong to the letters before them. */
		.names = {"qwen35"},
		.stages = {"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
			   "| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" NEWLINES
			   "|" TRAILING_SPACE "|[" SPACE "]+"},
		.normalization = NORMALIZATION_NFC,
	},
	{
		.names = {"smollm", "starcoder", "refact", "codeshell", "minerva-7b", "mellum2"},
		.stages = {"\\p{N}", GPT2},
	},
	{
		.names = {"command-r"},
		.stages = {"\\p{N}", GPT2},
		.normalization = NORMALIZATION_NFC,
	},
	{
		.names = {"exaone"},
		.stages = {"\\p{N}", GPT2},
		.normalization = NORMALIZATION_NFKC,
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
		.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
		.stages = {"\\p{N}{1,3}", "[" CJK KANA "]+", DEEPSEEK_V3},
	},
	{
		.names = {"spark2_5"},
		.stages = {"\\p{N}{1,3}", "[" CJK KANA "]+", DEEPSEEK_V3_WORDS("|[\\r\\n]"),
			"\\p{N}"},
	},
	{
		/* Han, kana, Thai, Lao, Khmer, Myanmar and Hangul by their blocks. */
		.names = {"afmoe"},
		.stages = {"\\p{N}++",
			"[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}" KANA
			"\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e00}-\\x{eff}\\x{1780}-\\x{17ff}"
			"\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{"
			"d7af}"
			"\\x{1100}-\\x{11ff}]+",
			DEEPSEEK_V3},
		.cut = CUT_THOUSANDS,
		.cut_stage = 1,
	},
	{
		.names = {"gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"},
		.stages = {GPT4O},
	},
	{
		.names = {"granite-embed-multi-97m"},
		.stages = {GPT4O},
		.ignore_merges = true,
	},
	{
		.names = {"tiny_aya", "cohere2moe"},
		.stages = {"(?<!\\p{Nd})\\p{Nd}++(?![" WORD_CHARACTERS "])", GPT4O},
		.cut = CUT_THOUSANDS,
		.cut_stage = 1,
		.normalization = NORMALIZATION_NFC,
	},
	{
		/* Only numbers are cut off: tokens may extend over several words. */
		.names = {"superbpe"},
		.stages = {"\\p{N}+", "(?:\\p{Nd}{3})++(?!\\p{Nd})"},
		.cut = CUT_THOUSANDS,
		.cut_stage = 2,
	},
	{
		.names = {"tekken"},
		.stages = {WORDS_BY_CASE("") "|\\p{N}|" SLASHED_REST},
		.ignore_merges = true,
		.adds_bos = true,
	},
	{
		/* Hangul, CJK punctuation, Bopomofo, and Han with kana; then words. */
		.names = {"youtu"},
		.stages = {"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+"
			   "|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{"
			   "ff1a}"
			   "\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+"
			   "|[\\x{3105}-\\x{312f}]+|[" CJK KANA "]+",
			WORDS_BY_CASE("(?i:" CONTRACTIONS ")?") "|\\p{N}|" SLASHED_REST},
		.ignore_merges = true,
	},
	{
		/* In Moonshot's own code a word that is a token becomes that token. */
		.names = {"kimi-k2"},
		.stages = {HAN "+|" WORDS_OF(NO_HAN(UPPER), NO_HAN(LOWER),
			"(?i:" CONTRACTIONS ")?") "|\\p{N}{1,3}|" REST("[\\r\\n]*")},
		.ignore_merges = true,
	},
	{
		.names = {"bloom", "poro-chat", "gpt3-finnish"},
		.stages = {BLOOM},
	},
	{
		.names = {"viking"},
		.stages = {BLOOM, "\\p{N}"},
	},
	{
		.names = {"chameleon"},
		.stages = {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}",
			"[\\p{P}!-/:-@\\[-`{-~]", GPT2_WORDS},
		.adds_bos = true,
	},
};

const struct recipe *recipe_find(const char *name, size_t bytes)
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

int recipe_refuse(const char *name, size_t bytes, struct error *err)
{
	char known[400] = "", shown[64];
	size_t used = 0;
	for (size_t r = 0; r < sizeof(recipes) / sizeof(recipes[0]) && used < sizeof(known); r++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
			used ? ", " : "", recipes[r].names[0]);
	size_t n = bytes < sizeof(shown) - 1 ? bytes : sizeof(shown) - 1;
	for (size_t i = 0; i < n; i++)
		shown[i] = name[i] >= ' ' && name[i] < 127 ? name[i] : '?';
	shown[n] = '\0';
	return error_set(err, ENOTSUP,
		"key tokenizer.ggml.pre is \"%s\", which is not supported; a model whose "
		"tokenizer cuts text as a supported one can be converted with that name "
		"(supported: %s)",
		shown, known);
}
