#include "bench/src/skip.h"

#include "bench/src/passes.h"
#include "bench/src/prompts_file.h"
#include "bench/src/skip_part.h"
#include "shared/model/arch/skip.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum { CHUNK = 128, LIST_BYTES = 256 };

struct answer {
	int32_t *tokens; /* [n] prompt and answer; owned */
	uint32_t n_prompt, n;
};

/* What one choice of layers gives. */
struct result {
	bool layer[LIMIT_LAYERS]; /* that are left out */
	double right; /* share of the tokens that it would have drafted */
	double tokens; /* of a pass */
	double cost; /* skip_part_cost */
};

struct skip_bench {
	struct {
		struct engine_options engine;
		const char *prompts, *skip;
		uint32_t limit, tokens, k, most;
		bool json, help;
	} options;
	struct engine engine;
	struct sampler_params greedy;
	struct answer *answers; /* [n_answers] */
	uint32_t n_answers, n_tokens; /* n_tokens: of all answers */
	bool *right; /* [context] */
	struct result *results; /* [n_results] */
	uint32_t n_results;
};

/* ---- The answers. ---- */

static int answer_line(void *arg, const json_t *line, uint32_t number, struct error *err)
{
	struct skip_bench *b = arg;
	struct engine *e = &b->engine;
	int32_t *ids = NULL;
	size_t n = 0;
	(void)number;
	int rc = prompt_encode(e, line, &ids, &n, err);
	if (rc == 0 && (n == 0 || n + b->options.tokens > e->n_context))
		rc = error_set(err, EINVAL,
			"a prompt of %zu tokens and %u more do not fit the context of %u", n,
			b->options.tokens, e->n_context);
	struct answer *grown = realloc(b->answers, (b->n_answers + 1) * sizeof(*grown));
	if (grown)
		b->answers = grown;
	if (rc == 0)
		memcpy(e->tokens, ids, n * sizeof(*ids));
	free(ids);
	if (rc != 0)
		return rc;
	if (!grown)
		return error_set(err, ENOMEM, "no memory for answers");
	e->n_prompt = (uint32_t)n;
	engine_rewind(e);
	rc = engine_prefill(e, false, NULL, NULL, err);
	while (rc == 0) {
		e->tokens[e->n_tokens++] = e->picked.token;
		if (tokenizer_is_eog(e->tokenizer, e->picked.token) ||
			e->n_tokens - e->n_prompt == b->options.tokens)
			break;
		rc = engine_step(e, err);
	}
	struct answer *answer = &b->answers[b->n_answers];
	*answer = (struct answer){malloc(e->n_tokens * sizeof(int32_t)), (uint32_t)n, e->n_tokens};
	if (rc != 0) {
		free(answer->tokens);
		return rc;
	}
	if (!answer->tokens)
		return error_set(err, ENOMEM, "no memory for answers");
	memcpy(answer->tokens, e->tokens, e->n_tokens * sizeof(int32_t));
	b->n_answers++;
	b->n_tokens += e->n_tokens - (uint32_t)n;
	return 0;
}

/* The engine sizes its batch by a prompt; this prompt is never run. */
static int open_engine(struct skip_bench *b, struct error *err)
{
	struct engine *e = &b->engine;
	char prompt[2 * CHUNK];
	for (size_t i = 0; i < CHUNK; i++) {
		prompt[2 * i] = '0';
		prompt[2 * i + 1] = i + 1 < CHUNK ? ',' : '\0';
	}
	e->options = b->options.engine;
	e->options.tokens = prompt;
	e->options.prefill_chunk = CHUNK;
	sampler_params_default(&b->greedy);
	b->greedy.temperature = 0;
	e->sampling = &b->greedy;
	int rc = engine_open(e, true, err);
	e->options.tokens = NULL;
	if (rc < 0)
		return rc;
	uint32_t context = e->options.context ? e->options.context : e->model->config.n_context;
	if (context <= CHUNK)
		return error_set(
			err, EINVAL, "%s: a context of %u is too short", e->options.model, context);
	rc = engine_start(e, context - CHUNK, true, err);
	b->right = calloc(e->n_context, sizeof(*b->right));
	b->results = calloc(e->model->config.n_layers + 1, sizeof(*b->results));
	return rc == 0 && (!b->right || !b->results)
		       ? error_set(err, ENOMEM, "no memory for results")
		       : rc;
}

/* ---- What layers give. ---- */

/* The passes that the answer takes with drafts of k tokens. Its first token comes with the prompt. */
static uint32_t count_passes(const bool *right, uint32_t n, uint32_t k)
{
	uint32_t passes = 0;
	for (uint32_t at = 1; at < n; passes++) {
		uint32_t accepted = 0;
		while (accepted < k && at + accepted < n && right[at + accepted])
			accepted++;
		at += accepted + 1;
	}
	return passes;
}

/* timed: measures the cost, too. */
static int evaluate(
	struct skip_bench *b, const bool *layer, bool timed, struct result *out, struct error *err)
{
	struct skip_part part;
	uint64_t right = 0, drafted = 0, passes = 0;
	int rc = skip_part_open(&part, &b->engine, layer, err);
	*out = (struct result){0};
	memcpy(out->layer, layer, sizeof(out->layer));
	for (uint32_t i = 0; rc == 0 && i < b->n_answers; i++) {
		const struct answer *a = &b->answers[i];
		uint32_t n = a->n - a->n_prompt;
		rc = skip_part_follow(&part, a->tokens, a->n_prompt, a->n, b->right, err);
		for (uint32_t t = 1; rc == 0 && t < n; t++)
			right += b->right[t];
		drafted += n - 1;
		passes += count_passes(b->right, n, b->options.k);
	}
	out->right = drafted > 0 ? (double)right / (double)drafted : 0;
	out->tokens = passes > 0 ? (double)drafted / (double)passes : 0;
	const struct answer *first = b->answers;
	if (rc == 0 && timed)
		rc = skip_part_cost(&part, first->tokens, first->n - 1, &out->cost, err);
	skip_part_close(&part);
	return rc;
}

static void progress(const struct skip_bench *b, const char *text, uint32_t n)
{
	if (isatty(STDERR_FILENO) && !b->options.engine.quiet)
		fprintf(stderr, n > 0 ? "\r%s %u" : "\r\033[K", text, n);
}

/* Leaves out a layer more: the one without which drafts are accepted the most. False: none can be
 * left out. */
static int leave_out_one(struct skip_bench *b, bool *layer, bool *any, struct error *err)
{
	const struct model_config *c = &b->engine.model->config;
	struct result best = {0}, result;
	*any = false;
	for (uint32_t i = 0; i < c->n_layers; i++) {
		struct skip skip = {0};
		struct error ignored;
		bool chosen[LIMIT_LAYERS] = {false};
		if (layer[i])
			continue;
		memcpy(skip.layer, layer, sizeof(skip.layer));
		skip.layer[i] = true;
		if (skip_choose(&skip, c, chosen, &ignored) < 0)
			continue;
		progress(b, "without layer", i);
		int rc = evaluate(b, chosen, false, &result, err);
		if (rc < 0)
			return rc;
		if (!*any || result.tokens > best.tokens)
			best = result;
		*any = true;
	}
	progress(b, "", 0);
	if (!*any)
		return 0;
	memcpy(layer, best.layer, sizeof(best.layer));
	return evaluate(b, layer, true, &b->results[b->n_results++], err);
}

static int search(struct skip_bench *b, struct error *err)
{
	bool layer[LIMIT_LAYERS] = {false}, any = true;
	int rc = 0;
	for (uint32_t n = 0; rc == 0 && any && n < b->options.most; n++)
		rc = leave_out_one(b, layer, &any, err);
	return rc;
}

static int measure(struct skip_bench *b, struct error *err)
{
	struct skip skip;
	bool layer[LIMIT_LAYERS] = {false};
	int rc = open_engine(b, err);
	/* Before the answers, which take long. */
	if (rc == 0 && b->options.skip)
		rc = skip_parse(b->options.skip, &skip, err);
	if (rc == 0 && b->options.skip)
		rc = skip_choose(&skip, &b->engine.model->config, layer, err);
	if (rc < 0)
		return b->options.skip ? error_prefix(err, rc, "--skip %s", b->options.skip) : rc;
	rc = prompts_each(b->options.prompts, b->options.limit, answer_line, b, err);
	if (rc == 0 && b->n_tokens < 2 * b->n_answers)
		rc = error_set(err, EINVAL, "%s: the answers end with their first token",
			b->options.prompts);
	if (rc < 0)
		return rc;
	return b->options.skip ? evaluate(b, layer, true, &b->results[b->n_results++], err)
			       : search(b, err);
}

/* ---- The report. ---- */

/* How many times as fast as without drafts it can be at the most: if a pass that verifies takes no
 * longer than one of a single token. */
static double bound(const struct skip_bench *b, const struct result *r)
{
	return r->tokens / (1 + b->options.k * r->cost);
}

static void list(const struct skip_bench *b, const struct result *r, char *out)
{
	size_t used = 0;
	out[0] = '\0';
	for (uint32_t i = 0; i < b->engine.model->config.n_layers && used + 16 < LIST_BYTES; i++)
		if (r->layer[i])
			used += (size_t)snprintf(
				out + used, LIST_BYTES - used, "%s%u", used > 0 ? "," : "", i);
}

static void print_json(const struct skip_bench *b)
{
	json_t *rows = json_array();
	for (uint32_t i = 0; i < b->n_results; i++) {
		const struct result *r = &b->results[i];
		char text[LIST_BYTES];
		list(b, r, text);
		json_array_append_new(
			rows, json_pack("{s:s, s:f, s:f, s:f, s:f}", "skip_layers", text, "right",
				      r->right, "tokens_per_pass", r->tokens, "cost", r->cost,
				      "speed_at_most", bound(b, r)));
	}
	json_t *report = json_pack("{s:s, s:i, s:i, s:i, s:i, s:o}", "model",
		b->options.engine.model, "layers", (int)b->engine.model->config.n_layers, "answers",
		(int)b->n_answers, "tokens", (int)b->n_tokens, "k", (int)b->options.k, "rows",
		rows);
	json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(report);
}

static void print_text(const struct skip_bench *b)
{
	const struct result *best = b->results;
	for (uint32_t i = 1; i < b->n_results; i++)
		if (bound(b, &b->results[i]) > bound(b, best))
			best = &b->results[i];
	printf("%s: %u layers; %u answers of %u tokens; drafts of %u\n\n", b->options.engine.model,
		b->engine.model->config.n_layers, b->n_answers, b->n_tokens, b->options.k);
	puts("  right  tokens/pass  cost of a draft  speed at most  skip_layers");
	for (uint32_t i = 0; i < b->n_results; i++) {
		const struct result *r = &b->results[i];
		char text[LIST_BYTES];
		list(b, r, text);
		printf("%6.1f%% %12.2f %16.2f %14.2f  %s%s\n", 100 * r->right, r->tokens, r->cost,
			bound(b, r), text, b->n_results > 1 && r == best ? "  (best)" : "");
	}
	puts("\nright: drafted tokens that are the answer's. cost of a draft: time of a pass of "
	     "one "
	     "token, as a share\nof the whole model's. speed at most: that of K = 0 is 1; if to "
	     "verify "
	     "took no longer than a token.");
}

static int parse(struct skip_bench *b, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"model", ARG_STRING, &b->options.engine.model, 0, 0, "FILE",
			"the GGUF model (needed)"},
		{"prompts", ARG_STRING, &b->options.prompts, 0, 0, "FILE",
			"prompts, one JSON object a line; default bench/workloads/mixed.jsonl"},
		{"limit", ARG_U32, &b->options.limit, 1, 100000, "N",
			"prompts of the file, default 16"},
		{"tokens", ARG_U32, &b->options.tokens, 2, LIMIT_CONTEXT, "N",
			"tokens of an answer, default 96"},
		{"k", ARG_U32, &b->options.k, 1, LIMIT_DRAFT_DEPTH, "K",
			"tokens of a draft, default 4"},
		{"skip", ARG_STRING, &b->options.skip, 0, 0, "LAYERS",
			"only these layers (auto, auto:N, or like 4-8,11); default: a layer more "
			"at a time, the one that costs the fewest right tokens"},
		{"most", ARG_U32, &b->options.most, 1, LIMIT_LAYERS, "N",
			"layers to leave out, default as many as possible"},
		BENCH_CPU_ARGS(&b->options.engine) BENCH_CACHE_ARGS(&b->options.engine){"format",
			ARG_FORMAT, &b->options.engine.format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &b->options.help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);
	if (rc == 0 && b->options.help) {
		puts("usage: outrider-bench skip --model FILE [OPTIONS]\n");
		args_help(args, stdout);
		return 0;
	}
	if (rc == 0)
		rc = engine_check_options(&b->options.engine, err);
	b->options.json = strcmp(b->options.engine.format, "json") == 0;
	return rc;
}

int bench_skip(int argc, char **argv)
{
	struct skip_bench *b = calloc(1, sizeof(*b));
	struct error err = {""};
	if (!b)
		return EX_OSERR;
	b->options.prompts = "bench/workloads/mixed.jsonl";
	b->options.limit = 16;
	b->options.tokens = 96;
	b->options.k = 4;
	b->options.most = LIMIT_LAYERS;
	b->options.engine = (struct engine_options){
		.format = "text", .no_prompt = true, .pack = true, .program = "outrider-bench"};
	int rc = parse(b, argc, argv, &err);
	bool usage = rc < 0;
	if (rc == 0 && !b->options.help)
		rc = measure(b, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench skip: %s\n", err.text);
	else if (!b->options.help && b->options.json)
		print_json(b);
	else if (!b->options.help)
		print_text(b);
	engine_close(&b->engine);
	for (uint32_t i = 0; i < b->n_answers; i++)
		free(b->answers[i].tokens);
	free(b->answers);
	free(b->right);
	free(b->results);
	free(b);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
