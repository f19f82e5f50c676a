#include "client/model/commands.h"
#include "client/model/engine.h"
#include "client/model/masks.h"

#include "kernels/cpu/simd.h"
#include "shared/base/clock.h"
#include "kernels/sampler.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

struct generate {
	struct engine engine;
	struct sampler_params params;
	uint32_t max_tokens;
	bool ignore_eos, logits_hash, help;
	uint64_t *hashes; /* [max_tokens] of the logits each token was chosen from */
	uint32_t n_top; /* UINT32_MAX: no log probabilities are wanted */
	struct token_logprob *logprobs; /* [max_tokens][1 + n_top]; NULL likewise */
	struct masks masks; /* with an adapter */
	uint64_t prefill_ns, decode_ns;
	bool eos;
};

static void show(struct generate *g, int32_t token)
{
	const struct engine *e = &g->engine;
	if (engine_json(e) || !e->tokenizer)
		return;
	struct gguf_string piece = tokenizer_piece(e->tokenizer, token, false);
	fwrite(piece.data, 1, piece.bytes, stdout);
	fflush(stdout);
}

static void keep_logprobs(struct generate *g, uint32_t i)
{
	const struct engine *e = &g->engine;
	struct token_logprob *to = g->logprobs + (size_t)i * (1 + g->n_top);
	to[0] = (struct token_logprob){e->picked.token, e->picked.logprob};
	memcpy(to + 1, e->top, g->n_top * sizeof(*to));
}

/* One token at a time until the end: the reference with K = 0. */
static int generate(struct generate *g, struct error *err)
{
	struct engine *e = &g->engine;
	uint64_t start = clock_ns();
	int rc = engine_prefill(e, false, NULL, NULL, err);
	uint64_t prefilled = clock_ns();
	g->prefill_ns = prefilled - start;
	/* When the output is not read any more, there is no use in going on; main reports that. */
	while (rc == 0 && !ferror(stdout)) {
		uint32_t i = e->n_tokens - e->n_prompt;
		if (!e->picked.finite) {
			rc = engine_not_finite(e, e->n_tokens - 1, err);
			break;
		}
		int32_t token = e->picked.token;
		if (g->hashes)
			g->hashes[i] = e->picked.hash;
		if (g->logprobs)
			keep_logprobs(g, i);
		e->tokens[e->n_tokens++] = token;
		show(g, token);
		g->eos = !g->ignore_eos && tokenizer_is_eog(e->tokenizer, token);
		if (g->eos || i + 1 == g->max_tokens || e->n_tokens == e->n_context)
			break;
		rc = e->adapter ? masks_step(&g->masks, e, err) : engine_step(e, err);
	}
	g->decode_ns = clock_ns() - prefilled;
	return rc;
}

static void print_text(const struct generate *g)
{
	const struct engine *e = &g->engine;
	size_t bytes = 0;
	char *text = NULL;
	FILE *memory = open_memstream(&text, &bytes);
	if (!e->tokenizer || !memory) {
		fputs("null", stdout);
		if (memory)
			fclose(memory);
		free(text);
		return;
	}
	for (uint32_t i = e->n_prompt; i < e->n_tokens; i++) {
		struct gguf_string piece = tokenizer_piece(e->tokenizer, e->tokens[i], false);
		fwrite(piece.data, 1, piece.bytes, memory);
	}
	fclose(memory);
	engine_json_string(stdout, text, bytes);
	free(text);
}

static void print_logprobs(const struct generate *g, uint32_t n)
{
	const struct token_logprob *at = g->logprobs;
	fputs(", \"logprobs\": [", stdout);
	for (uint32_t i = 0; i < n; i++) {
		printf("%s{\"token\": %d, \"logprob\": %.17g, \"top\": [", i ? ", " : "", at->token,
			(double)at->logprob);
		at++;
		for (uint32_t t = 0; t < g->n_top; t++, at++)
			printf("%s{\"token\": %d, \"logprob\": %.17g}", t ? ", " : "", at->token,
				(double)at->logprob);
		fputs("]}", stdout);
	}
	putchar(']');
}

static double per_second(uint32_t n, uint64_t ns)
{
	return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static void print_json(const struct generate *g)
{
	const struct engine *e = &g->engine;
	uint32_t n = e->n_tokens - e->n_prompt;
	fputs("{\"tokens\": [", stdout);
	for (uint32_t i = 0; i < n; i++)
		printf("%s%d", i ? ", " : "", e->tokens[e->n_prompt + i]);
	fputs("], \"text\": ", stdout);
	print_text(g);
	if (g->hashes) {
		fputs(", \"logits_hash\": [", stdout);
		for (uint32_t i = 0; i < n; i++)
			printf("%s\"%016llx\"", i ? ", " : "", (unsigned long long)g->hashes[i]);
		putchar(']');
	}
	if (g->logprobs)
		print_logprobs(g, n);
	if (e->adapter)
		printf(", \"drafts\": {\"passes\": %llu, \"drafted\": %llu, \"accepted\": %llu}",
			(unsigned long long)g->masks.passes, (unsigned long long)g->masks.drafts,
			(unsigned long long)g->masks.accepted);
	printf(", \"end\": \"%s\"", g->eos ? "eos" : "length");
	if (!e->options.quiet)
		printf(", \"timing\": {\"prefill_tokens\": %u, \"prefill_ns\": %llu, "
		       "\"prefill_tokens_per_s\": %.1f, \"decode_tokens\": %u, \"decode_ns\": "
		       "%llu, "
		       "\"decode_tokens_per_s\": %.1f, \"kernels\": \"%s\", \"threads\": %u}",
			e->n_prompt, (unsigned long long)g->prefill_ns,
			per_second(e->n_prompt, g->prefill_ns), n, (unsigned long long)g->decode_ns,
			per_second(n, g->decode_ns), e->kernels->name, e->threads);
	fputs("}\n", stdout);
}

static int run(struct generate *g, struct error *err)
{
	struct engine *e = &g->engine;
	bool text = !engine_json(e);
	e->sampling = &g->params;
	e->want_hash = g->logits_hash;
	e->want_logprobs = g->n_top != UINT32_MAX;
	e->n_top = e->want_logprobs ? g->n_top : 0;
	int rc = engine_open(e, !g->ignore_eos || text || g->params.dry_multiplier > 0, err);
	if (rc < 0)
		return rc;
	if (e->n_top > e->model->config.n_vocab)
		return error_set(err, EINVAL, "--logprobs is %u, the vocabulary has %u tokens",
			e->n_top, e->model->config.n_vocab);
	rc = engine_start(e, g->max_tokens, false, err);
	if (rc < 0)
		return rc;
	if (g->logits_hash)
		g->hashes = calloc(g->max_tokens, sizeof(*g->hashes));
	if (g->logits_hash && !g->hashes)
		return error_set(err, ENOMEM, "no memory for hashes of %u tokens", g->max_tokens);
	if (e->want_logprobs)
		g->logprobs = calloc((size_t)g->max_tokens * (1 + g->n_top), sizeof(*g->logprobs));
	if (e->want_logprobs && !g->logprobs)
		return error_set(
			err, ENOMEM, "no memory for log probabilities of %u tokens", g->max_tokens);
	rc = generate(g, err);
	if (rc < 0)
		return rc;
	if (!text) {
		print_json(g);
		return 0;
	}
	putchar('\n');
	if (!e->options.quiet && isatty(STDERR_FILENO))
		fprintf(stderr, "prompt %.1f tokens/s, output %.1f tokens/s\n",
			per_second(e->n_prompt, g->prefill_ns),
			per_second(e->n_tokens - e->n_prompt, g->decode_ns));
	return 0;
}

static int parse(struct generate *g, int argc, char **argv, struct error *err)
{
	struct sampler_params *p = &g->params;
	struct engine_options *o = &g->engine.options;
	const struct arg args[] = {
		PROMPT_ARGS(o) ENGINE_ARGS(o, PROMPT_CONTEXT){"max-tokens", ARG_U32, &g->max_tokens,
			1, LIMIT_CONTEXT, "N", "default 128"},
		{"ignore-eos", ARG_FLAG, &g->ignore_eos, 0, 0, NULL,
			"go on after the model's end-of-text token"},
		{"adapter", ARG_STRING, &o->adapter, 0, 0, "FILE",
			"draft with a gated adapter of the model; the tokens are the same, and the "
			"JSON says how many were drafted and accepted"},
		{"temperature", ARG_FLOAT, &p->temperature, 0, 0, "T",
			"0 (default) takes the most probable token"},
		{"top-k", ARG_U32, &p->top_k, 0, LIMIT_VOCAB, "N", "0 (default) is off"},
		{"top-p", ARG_FLOAT, &p->top_p, 0, 0, "P", "1 (default) is off"},
		{"min-p", ARG_FLOAT, &p->min_p, 0, 0, "P", "0 (default) is off"},
		{"seed", ARG_U64, &p->seed, 0, 0, "N", "default 0"},
		{"repeat-penalty", ARG_FLOAT, &p->repeat_penalty, 0, 0, "R", "1 (default) is off"},
		{"repeat-window", ARG_U32, &p->repeat_window, 0, LIMIT_CONTEXT, "N",
			"the last N tokens count; 0 (default) is all"},
		{"presence-penalty", ARG_FLOAT, &p->presence_penalty, 0, 0, "P",
			"0 (default) is off"},
		{"frequency-penalty", ARG_FLOAT, &p->frequency_penalty, 0, 0, "P",
			"0 (default) is off"},
		{"dry-multiplier", ARG_FLOAT, &p->dry_multiplier, 0, 0, "X", "0 (default) is off"},
		{"dry-base", ARG_FLOAT, &p->dry_base, 0, 0, "X", "default 1.75"},
		{"dry-allowed-length", ARG_U32, &p->dry_allowed_length, 1, 256, "N", "default 2"},
		{"dry-window", ARG_U32, &p->dry_window, 0, LIMIT_CONTEXT, "N",
			"the last N tokens count; 0 (default) is all"},
		{"top-n-sigma", ARG_FLOAT, &p->top_n_sigma, 0, 0, "N", "0 (default) is off"},
		{"xtc-probability", ARG_FLOAT, &p->xtc_probability, 0, 0, "P",
			"0 (default) is off"},
		{"xtc-threshold", ARG_FLOAT, &p->xtc_threshold, 0, 0, "P", "default 0.1"},
		{"logprobs", ARG_U32, &g->n_top, 0, LIMIT_TOP_LOGPROBS, "N",
			"add log probabilities: of each token and of N likely ones"},
		{"logits-hash", ARG_FLAG, &g->logits_hash, 0, 0, NULL,
			"add a hash of the logits behind each token"},
		{"help", ARG_FLAG, &g->help, 0, 0, NULL, "print this text"},
		{.name = NULL},
	};
	int rc = args_parse(argc, argv, args, err);
	if (rc == 0 && g->help) {
		puts("usage: outrider-model generate --model FILE (--tokens IDS | --prompt TEXT) "
		     "[OPTIONS]\n");
		args_help(args, stdout);
		return 0;
	}
	if (rc == 0)
		rc = sampler_params_check(p, LIMIT_VOCAB, err);
	return rc < 0 ? rc : engine_check_options(o, err);
}

int command_generate(int argc, char **argv)
{
	static struct generate g; /* too large for the stack, because of the parameters' biases */
	struct error err = {""};
	sampler_params_default(&g.params);
	g.max_tokens = 128;
	g.n_top = UINT32_MAX;
	if (parse(&g, argc, argv, &err) < 0)
		return engine_usage(&err);
	if (g.help)
		return EX_OK;
	int rc = run(&g, &err);
	free(g.hashes);
	free(g.logprobs);
	engine_close(&g.engine);
	return rc < 0 ? engine_fail(rc, &err) : EX_OK;
}
