#include "client/model/commands.h"
#include "client/model/engine.h"

#include "kernels/logits_hash.h"
#include "kernels/sampler.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

struct logits_output {
	uint32_t n_vocab;
	bool json, nested, first, hash;
	int64_t bad; /* the first position whose logits are not all finite, -1 without */
};

static void print_row(void *arg, uint32_t position, const float *logits)
{
	struct logits_output *out = arg;
	if (out->json)
		fputs(out->first ? "" : ", ", stdout);
	else
		printf("%u", position);
	out->first = false;
	if (out->bad < 0 && !sampler_finite(logits, out->n_vocab))
		out->bad = position;
	if (out->hash) {
		printf(out->json ? "\"%016llx\"" : " %016llx\n",
			(unsigned long long)logits_hash(logits, out->n_vocab));
		return;
	}
	if (out->json && out->nested)
		putchar('[');
	/* Nine digits represent the float exactly; null for a value that JSON cannot represent. */
	for (uint32_t i = 0; i < out->n_vocab; i++) {
		fputs(out->json ? (i ? ", " : "") : " ", stdout);
		if (out->json && !__builtin_isfinite(logits[i]))
			fputs("null", stdout);
		else
			printf("%.9g", (double)logits[i]);
	}
	if (out->json && out->nested)
		putchar(']');
	if (!out->json)
		putchar('\n');
}

static int run(struct engine *e, bool all, bool hash, struct error *err)
{
	struct error why = {""};
	int rc = engine_open(e, false, err);
	if (rc == 0)
		rc = engine_start(e, 0, all, err);
	if (rc < 0)
		return rc;
	struct logits_output out = {.n_vocab = e->model->config.n_vocab,
		.json = engine_json(e),
		.nested = all,
		.first = true,
		.hash = hash,
		.bad = -1};
	if (out.json)
		fputs(hash ? "{\"logits_hash\": [" : "{\"logits\": [", stdout);
	rc = engine_prefill(e, all, print_row, &out, err);
	if (out.json)
		fputs("]}\n", stdout);
	/* No error, because a person who looks for the place wants to see the rest. */
	if (rc == 0 && out.bad >= 0 && engine_not_finite(e, (uint32_t)out.bad, &why) < 0)
		fprintf(stderr, "outrider-model: warning: %s\n", why.text);
	return rc;
}

int command_logits(int argc, char **argv)
{
	struct engine e = {0};
	struct error err = {""};
	bool all = false, hash = false, help = false;
	const struct arg args[] = {
		PROMPT_ARGS(&e.options) ENGINE_ARGS(&e.options, PROMPT_CONTEXT){"all", ARG_FLAG,
			&all, 0, 0, NULL, "logits of every position, not only of the last"},
		{"logits-hash", ARG_FLAG, &hash, 0, 0, NULL,
			"a 64-bit hash per position instead of a list"},
		{"help", ARG_FLAG, &help, 0, 0, NULL, "print this text"},
		{.name = NULL},
	};
	if (args_parse(argc, argv, args, &err) < 0)
		return engine_usage(&err);
	if (help) {
		puts("usage: outrider-model logits --model FILE (--tokens IDS | --prompt TEXT) "
		     "[OPTIONS]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	if (engine_check_options(&e.options, &err) < 0)
		return engine_usage(&err);
	int rc = run(&e, all, hash, &err);
	engine_close(&e);
	return rc < 0 ? engine_fail(rc, &err) : EX_OK;
}
