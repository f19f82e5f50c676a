#include "bench/src/load.h"

#include "bench/src/options.h"
#include "bench/src/picture.h"
#include "client/model/args.h"
#include "shared/base/limits.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { SECONDS_DEFAULT = 20, REQUESTS_MOST = 1000000, SECONDS_MOST = 86400 };

static const char about[] =
	"usage: outrider-bench load [OPTIONS]\n\n"
	"Sends requests to a running service as many clients would, and tells how long they\n"
	"waited: TTFT (to the first token), TPOT (for each further one) and the whole answer.\n"
	"Times count from when a request was due, also if no client was free to send it.\n"
	"Requests arrive at random (--arrivals, --rate), or as in a trace (--trace).\n\n";

/* "64" or "16-256". */
static int parse_range(
	const char *name, const char *text, struct load_range *out, struct error *err)
{
	char *end;
	unsigned long low = strtoul(text, &end, 10), high = low;

	if (*end == '-')
		high = strtoul(end + 1, &end, 10);
	if (*text < '0' || *text > '9' || *end || low < 1 || high < low || high > LIMIT_CONTEXT)
		return error_set(err, EINVAL,
			"--%s takes a number or two (16-256) of 1 to %d, not \"%s\"", name,
			LIMIT_CONTEXT, text);
	*out = (struct load_range){(uint32_t)low, (uint32_t)high};
	return 0;
}

static int check_float(const char *name, float value, double low, double high, struct error *err)
{
	if ((double)value >= low && (double)value <= high)
		return 0;
	return error_set(
		err, EINVAL, "--%s takes %g to %g, not %g", name, low, high, (double)value);
}

static int check(struct load_options *o, struct error *err)
{
	struct load_arrivals ignored;
	int code = option_format(o->format, &o->json, err);

	if (code == 0)
		code = load_arrivals_parse(o->arrivals, &ignored, err);
	if (code == 0)
		code = parse_range("prompt-tokens", o->prompt_range, &o->prompt_tokens, err);
	if (code == 0)
		code = parse_range("output-tokens", o->output_range, &o->output_tokens, err);
	if (code == 0)
		code = check_float("rate", o->rate, 0.001, 100000, err);
	if (code == 0)
		code = check_float("speed", o->speed, 0.001, 1000, err);
	if (code == 0)
		code = check_float("scale", o->scale, 0.001, 1000, err);
	if (code == 0)
		code = check_float("ttft", o->ttft_ms, 0, 1e7, err);
	if (code == 0)
		code = check_float("tpot", o->tpot_ms, 0, 1e7, err);
	if (code == 0 && o->plot)
		code = picture_check(o->plot, err);
	if (code == 0 && o->workload && (o->corpus || o->shared || o->trace))
		code = error_set(err, EINVAL,
			"--workload has prompts of its own: it excludes --corpus, --shared and "
			"--trace");
	return code;
}

static int parse(struct load_options *o, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"arrivals", ARG_STRING, &o->arrivals, 0, 0, "HOW",
			"poisson (default), gamma:SHAPE (below 1: clusters), bursts:ON,OFF "
			"(seconds), or closed: each client sends when it has its answer"},
		{"rate", ARG_FLOAT, &o->rate, 0, 0, "R", "requests a second, default 2"},
		{"trace", ARG_STRING, &o->trace, 0, 0, "FILE",
			"replay Azure's CSV or Mooncake's JSONL instead"},
		{"speed", ARG_FLOAT, &o->speed, 0, 0, "X", "replay X times as fast"},
		{"scale", ARG_FLOAT, &o->scale, 0, 0, "X", "multiply the trace's lengths by X"},
		{"clients", ARG_U32, &o->clients, 1, LOAD_CLIENTS, "N",
			"connections, each with one request at a time, default 16"},
		{"requests", ARG_U32, &o->requests, 1, REQUESTS_MOST, "N", "the most requests"},
		{"seconds", ARG_U32, &o->seconds, 1, SECONDS_MOST, "S",
			"how long requests arrive, default 20 if there is no --requests"},
		{"prompt-tokens", ARG_STRING, &o->prompt_range, 0, 0, "N[-M]",
			"length of prompts, default 64"},
		{"output-tokens", ARG_STRING, &o->output_range, 0, 0, "N[-M]",
			"length of answers, default 32"},
		{"corpus", ARG_STRING, &o->corpus, 0, 0, "FILE",
			"prompts are pieces of this text; default: random tokens"},
		{"workload", ARG_STRING, &o->workload, 0, 0, "FILE.jsonl",
			"prompts of this workload, in turn, whatever their lengths"},
		{"shared", ARG_U32, &o->shared, 0, LIMIT_CONTEXT, "N",
			"the first N tokens of prompts are the same"},
		{"groups", ARG_U32, &o->groups, 1, REQUESTS_MOST, "N",
			"in this many groups of requests, default 1"},
		{"leave", ARG_U32, &o->leave, 0, 100, "PERCENT",
			"of the clients that leave before their answer is complete"},
		{"retry", ARG_U32, &o->retry_ms, 0, 3600000, "MS",
			"send a request that the service had no room for again after this time; "
			"0 (default): it has failed"},
		{"temperature", ARG_FLOAT, &o->temperature, 0, 0, "T", "default 0"},
		{"k", ARG_U32, &o->k, 0, LIMIT_DRAFT_DEPTH, "K",
			"draft length; default: the policy chooses"},
		{"drafter", ARG_STRING, &o->drafter, 0, 0, "METHOD", "default auto"},
		{"ttft", ARG_FLOAT, &o->ttft_ms, 0, 0, "MS",
			"target for goodput; 0 (default): none"},
		{"tpot", ARG_FLOAT, &o->tpot_ms, 0, 0, "MS",
			"target for goodput; 0 (default): none"},
		{"seed", ARG_U32, &o->seed, 0, INT32_MAX, "N", "of everything random"},
		{"plot", ARG_STRING, &o->plot, 0, 0, "FILE.svg|FILE.png", "draw the waits"},
		{"runtime-dir", ARG_STRING, &o->runtime_dir, 0, 0, "DIR",
			"runtime directory of the service"},
		{"format", ARG_FORMAT, &o->format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &o->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, err);

	if (rc == 0 && o->help) {
		fputs(about, stdout);
		args_help(args, stdout);
		return 0;
	}
	return rc ? rc : check(o, err);
}

static int make_plan(const struct load_options *o, struct load_plan *plan, struct error *err)
{
	struct load_arrivals arrivals;
	const struct load_replay replay = {
		(double)o->speed, (double)o->scale, o->requests, (double)o->seconds};

	if (o->trace)
		return load_plan_trace(plan, o->trace, &replay, err);
	int code = load_arrivals_parse(o->arrivals, &arrivals, err);
	size_t n = o->requests;
	if (arrivals.process == LOAD_CLOSED && n == 0)
		n = REQUESTS_MOST; /* until the time is over */
	if (code == 0)
		code = load_plan_random(plan, &arrivals, (double)o->rate, n, (double)o->seconds,
			o->prompt_tokens, o->output_tokens, o->seed, err);
	if (code == 0 && plan->n == 0)
		code = error_set(err, EINVAL,
			"no request arrives in %u s at %g a second: take a longer --seconds",
			o->seconds, (double)o->rate);
	return code;
}

static int run(struct load_options *o, struct error *err)
{
	struct load_plan plan = {0};
	struct load_run found = {0};
	struct load_summary summary;
	struct load_curves curves = {0};

	if (!o->requests && !o->seconds && !o->trace)
		o->seconds = SECONDS_DEFAULT;
	int code = make_plan(o, &plan, err);
	if (code == 0)
		code = load_run(o, &plan, &found, err);
	if (code == 0 && load_summarise(o, &found, &summary, &curves) < 0)
		code = error_set(err, ENOMEM, "no memory for the report");
	if (code == 0 && o->json)
		load_print_json(o, &found, &summary, stdout);
	else if (code == 0)
		load_print(o, &found, &summary, stdout);
	if (code == 0 && o->plot)
		code = load_plot(o, &found, &curves, err);
	load_curves_free(&curves);
	free(found.results);
	load_plan_free(&plan);
	return code;
}

int bench_load(int argc, char **argv)
{
	struct load_options options = {.arrivals = "poisson",
		.rate = 2,
		.speed = 1,
		.scale = 1,
		.clients = 16,
		.prompt_range = "64",
		.output_range = "32",
		.groups = 1,
		.k = UINT32_MAX,
		.drafter = "auto",
		.seed = 1,
		.format = "text"};
	struct error err = {""};
	int rc = parse(&options, argc, argv, &err);
	bool usage = rc < 0;

	if (rc == 0 && !options.help)
		rc = run(&options, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench load: %s\n", err.text);
	return rc == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(rc);
}
