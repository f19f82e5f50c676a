#include "bench/src/cache.h"

#include "bench/src/cache_copy.h"
#include "bench/src/cache_report.h"
#include "bench/src/gpu.h"
#include "bench/src/options.h"
#include "client/model/args.h"
#include "shared/spec/profile.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

static const char usage[] =
	"usage: outrider-bench cache record --model FILE --workload FILE.jsonl --out TRACE "
	"[OPTIONS]\n"
	"       outrider-bench cache synth --kind uniform|zipf|phases --out TRACE [OPTIONS]\n"
	"       outrider-bench cache replay TRACE... [OPTIONS]\n"
	"       outrider-bench cache profile TRACE... --out FILE\n"
	"       outrider-bench cache copy --model FILE --backend simt|cuda [OPTIONS]\n"
	"\nRecords routing traces and replays them under each policy of the expert-cache; copies\n"
	"experts to a device's slots.\n"
	"outrider-bench cache record --help (synth, replay, profile, copy) lists the options.\n";

static int fail(int rc, const struct error *err)
{
	fprintf(stderr, "outrider-bench cache: %s\n", err->text);
	return rc == -EINVAL ? EX_USAGE : error_exit_status(rc);
}

static bool wants_help(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
			return true;
	return false;
}

/* ---- record ---- */

static int check_record(struct cache_record_options *o, const char *drafter, struct error *err)
{
	static const char *const names[] = {"none", "model", "replay", "ngram"};
	if (!o->model || !o->workload || !o->out)
		return error_set(err, EINVAL, "--model, --workload and --out are needed");
	for (int i = 0; i < 4; i++)
		if (strcmp(drafter, names[i]) == 0) {
			o->drafter = (enum cache_drafter)i;
			if (o->drafter == CACHE_DRAFT_MODEL && !o->draft)
				return error_set(err, EINVAL, "--drafter model needs --draft FILE");
			return 0;
		}
	return error_set(err, EINVAL,
		"--drafter: \"%s\", allowed are none, model, replay and ngram", drafter);
}

static int run_record(int argc, char **argv)
{
	struct cache_record_options o = {
		.limit = UINT32_MAX, .max_tokens = 128, .threads = 1, .accept_percent = 80};
	const char *drafter = "none";
	const struct arg args[] = {
		{"model", ARG_STRING, &o.model, 0, 0, "FILE", "the GGUF model (needed)"},
		{"workload", ARG_STRING, &o.workload, 0, 0, "FILE",
			"prompts, one JSON object a line (needed)"},
		{"out", ARG_STRING, &o.out, 0, 0, "TRACE", "the trace to write (needed)"},
		{"drafter", ARG_STRING, &drafter, 0, 0, "NAME",
			"none (default), model, ngram, or replay: the answer at K = 0 with some "
			"wrong tokens"},
		{"draft", ARG_STRING, &o.draft, 0, 0, "FILE",
			"the draft model, of the target's width and depth"},
		{"accept", ARG_U32, &o.accept_percent, 0, 100, "N",
			"replay: percent of drafted tokens that are right, default 80"},
		{"k", ARG_U32, &o.k, 0, LIMIT_DRAFT_DEPTH, "N",
			"drafted tokens per pass, default 0"},
		{"limit", ARG_U32, &o.limit, 1, UINT32_MAX, "N", "the most prompts"},
		{"max-tokens", ARG_U32, &o.max_tokens, 1, 1 << 14, "N",
			"the most tokens of an answer, default 128"},
		{"threads", ARG_U32, &o.threads, 1, LIMIT_THREADS, "N", "default 1"},
		{0},
	};
	struct error err = {""};
	if (wants_help(argc, argv)) {
		puts("usage: outrider-bench cache record --model FILE --workload FILE.jsonl --out "
		     "TRACE [OPTIONS]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	int rc = args_parse(argc, argv, args, &err);
	if (rc == 0)
		rc = check_record(&o, drafter, &err);
	if (rc == 0)
		rc = cache_record(&o, &err);
	return rc < 0 ? fail(rc, &err) : EX_OK;
}

/* ---- synth ---- */

static int check_kind(const char *kind, struct cache_synth_options *o, struct error *err)
{
	static const char *const names[] = {"uniform", "zipf", "phases"};
	for (int i = 0; i < 3; i++)
		if (strcmp(kind, names[i]) == 0) {
			o->kind = (enum cache_synth_kind)i;
			return 0;
		}
	return error_set(err, EINVAL, "--kind: \"%s\", allowed are uniform, zipf and phases", kind);
}

static int run_synth(int argc, char **argv)
{
	struct cache_synth_options o = {.n_layers = 6,
		.n_experts = 32,
		.n_experts_used = 4,
		.passes = 1000,
		.hint_percent = 80,
		.seed = 1};
	const char *kind = "zipf";
	const struct arg args[] = {
		{"out", ARG_STRING, &o.out, 0, 0, "TRACE", "the trace to write (needed)"},
		{"kind", ARG_STRING, &kind, 0, 0, "NAME", "uniform, zipf (default) or phases"},
		{"layers", ARG_U32, &o.n_layers, 1, LIMIT_LAYERS, "N", "default 6"},
		{"experts", ARG_U32, &o.n_experts, 1, LIMIT_EXPERTS, "N",
			"experts of a layer, default 32"},
		{"used", ARG_U32, &o.n_experts_used, 1, LIMIT_EXPERTS_USED, "N",
			"experts used per token, default 4"},
		{"k", ARG_U32, &o.k, 0, LIMIT_DRAFT_DEPTH, "N",
			"drafted tokens per pass, default 0"},
		{"passes", ARG_U32, &o.passes, 1, 1 << 20, "N", "default 1000"},
		{"hints", ARG_U32, &o.hint_percent, 0, 100, "N",
			"percent of right hints, default 80; at K = 0 there are none"},
		{"seed", ARG_U64, &o.seed, 0, 0, "N", "default 1"},
		{0},
	};
	struct error err = {""};
	struct cache_trace trace;
	if (wants_help(argc, argv)) {
		puts("usage: outrider-bench cache synth --out TRACE [OPTIONS]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	int rc = args_parse(argc, argv, args, &err);
	if (rc == 0 && !o.out)
		rc = error_set(&err, EINVAL, "--out is needed");
	if (rc == 0)
		rc = check_kind(kind, &o, &err);
	if (rc == 0)
		rc = cache_synth(&o, &trace, &err);
	if (rc < 0)
		return fail(rc, &err);
	rc = cache_trace_write(&trace, o.out, &err);
	cache_trace_exit(&trace);
	return rc < 0 ? fail(rc, &err) : EX_OK;
}

/* ---- replay ---- */

/* belady:N, with N passes of look-ahead; and "shares": how often each answer uses each expert,
 * without the order. */
static const char bounded[] = "belady:", shares[] = "shares";

static int parse_ahead(const char *text, uint32_t *ahead, struct error *err)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);
	if (*text < '1' || *text > '9' || *end != '\0' || n > REPLAY_AHEAD_MAX)
		return error_set(err, EINVAL, "--policy: \"%s%s\", allowed are %s1 to %s%d",
			bounded, text, bounded, bounded, REPLAY_AHEAD_MAX);
	*ahead = (uint32_t)n;
	return 0;
}

static int add_policy(struct replay_plan *plan, const char *name, struct error *err)
{
	if (plan->n_policies == REPLAY_POLICIES - 1)
		return error_set(err, EINVAL, "--policy: at most %d", REPLAY_POLICIES - 1);
	struct replay_policy *policy = &plan->policies[plan->n_policies++];
	snprintf(policy->name, sizeof(policy->name), "%s", name);
	policy->ops = cache_policy_find(name);
	if (strncmp(name, bounded, strlen(bounded)) == 0) {
		policy->ops = &replay_belady;
		return parse_ahead(name + strlen(bounded), &policy->ahead, err);
	}
	if (strcmp(name, shares) == 0) {
		policy->ops = &replay_belady;
		policy->shares = true;
	}
	if (policy->ops == NULL)
		return error_set(err, EINVAL,
			"--policy: \"%s\", allowed are all, belady, %sN, %s and %s", name, bounded,
			shares, cache_policy_list());
	return 0;
}

static int parse_policies(struct replay_plan *plan, const char *text, struct error *err)
{
	char copy[256];
	if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy))
		return error_set(err, EINVAL, "--policy: too long");
	char *rest = copy, *word;
	int rc = 0;
	while (rc == 0 && (word = strsep(&rest, ",")) != NULL) {
		if (strcmp(word, "all") == 0)
			for (size_t i = 0; rc == 0 && cache_policies[i]; i++)
				rc = add_policy(plan, cache_policies[i]->name, err);
		else if (strcmp(word, "belady") != 0)
			rc = add_policy(plan, word, err);
	}
	/* Always included, because the others are compared with it. */
	plan->policies[plan->n_policies++] =
		(struct replay_policy){.name = "belady", .ops = &replay_belady};
	return rc;
}

static int parse_budgets(struct replay_plan *plan, const char *text, struct error *err)
{
	const char *at = text;
	for (;;) {
		char *end;
		double percent = strtod(at, &end);
		if (end != at && *end == '%')
			end++;
		if (end == at || !(percent > 0 && percent <= 100) || (*end && *end != ',') ||
			plan->n_budgets == REPLAY_BUDGETS)
			return error_set(err, EINVAL,
				"--budget: \"%s\", allowed are up to %d shares of the experts, "
				"such as 17%%,33%%,50%%",
				text, REPLAY_BUDGETS);
		plan->budgets[plan->n_budgets++] = percent;
		if (!*end)
			return 0;
		at = end + 1;
	}
}

static int read_traces(struct replay_plan *plan, struct error *err)
{
	plan->traces = calloc(plan->n_traces, sizeof(*plan->traces));
	if (!plan->traces)
		return error_set(err, ENOMEM, "no memory for %zu traces", plan->n_traces);
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < plan->n_traces; i++) {
		rc = cache_trace_read(plan->files[i], &plan->traces[i], err);
		if (rc == 0 && strcmp(plan->hints, "recorded") != 0)
			rc = cache_trace_rehint(
				&plan->traces[i], strcmp(plan->hints, "perfect") == 0, err);
	}
	return rc;
}

static int judge_hints(struct replay_plan *plan, struct error *err)
{
	plan->quality = calloc(plan->n_traces, sizeof(*plan->quality));
	if (!plan->quality)
		return error_set(err, ENOMEM, "no memory for %zu traces", plan->n_traces);
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < plan->n_traces; i++)
		rc = cache_trace_quality(&plan->traces[i], plan->quality[i], err);
	return rc;
}

/* A profile belongs to one shape. */
static int check_shapes(const struct replay_plan *plan, struct error *err)
{
	const struct cache_trace *first = &plan->traces[0];
	for (size_t i = 1; i < plan->n_traces; i++)
		if (plan->traces[i].n_layers != first->n_layers ||
			plan->traces[i].n_experts != first->n_experts)
			return error_set(err, EINVAL, "%s and %s are of different models",
				plan->files[0], plan->files[i]);
	return 0;
}

static int read_profile(
	struct replay_plan *plan, const char *path, uint64_t **uses, struct error *err)
{
	int rc = check_shapes(plan, err);
	if (rc == 0)
		rc = profile_read(
			path, plan->traces[0].n_layers, plan->traces[0].n_experts, uses, err);
	plan->profile = *uses;
	return rc;
}

static int replay_all(
	const struct replay_plan *plan, struct replay_result *results, struct error *err)
{
	int rc = 0;
	for (size_t t = 0; t < plan->n_traces; t++)
		for (size_t b = 0; rc == 0 && b < plan->n_budgets; b++)
			for (size_t p = 0; rc == 0 && p < plan->n_policies; p++) {
				struct replay_options options = {.policy = plan->policies[p].ops,
					.ahead = plan->policies[p].ahead,
					.shares = plan->policies[p].shares,
					.demand_only = plan->demand_only,
					.n_slots = replay_slots(&plan->traces[t], plan->budgets[b]),
					.link = plan->link,
					.profile = plan->profile};
				rc = cache_replay(&plan->traces[t], &options,
					replay_cell(plan, results, t, b, p), err);
				if (rc < 0)
					error_prefix(err, rc, "%s", plan->files[t]);
			}
	return rc;
}

static int report(struct replay_plan *plan, bool json, struct error *err)
{
	struct replay_result *results =
		calloc(plan->n_traces * plan->n_budgets * plan->n_policies, sizeof(*results));
	if (!results)
		return error_set(err, ENOMEM, "no memory for the results");
	int rc = replay_all(plan, results, err);
	if (rc == 0 && json) {
		json_t *out = replay_json(plan, results);
		json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
		putchar('\n');
		json_decref(out);
	} else if (rc == 0) {
		replay_table(plan, results, stdout);
	}
	if (rc == 0 && plan->plot) {
		rc = replay_plot(plan, results);
		if (rc < 0)
			error_set(err, -rc, "no picture");
	}
	free(results);
	return rc;
}

/* The traces come before the options. */
static int take_files(struct replay_plan *plan, int *argc, char ***argv, struct error *err)
{
	while (*argc > 1 && strncmp((*argv)[1], "--", 2) != 0) {
		if (plan->n_traces == REPLAY_TRACES)
			return error_set(err, EINVAL, "more than %d traces", REPLAY_TRACES);
		plan->files[plan->n_traces++] = (*argv)[1];
		++*argv;
		--*argc;
	}
	return plan->n_traces > 0 ? 0
				  : error_set(err, EINVAL, "replay needs a trace: replay TRACE...");
}

static int run_replay(int argc, char **argv)
{
	struct replay_plan plan = {.hints = "recorded"};
	const char *policies = "all", *budgets = "17%,33%,50%", *format = "text";
	const char *profile = NULL, *prefetch = "on";
	float gb_per_s = 2;
	uint32_t latency_us = 80;
	bool json = false;
	const struct arg args[] = {
		{"policy", ARG_STRING, &policies, 0, 0, "NAMES",
			"policies, separated by commas; default: all. belady:N knows N passes "
			"ahead; "
			"shares knows how often each answer uses each expert. Belady's bound is "
			"always printed"},
		{"budget", ARG_STRING, &budgets, 0, 0, "SHARES", "default 17%,33%,50%"},
		{"bandwidth", ARG_FLOAT, &gb_per_s, 0, 0, "GB/S",
			"bandwidth of the link in 10^9 bytes a second, default 2"},
		{"latency", ARG_U32, &latency_us, 0, 1000000, "US",
			"latency of the link in microseconds, default 80"},
		{"hints", ARG_STRING, &plan.hints, 0, 0, "WHICH",
			"recorded (default), none, or perfect: all experts that the next pass "
			"uses"},
		{"prefetch", ARG_STRING, &prefetch, 0, 0, "WHICH",
			"on (default), or off: nothing is loaded before it is needed"},
		{"profile", ARG_STRING, &profile, 0, 0, "FILE",
			"profile of an earlier run, for policies that take one"},
		{"format", ARG_FORMAT, &format, 0, 0, "text|json", "output format, default text"},
		{"plot", ARG_STRING, &plan.plot, 0, 0, "FILE",
			"draw hits over budget, all traces together, as .svg or .png"},
		{0},
	};
	struct error err = {""};
	if (wants_help(argc, argv)) {
		puts("usage: outrider-bench cache replay TRACE... [OPTIONS]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	int rc = take_files(&plan, &argc, &argv, &err);
	if (rc == 0)
		rc = args_parse(argc, argv, args, &err);
	if (rc == 0 && !(gb_per_s >= 0.001f && gb_per_s <= 10000))
		rc = error_set(&err, EINVAL, "--bandwidth: takes 0.001 to 10000");
	if (rc == 0)
		rc = option_format(format, &json, &err);
	if (rc == 0 && strcmp(plan.hints, "recorded") != 0 && strcmp(plan.hints, "none") != 0 &&
		strcmp(plan.hints, "perfect") != 0)
		rc = error_set(&err, EINVAL,
			"--hints: \"%s\", allowed are recorded, none and perfect", plan.hints);
	plan.demand_only = strcmp(prefetch, "off") == 0;
	if (rc == 0 && !plan.demand_only && strcmp(prefetch, "on") != 0)
		rc = error_set(
			&err, EINVAL, "--prefetch: \"%s\", allowed are on and off", prefetch);
	if (rc == 0)
		rc = parse_policies(&plan, policies, &err);
	if (rc == 0)
		rc = parse_budgets(&plan, budgets, &err);
	plan.link = (struct replay_link){(double)gb_per_s * 1e9, (uint64_t)latency_us * 1000};
	if (rc == 0)
		rc = read_traces(&plan, &err);
	uint64_t *uses = NULL;
	if (rc == 0 && profile)
		rc = read_profile(&plan, profile, &uses, &err);
	if (rc == 0)
		rc = judge_hints(&plan, &err);
	if (rc == 0)
		rc = report(&plan, json, &err);
	free(plan.quality);
	for (size_t i = 0; plan.traces && i < plan.n_traces; i++)
		cache_trace_exit(&plan.traces[i]);
	free(plan.traces);
	free(uses);
	return rc < 0 ? fail(rc, &err) : EX_OK;
}

/* ---- profile ---- */

static void count_uses(const struct cache_trace *trace, uint64_t *uses)
{
	for (uint32_t i = 0; i < trace->n_layer_runs; i++) {
		const struct trace_layer *layer = &trace->layers[i];
		for (uint32_t u = 0; u < layer->n_uses; u++)
			uses[(size_t)layer->layer * trace->n_experts +
				trace->uses[layer->first_use + u].expert]++;
	}
}

static int write_profile(const struct replay_plan *plan, const char *path, struct error *err)
{
	const struct cache_trace *first = &plan->traces[0];
	int rc = check_shapes(plan, err);
	if (rc < 0)
		return rc;
	uint64_t *uses = calloc((size_t)first->n_layers * first->n_experts, sizeof(*uses));
	if (!uses)
		return error_set(err, ENOMEM, "no memory for a profile");
	for (size_t t = 0; t < plan->n_traces; t++)
		count_uses(&plan->traces[t], uses);
	rc = profile_write(path, first->n_layers, first->n_experts, uses, err);
	free(uses);
	return rc;
}

static int run_profile(int argc, char **argv)
{
	struct replay_plan plan = {.hints = "recorded"};
	const char *path = NULL;
	const struct arg args[] = {
		{"out", ARG_STRING, &path, 0, 0, "FILE", "the profile to write (needed)"},
		{0},
	};
	struct error err = {""};
	if (wants_help(argc, argv)) {
		puts("usage: outrider-bench cache profile TRACE... --out FILE\n");
		args_help(args, stdout);
		return EX_OK;
	}
	int rc = take_files(&plan, &argc, &argv, &err);
	if (rc == 0)
		rc = args_parse(argc, argv, args, &err);
	if (rc == 0 && !path)
		rc = error_set(&err, EINVAL, "--out is needed");
	if (rc == 0)
		rc = read_traces(&plan, &err);
	if (rc == 0)
		rc = write_profile(&plan, path, &err);
	for (size_t i = 0; plan.traces && i < plan.n_traces; i++)
		cache_trace_exit(&plan.traces[i]);
	free(plan.traces);
	return rc < 0 ? fail(rc, &err) : EX_OK;
}

/* ---- copy ---- */

static int run_copy(int argc, char **argv)
{
	struct cache_copy_options o = {.layer = UINT32_MAX, .rounds = 5};
	const char *batch = "1,2,4,8,16", *format = "text";
	const struct arg args[] = {
		{"model", ARG_STRING, &o.model, 0, 0, "FILE", "a GGUF model with experts (needed)"},
		{"backend", ARG_STRING, &o.backend, 0, 0, "simt|cuda",
			"whose slots (needed); simt: a GPU, emulated"},
		{"layer", ARG_U32, &o.layer, 0, LIMIT_LAYERS - 1, "N",
			"whose experts; default: the first layer that has some"},
		{"batch", ARG_STRING, &batch, 0, 0, "N,...",
			"experts that are queued before they are waited for, default 1,2,4,8,16"},
		{"rounds", ARG_U32, &o.rounds, 1, CACHE_COPY_ROUNDS, "N",
			"default 5; medians are printed"},
		{"format", ARG_FORMAT, &format, 0, 0, "text|json", "output format, default text"},
		{0},
	};
	struct error err = {""};
	if (wants_help(argc, argv)) {
		puts("usage: outrider-bench cache copy --model FILE --backend simt|cuda "
		     "[OPTIONS]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	int rc = args_parse(argc, argv, args, &err);
	if (rc == 0 && (!o.model || !o.backend))
		rc = error_set(&err, EINVAL, "--model and --backend are needed");
	if (rc == 0)
		rc = gpu_check(o.backend, false, &err);
	if (rc == 0)
		rc = option_numbers("batch", batch, 1, LIMIT_EXPERTS, CACHE_COPY_BATCHES, o.batches,
			&o.n_batches, &err);
	if (rc == 0)
		rc = option_format(format, &o.json, &err);
	if (rc == 0)
		rc = cache_copy(&o, &err);
	return rc < 0 ? fail(rc, &err) : EX_OK;
}

int bench_cache(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} verbs[] = {{"record", run_record}, {"synth", run_synth}, {"replay", run_replay},
		{"profile", run_profile}, {"copy", run_copy}};
	for (size_t i = 0; argc >= 2 && i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (strcmp(argv[1], verbs[i].name) == 0)
			return verbs[i].run(argc - 1, argv + 1);
	bool help = wants_help(argc < 2 ? argc : 2, argv);
	fputs(usage, help ? stdout : stderr);
	return help ? EX_OK : EX_USAGE;
}
