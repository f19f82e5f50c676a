#include "bench/src/grammar.h"

#include "bench/src/histogram.h"
#include "bench/src/machine.h"
#include "bench/src/options.h"
#include "client/model/args.h"
#include "shared/base/clock.h"
#include "shared/base/cpu_name.h"
#include "shared/base/rand.h"
#include "shared/model/grammar/vocab.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { MASKS_MOST = 4096, WALK_TOKENS = 200, WALKS = 20 };

struct options {
	const char *model, *kind, *source, *format;
	bool json, help;
};

/* The grammars that are measured without --source. */
static const struct sample {
	const char *name;
	enum grammar_kind kind;
	const char *source;
} samples[] = {
	{"object", GRAMMAR_JSON_OBJECT, ""},
	{"record", GRAMMAR_JSON_SCHEMA,
		"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{"
		"\"type\":"
		"\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":"
		"{"
		"\"enum\":[\"red\",\"green\",\"blue\"]},\"maxItems\":5}},\"required\":[\"name\","
		"\"age\","
		"\"tags\"],\"additionalProperties\":false}"},
	{"tree", GRAMMAR_JSON_SCHEMA,
		"{\"$ref\":\"#/$defs/"
		"n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"value\":{"
		"\"type\":\"number\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
		"n\"},{\"type\":\"null\"}]}},\"required\":[\"value\",\"next\"],"
		"\"additionalProperties\":"
		"false}}}"},
	{"limits", GRAMMAR_JSON_SCHEMA,
		"{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"format\":"
		"\"uuid\"},"
		"\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"text\":{\"type\":"
		"\"string\","
		"\"maxLength\":200}},\"required\":[\"id\",\"when\",\"text\"],"
		"\"additionalProperties\":"
		"false}"},
	{"regex", GRAMMAR_REGEX, "[A-Z][a-z]+( [A-Z][a-z]+)*, \\d{4}-\\d\\d-\\d\\d"},
	{"gbnf", GRAMMAR_GBNF,
		"root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n"
		"term ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n"
		"num ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n"},
};

struct measured {
	struct histogram first, again;
	double compile_us;
	size_t bytes; /* of the matcher, in the end */
	uint32_t n_tokens, n_forced, dead_ends;
};

struct bench {
	struct options options;
	struct gguf *gguf;
	struct tokenizer *tokenizer;
	struct vocab *vocab;
	double vocab_ms;
};

static uint64_t timed_mask(struct masks *masks, uint32_t state, const uint64_t **mask)
{
	uint64_t start_ns = clock_ns();

	masks_begin(masks, 1);
	*mask = masks_of(masks, state);
	return clock_ns() - start_ns;
}

/* A random token of the mask; -1: there is none. */
static int32_t any_token(const uint64_t *mask, uint32_t n_vocab, uint64_t seed, uint32_t at)
{
	uint32_t words = (n_vocab + 63) / 64,
		 first = (uint32_t)(rand_uniform(seed, RAND_GUMBEL, at, 0) * words);

	for (uint32_t i = 0; i < words; i++) {
		uint64_t word = mask[(first + i) % words];

		if (word != 0)
			return (int32_t)((first + i) % words * 64 +
					 (uint32_t)__builtin_ctzll(word));
	}
	return -1;
}

/* A random text; each of its masks is made, and then asked for again. */
static int walk(struct bench *b, struct matcher *matcher, struct masks *masks, uint64_t seed,
	struct measured *out, struct error *err)
{
	uint32_t state = matcher_start(matcher), n_vocab = tokenizer_n_vocab(b->tokenizer), after;
	const uint64_t *mask;
	uint8_t forced[64];

	for (uint32_t i = 0; i < WALK_TOKENS; i++) {
		uint64_t first_ns = timed_mask(masks, state, &mask);

		if (mask == NULL)
			return error_set(err, ENOMEM, "no room for the grammar's states");
		histogram_record(&out->first, first_ns);
		histogram_record(&out->again, timed_mask(masks, state, &mask));
		out->n_forced += matcher_forced(matcher, state, forced, sizeof(forced), &after) > 0;
		int32_t token = any_token(mask, n_vocab, seed, i);
		out->dead_ends += token < 0;
		if (token < 0 || tokenizer_is_eog(b->tokenizer, token))
			return 0;
		out->n_tokens++;
		state = vocab_token(b->vocab, matcher, state, token);
	}
	return 0;
}

static int measure(struct bench *b, enum grammar_kind kind, const char *source,
	struct measured *out, struct error *err)
{
	struct grammar *grammar;
	struct matcher *matcher = NULL;
	struct masks *masks = NULL;
	uint64_t start_ns = clock_ns();
	int rc = grammar_compile(kind, source, strlen(source), &grammar, err);

	out->compile_us = (double)(clock_ns() - start_ns) * 1e-3;
	if (rc == 0)
		rc = matcher_create(grammar, MATCHER_BYTES_DEFAULT, &matcher);
	if (rc == 0)
		rc = masks_create(b->vocab, matcher, MASKS_MOST, &masks);
	for (uint32_t i = 0; i < WALKS && rc == 0; i++)
		rc = walk(b, matcher, masks, i, out, err);
	if (matcher != NULL)
		out->bytes = matcher_bytes(matcher);
	masks_free(&masks);
	matcher_free(&matcher);
	grammar_free(&grammar);
	return rc;
}

static json_t *row(const char *name, const struct measured *m)
{
	return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:i, s:I}", "name", name,
		"compile_us", m->compile_us, "first_us_50",
		histogram_quantile_ns(&m->first, 0.5) * 1e-3, "first_us_99",
		histogram_quantile_ns(&m->first, 0.99) * 1e-3, "first_us_most",
		histogram_quantile_ns(&m->first, 1) * 1e-3, "again_us_50",
		histogram_quantile_ns(&m->again, 0.5) * 1e-3, "again_us_99",
		histogram_quantile_ns(&m->again, 0.99) * 1e-3, "tokens", (int)m->n_tokens, "forced",
		(int)m->n_forced, "dead_ends", (int)m->dead_ends, "bytes", (json_int_t)m->bytes);
}

static int add(struct bench *b, const char *name, enum grammar_kind kind, const char *source,
	json_t *rows, struct error *err)
{
	struct measured *m = calloc(1, sizeof(*m));
	int rc;

	if (m == NULL)
		return error_set(err, ENOMEM, "no memory for what is measured");
	rc = measure(b, kind, source, m, err);
	if (rc == 0)
		json_array_append_new(rows, row(name, m));
	free(m);
	return rc;
}

static double real(const json_t *of, const char *name)
{
	return json_number_value(json_object_get(of, name));
}

static void print(const struct bench *b, json_t *rows)
{
	char cpu[CPU_NAME_BYTES];
	json_t *all, *one;
	size_t i;

	cpu_name(cpu);
	if (b->options.json) {
		all = json_pack("{s:s, s:s, s:i, s:f, s:O}", "cpu", cpu, "model", b->options.model,
			"vocabulary", (int)tokenizer_n_vocab(b->tokenizer), "tree_ms", b->vocab_ms,
			"rows", rows);
		json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
		putchar('\n');
		json_decref(all);
		return;
	}
	printf("%s\n%s: %u tokens, their tree in %.1f ms\n\n", cpu, b->options.model,
		tokenizer_n_vocab(b->tokenizer), b->vocab_ms);
	printf("%-10s %10s %28s %18s %8s %8s\n", "", "compile us", "mask us: 50%     99%    most",
		"again us 50%   99%", "tokens", "forced");
	json_array_foreach(rows, i, one)
		printf("%-10s %10.0f %12.1f %7.1f %7.1f %12.2f %5.2f %8.0f %8.0f\n",
			json_string_value(json_object_get(one, "name")), real(one, "compile_us"),
			real(one, "first_us_50"), real(one, "first_us_99"),
			real(one, "first_us_most"), real(one, "again_us_50"),
			real(one, "again_us_99"), real(one, "tokens"), real(one, "forced"));
}

static int kind_named(const char *name, enum grammar_kind *out, struct error *err)
{
	for (int i = GRAMMAR_NONE + 1; i < GRAMMAR_KINDS; i++)
		if (strcmp(grammar_kind_names[i], name) == 0) {
			*out = (enum grammar_kind)i;
			return 0;
		}
	return error_set(
		err, EINVAL, "--kind: json-schema, json-object, regex or gbnf, not \"%s\"", name);
}

static int run(struct bench *b, struct error *err)
{
	json_t *rows = json_array();
	uint64_t start_ns;
	enum grammar_kind kind = GRAMMAR_NONE;
	int rc = gguf_open(b->options.model, &b->gguf, err);

	if (rc == 0)
		rc = tokenizer_load(b->gguf, &b->tokenizer, err);
	start_ns = clock_ns();
	if (rc == 0 && (rc = vocab_create(b->tokenizer, 0, &b->vocab)) != 0)
		error_set(err, -rc, "no memory for the vocabulary's tree");
	b->vocab_ms = (double)(clock_ns() - start_ns) * 1e-6;
	if (rc == 0 && b->options.source != NULL) {
		rc = kind_named(b->options.kind, &kind, err);
		if (rc == 0)
			rc = add(b, "given", kind, b->options.source, rows, err);
	}
	for (size_t i = 0;
		i < sizeof(samples) / sizeof(*samples) && rc == 0 && b->options.source == NULL; i++)
		rc = add(b, samples[i].name, samples[i].kind, samples[i].source, rows, err);
	if (rc == 0)
		print(b, rows);
	json_decref(rows);
	return rc;
}

static int parse(struct options *o, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"model", ARG_STRING, &o->model, 0, 0, "FILE",
			"the model whose vocabulary is used; its weights are not read"},
		{"kind", ARG_STRING, &o->kind, 0, 0, "KIND",
			"kind of --source: json-schema (default), json-object, regex, gbnf"},
		{"source", ARG_STRING, &o->source, 0, 0, "TEXT",
			"measure this grammar instead of the samples"},
		{"format", ARG_FORMAT, &o->format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &o->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);

	if (rc == 0 && o->help) {
		puts("usage: outrider-bench grammar --model FILE [OPTIONS]\n\n"
		     "Measures constrained output: compiling a grammar, the mask of the tokens "
		     "that\n"
		     "may follow a text, and the same mask again. The texts are random, 20 of at\n"
		     "most 200 tokens each. \"forced\" counts the tokens whose first bytes were\n"
		     "already certain.\n");
		args_help(args, stdout);
		return 0;
	}
	if (rc == 0 && o->model == NULL)
		return error_set(err, EINVAL, "--model FILE is missing");
	return rc ? rc : option_format(o->format, &o->json, err);
}

int bench_grammar(int argc, char **argv)
{
	struct bench b = {.options = {.kind = "json-schema", .format = "text"}};
	struct error err = {""};
	int rc = parse(&b.options, argc, argv, &err);
	bool usage = rc < 0;

	if (rc == 0 && !b.options.help)
		rc = run(&b, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench grammar: %s\n", err.text);
	vocab_free(&b.vocab);
	tokenizer_free(&b.tokenizer);
	gguf_close(&b.gguf);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
