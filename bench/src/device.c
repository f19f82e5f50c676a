#include "bench/src/device.h"

#include "bench/src/device_run.h"
#include "bench/src/options.h"
#include "client/model/args.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

/* What the options replace in every machine; NaN: nothing. */
struct rates {
	float hbm, tops, link, cpu, cpu_gops, latency, layer, memory;
};

struct options {
	const char *machines, *models, *routing, *ks, *shares, *policies, *format;
	struct device_workload workload;
	struct rates rates;
	float draft_mb;
	const char *files[DEVICE_LIST];
	struct cache_trace traces[DEVICE_LIST];
	uint32_t n_traces;
};

static int fail(int rc, const struct error *err)
{
	fprintf(stderr, "outrider-bench device: %s\n", err->text);
	return rc == -EINVAL ? EX_USAGE : error_exit_status(rc);
}

/* Calls add() with each word of "a,b"; "all" is every one of them. */
static int each_word(const char *text, struct device_plan *plan,
	int (*add)(struct device_plan *plan, const char *word, struct error *err),
	struct error *err)
{
	char copy[256];
	if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy))
		return error_set(err, EINVAL, "\"%.40s...\" is too long", text);
	char *rest = copy, *word;
	int rc = 0;
	while (rc == 0 && (word = strsep(&rest, ",")) != NULL)
		rc = add(plan, word, err);
	return rc;
}

static int add_machine(struct device_plan *plan, const char *word, struct error *err)
{
	bool all = strcmp(word, "all") == 0;
	const struct device_machine *named = device_machine_find(word);
	if (!all && !named)
		return error_set(err, EINVAL,
			"--machine: \"%s\", allowed are all, h100, 4090, 4090-x4 and 3060", word);
	for (uint32_t i = 0; i < device_n_machines; i++) {
		if (!all && &device_machines[i] != named)
			continue;
		if (plan->n_machines == DEVICE_LIST)
			return error_set(err, EINVAL, "--machine: at most %d", DEVICE_LIST);
		plan->machines[plan->n_machines++] = device_machines[i];
	}
	return 0;
}

static int add_model(struct device_plan *plan, const char *word, struct error *err)
{
	bool all = strcmp(word, "all") == 0;
	const struct device_model *named = device_model_find(word);
	if (!all && !named)
		return error_set(err, EINVAL,
			"--model: \"%s\", allowed are all, qwen3-30b-a3b, mixtral-8x7b, "
			"olmoe-1b-7b, gpt-oss-120b and demo",
			word);
	for (uint32_t i = 0; i < device_n_models; i++) {
		if (!all && &device_models[i] != named)
			continue;
		if (plan->n_models == DEVICE_LIST)
			return error_set(err, EINVAL, "--model: at most %d", DEVICE_LIST);
		plan->models[plan->n_models++] = device_models[i];
	}
	return 0;
}

static int add_policy(struct device_plan *plan, const char *word, struct error *err)
{
	bool all = strcmp(word, "all") == 0;
	const struct cache_policy_ops *named = cache_policy_find(word);
	if (!all && !named)
		return error_set(err, EINVAL, "--policy: \"%s\", allowed are all, %s", word,
			cache_policy_list());
	for (size_t i = 0; cache_policies[i]; i++)
		for (int rule = 0; rule < BALANCE_RULES; rule++) {
			if (!all && cache_policies[i] != named)
				continue;
			if (plan->n_ways == DEVICE_WAYS)
				return error_set(err, EINVAL, "--policy: too many");
			plan->ways[plan->n_ways++] = (struct device_way){
				.policy = cache_policies[i], .rule = (enum balance_rule)rule};
		}
	return 0;
}

static int set_routing(struct options *o, struct error *err)
{
	for (int r = ROUTING_UNIFORM; r <= ROUTING_RECORDED; r++)
		if (strcmp(o->routing, device_routing_name((enum device_routing)r)) == 0) {
			o->workload.routing = (enum device_routing)r;
			if (r == ROUTING_RECORDED && o->n_traces == 0)
				return error_set(err, EINVAL, "--routing recorded needs a trace");
			return 0;
		}
	return error_set(err, EINVAL,
		"--routing: \"%s\", allowed are uniform, zipf, phases and recorded", o->routing);
}

/* A workload for each recorded trace, or else for each K. */
static int set_workloads(struct options *o, struct device_plan *plan, struct error *err)
{
	uint32_t ks[DEVICE_LIST], n = 0;
	int rc = set_routing(o, err);
	if (rc == 0)
		rc = option_numbers("k", o->ks, 0, LIMIT_DRAFT_DEPTH, DEVICE_LIST, ks, &n, err);
	for (uint32_t i = 0; rc == 0 && i < (o->n_traces ? o->n_traces : n); i++) {
		plan->workloads[i] = o->workload;
		plan->workloads[i].k = o->n_traces ? o->traces[i].k : ks[i];
		plan->workloads[i].recorded = o->n_traces ? &o->traces[i] : NULL;
		plan->n_workloads++;
	}
	return rc;
}

static int take_rate(const char *name, float value, double *to, double least, struct error *err)
{
	if (value != value)
		return 0;
	if (!(value >= (float)least && value <= 1e9f))
		return error_set(err, EINVAL, "--%s: takes %g to 1e9", name, least);
	*to = (double)value;
	return 0;
}

static int take_rates(const struct options *o, struct device_plan *plan, struct error *err)
{
	const struct rates *r = &o->rates;
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < plan->n_machines; i++) {
		struct device_machine *m = &plan->machines[i];
		const struct {
			const char *name;
			float value;
			double *to, least;
		} rows[] = {{"device-bandwidth", r->hbm, &m->hbm_gb_s, 0.001},
			{"device-tops", r->tops, &m->gpu_tops, 0.001},
			{"link-bandwidth", r->link, &m->link_gb_s, 0.001},
			{"cpu-bandwidth", r->cpu, &m->cpu_gb_s, 0.001},
			{"cpu-gops", r->cpu_gops, &m->cpu_gops, 0.001},
			{"link-latency", r->latency, &m->link_us, 0},
			{"layer", r->layer, &m->layer_us, 0},
			{"memory", r->memory, &m->memory_gib, 0}};
		for (size_t j = 0; rc == 0 && j < sizeof(rows) / sizeof(*rows); j++)
			rc = take_rate(rows[j].name, rows[j].value, rows[j].to, rows[j].least, err);
	}
	for (uint32_t i = 0; rc == 0 && i < plan->n_models; i++)
		rc = take_rate("draft-mb", o->draft_mb, &plan->models[i].draft_mb, 0, err);
	return rc;
}

static int make_plan(struct options *o, struct device_plan *plan, struct error *err)
{
	plan->ways[plan->n_ways++] = (struct device_way){.policy = &policy_lru, .blocking = true};
	int rc = each_word(o->machines, plan, add_machine, err);
	if (rc == 0)
		rc = each_word(o->models, plan, add_model, err);
	if (rc == 0)
		rc = each_word(o->policies, plan, add_policy, err);
	if (rc == 0)
		rc = option_numbers("shares", o->shares, 1, 100, DEVICE_SHARES, plan->shares,
			&plan->n_shares, err);
	if (rc == 0)
		rc = set_workloads(o, plan, err);
	return rc == 0 ? take_rates(o, plan, err) : rc;
}

/* The cases of one machine and model. */
static int run_workloads(const struct device_plan *plan, const struct device_machine *machine,
	const struct device_model *model, struct device_case cases[2], json_t *rows,
	struct error *err)
{
	bool has_k0 = false;
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < plan->n_workloads; i++) {
		const struct device_workload *workload = &plan->workloads[i];
		struct device_case *of = &cases[workload->k > 0];
		rc = device_run(plan, machine, model, workload, of, err);
		if (rc < 0)
			break;
		has_k0 = has_k0 || workload->k == 0;
		if (rows)
			json_array_append_new(rows, device_json(plan, of));
		else
			device_text(plan, of, workload->k > 0 && has_k0 ? &cases[0] : NULL, stdout);
	}
	return rc;
}

static int run_plan(const struct device_plan *plan, bool json, struct error *err)
{
	struct device_case *cases = calloc(2, sizeof(*cases));
	json_t *rows = json ? json_array() : NULL;
	int rc = cases ? 0 : error_set(err, ENOMEM, "no memory for the results");
	if (!json && rc == 0)
		device_text_head(stdout);
	for (uint32_t m = 0; m < plan->n_machines; m++)
		for (uint32_t i = 0; rc == 0 && i < plan->n_models; i++)
			rc = run_workloads(
				plan, &plan->machines[m], &plan->models[i], cases, rows, err);
	if (rc == 0 && json) {
		json_t *out = json_pack("{s:b,s:O}", "simulated", 1, "cases", rows);
		json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
		putchar('\n');
		json_decref(out);
	} else if (rc == 0) {
		device_text_peers(stdout);
	}
	json_decref(rows);
	free(cases);
	return rc;
}

/* The traces come before the options. */
static int take_traces(struct options *o, int *argc, char ***argv, struct error *err)
{
	while (*argc > 1 && strncmp((*argv)[1], "-", 1) != 0) {
		if (o->n_traces == DEVICE_LIST)
			return error_set(err, EINVAL, "more than %d traces", DEVICE_LIST);
		int rc = cache_trace_read((*argv)[1], &o->traces[o->n_traces], err);
		if (rc < 0)
			return rc;
		o->n_traces++;
		++*argv;
		--*argc;
	}
	return 0;
}

static int parse_and_run(struct options *o, int argc, char **argv, struct error *err)
{
	struct rates *r = &o->rates;
	const struct arg args[] = {
		{"machine", ARG_STRING, &o->machines, 0, 0, "NAMES",
			"h100, 4090, 4090-x4 (on four lanes), 3060; default all"},
		{"model", ARG_STRING, &o->models, 0, 0, "NAMES",
			"qwen3-30b-a3b (default), mixtral-8x7b, olmoe-1b-7b, gpt-oss-120b, demo; "
			"all"},
		{"routing", ARG_STRING, &o->routing, 0, 0, "NAME",
			"how experts are chosen: zipf (default), uniform, phases, or recorded (in "
			"the traces)"},
		{"k", ARG_STRING, &o->ks, 0, 0, "N,...",
			"drafted tokens of a pass, without traces; default 0,3"},
		{"accept", ARG_U32, &o->workload.accept_percent, 0, 100, "N",
			"percent of drafted tokens that are right, without traces; default 70"},
		{"passes", ARG_U32, &o->workload.passes, 2, 1 << 20, "N",
			"simulated passes, default 128"},
		{"shares", ARG_STRING, &o->shares, 0, 0, "N,...",
			"percent of the experts that are in device memory; default "
			"5,17,33,50,75,100"},
		{"policy", ARG_STRING, &o->policies, 0, 0, "NAMES",
			"policies of the expert-cache; default all"},
		{"context", ARG_U32, &o->workload.context, 0, 1 << 24, "N",
			"tokens whose keys and values are read, default 1024"},
		{"seed", ARG_U64, &o->workload.seed, 0, 0, "N", "default 1"},
		{"device-bandwidth", ARG_FLOAT, &r->hbm, 0, 0, "GB/S",
			"in place of the machine's device memory"},
		{"device-tops", ARG_FLOAT, &r->tops, 0, 0, "TOPS", "its int8 products"},
		{"memory", ARG_FLOAT, &r->memory, 0, 0, "GIB", "its size"},
		{"link-bandwidth", ARG_FLOAT, &r->link, 0, 0, "GB/S", "the link to it"},
		{"link-latency", ARG_FLOAT, &r->latency, 0, 0, "US",
			"until a waiting kernel sees a transfer, or the CPU its work; default 5"},
		{"layer", ARG_FLOAT, &r->layer, 0, 0, "US",
			"starting a layer's kernels, default 9"},
		{"cpu-bandwidth", ARG_FLOAT, &r->cpu, 0, 0, "GB/S",
			"the host's memory, default 35"},
		{"cpu-gops", ARG_FLOAT, &r->cpu_gops, 0, 0, "GOP/S",
			"the host's int8 products, default 700"},
		{"draft-mb", ARG_FLOAT, &o->draft_mb, 0, 0, "MB",
			"what drafting a token reads on the device, 10^6 bytes; default 338, demo "
			"4.6"},
		{"format", ARG_FORMAT, &o->format, 0, 0, "text|json",
			"output format, default text"},
		{0},
	};
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
			puts("usage: outrider-bench device [TRACE...] [OPTIONS]\n\nSimulates "
			     "decoding with a GPU whose memory holds a share of the experts.\n"
			     "A trace of outrider-bench cache record gives K and what is "
			     "accepted.\n");
			args_help(args, stdout);
			return 0;
		}
	static struct device_plan plan;
	bool json = false;
	int rc = take_traces(o, &argc, &argv, err);
	if (rc == 0)
		rc = args_parse(argc, argv, args, err);
	if (rc == 0)
		rc = option_format(o->format, &json, err);
	if (rc == 0)
		rc = make_plan(o, &plan, err);
	return rc == 0 ? run_plan(&plan, json, err) : rc;
}

int bench_device(int argc, char **argv)
{
	const float none = __builtin_nanf("");
	struct options o = {.machines = "all",
		.models = "qwen3-30b-a3b",
		.routing = "zipf",
		.ks = "0,3",
		.shares = "5,17,33,50,75,100",
		.policies = "all",
		.format = "text",
		.draft_mb = none,
		.rates = {none, none, none, none, none, none, none, none},
		.workload = {.passes = 128, .accept_percent = 70, .context = 1024, .seed = 1}};
	struct error err = {""};
	int rc = parse_and_run(&o, argc, argv, &err);
	for (uint32_t i = 0; i < o.n_traces; i++)
		cache_trace_exit(&o.traces[i]);
	return rc < 0 ? fail(rc, &err) : EX_OK;
}
