#include "bench/src/policy.h"

#include "bench/src/options.h"
#include "bench/src/policy_sim.h"

#include "client/model/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { CELLS_MAX = 64, RECORDED_SESSIONS = 1000000 };

static const char default_policies[] =
	"static:0,static:1,static:2,static:3,static:4,static:5,static:6,static:7,cascade,yield,"
	"sglang,vllm,llama.cpp";

struct bench {
	struct sim_options options;
	struct settings settings;
	const char *policies, *curves, *processes, *recorded, *format, *in_place;
	struct arg_strings sets;
	uint32_t sessions, lag;
	float noise;
	bool published, json, help;
	const char *policy[SIM_POLICIES];
	uint32_t n_policies;
	char policy_text[512], curve_text[1024], process_text[512];
	struct sim_cell *cells;
	size_t n_cells;
};

static int parse(struct bench *b, int argc, char **argv, struct error *err)
{
	const struct arg args[] = {
		{"policy", ARG_STRING, &b->policies, 0, 0, "NAME,...",
			"static:K, cascade, cascade-published (as in the paper), yield, goodput, "
			"sglang, vllm, llama.cpp; default all but cascade-published, K up to 7"},
		{"curve", ARG_STRING, &b->curves, 0, 0, "NAME|FILE,...",
			"the cost of n tokens: a published curve, a file of outrider-bench model "
			"--format json, or a policy.journal; default: all published curves"},
		{"process", ARG_STRING, &b->processes, 0, 0, "NAME,...",
			"what is accepted: a published process, a recorded workload (code, math, "
			"extract, prose), a policy.journal: the sessions that were served, or "
			"random "
			"(default): each session another one"},
		{"recorded", ARG_STRING, &b->recorded, 0, 0, "FILE",
			"recorded outputs, default models/golden/workload-outputs.jsonl"},
		{"published", ARG_FLAG, &b->published, 0, 0, NULL,
			"print Cascade's published figures next to simulated ones"},
		{"in-place-of-cascade", ARG_STRING, &b->in_place, 0, 0, "NAME",
			"with --published: simulate this policy where the paper has Cascade"},
		{"sessions", ARG_U32, &b->sessions, 1, 100000, "N",
			"sessions of each cell, default 200"},
		{"tokens", ARG_U32, &b->options.tokens, 16, 1000000, "N",
			"tokens of each session, default 512"},
		{"batch", ARG_U32, &b->options.batch, 1, LIMIT_RUNNING, "N",
			"sessions at a time, default 1"},
		{"lag", ARG_U32, &b->lag, 1, 65, "N",
			"a pass's record is seen by the N-th pass after it; default 2"},
		{"foresight", ARG_U32, &b->options.foresight, 0, 1000, "N",
			"at K = 0 the drafter makes a shadow draft every N tokens; default 0: "
			"never"},
		{"noise", ARG_FLOAT, &b->noise, 0, 0, "SHARE",
			"standard deviation of a pass's time, default 0.05; one pass in 200 takes "
			"three times as long"},
		{"seed", ARG_U64, &b->options.seed, 0, 0, "N", "default 1"},
		{"set", ARG_STRINGS, &b->sets, 0, 0, "KEY=VALUE",
			"a setting of outrider-policy; may be repeated"},
		{"format", ARG_FORMAT, &b->format, 0, 0, "text|json",
			"output format, default text"},
		{"help", ARG_FLAG, &b->help, 0, 0, NULL, "print this text"},
		{0},
	};
	int r = args_parse(argc, argv, args, err);
	if (r == 0 && b->help) {
		puts("usage: outrider-bench policy [OPTIONS]\n");
		args_help(args, stdout);
	}
	b->options.noise = (double)b->noise;
	b->options.lag = b->lag - 1;
	if (r == 0 && !(b->options.noise >= 0 && b->options.noise <= 1))
		r = error_set(err, EINVAL, "--noise takes 0 to 1");
	if (r == 0 && b->in_place && !b->published)
		r = error_set(err, EINVAL, "--in-place-of-cascade needs --published");
	if (r == 0)
		r = option_format(b->format, &b->json, err);
	for (size_t i = 0; r == 0 && i < b->sets.n; i++)
		r = config_set(b->sets.items[i], "--set", settings_keys, &b->settings, err);
	return r == 0 ? settings_check(&b->settings, err) : r;
}

/* Splits a list in place; the words are borrowed from copy. */
static int split(const char *option, const char *list, char *copy, size_t bytes, const char **words,
	uint32_t most, uint32_t *n, struct error *err)
{
	char *rest = copy, *word;
	*n = 0;
	if ((size_t)snprintf(copy, bytes, "%s", list) >= bytes)
		return error_set(err, EINVAL, "--%s is too long", option);
	while ((word = strsep(&rest, ",")) != NULL) {
		if (*n == most || !*word)
			return error_set(
				err, EINVAL, "--%s takes 1 to %u names, by commas", option, most);
		words[(*n)++] = word;
	}
	return 0;
}

/* static:0 is what everything is compared with. */
static int take_policies(struct bench *b, struct error *err)
{
	int r = split("policy", b->policies, b->policy_text, sizeof(b->policy_text), b->policy,
		SIM_POLICIES - 1, &b->n_policies, err);
	bool has = false;
	for (uint32_t i = 0; r == 0 && i < b->n_policies; i++) {
		struct sim_driver driver;
		has |= strcmp(b->policy[i], "static:0") == 0;
		r = sim_driver_open(&driver, b->policy[i], &b->settings, err);
		if (r == 0)
			driver.close(driver.state);
	}
	if (r == 0 && !has) {
		memmove(b->policy + 1, b->policy, b->n_policies * sizeof(*b->policy));
		b->policy[0] = "static:0";
		b->n_policies++;
	}
	return r;
}

static void cell_exit(struct sim_cell *cell)
{
	for (uint32_t i = 0; i < cell->n_rows; i++)
		free(cell->rows[i].session_ms);
	free(cell->optimum_ms);
}

/* Sessions of random processes each begin with a controller that knows nothing; sessions of one
 * process follow each other as in a service. */
struct cell_work {
	const struct bench *bench;
	struct sim_curve curve;
	const struct sim_process *process; /* NULL: random */
	struct sim_curve *curves; /* with random processes: the session's is one of these */
	uint32_t n_curves;
	struct sim_text texts[LIMIT_RUNNING]; /* of the group in progress */
};

static int run_group(struct cell_work *w, struct sim_cell *cell, uint32_t first, uint32_t n,
	struct sim_driver *drivers, struct error *err)
{
	const struct bench *b = w->bench;
	const struct sim_curve *curve = w->curves ? &w->curves[first % w->n_curves] : &w->curve;
	for (uint32_t p = 0; p < b->n_policies; p++) {
		struct sim_total *total = &cell->rows[p].total;
		double before = total->ms, tokens = total->tokens;
		if (!w->process) {
			int r = sim_driver_open(&drivers[p], b->policy[p], &b->settings, err);
			if (r < 0)
				return r;
		}
		sim_run(&drivers[p], curve, &b->options, w->texts, n, first + 1, total);
		for (uint32_t i = 0; i < n; i++)
			cell->rows[p].session_ms[first + i] =
				(total->ms - before) / (total->tokens - tokens) * w->texts[i].n;
		if (!w->process) {
			drivers[p].close(drivers[p].state);
			drivers[p].state = NULL;
		}
	}
	uint32_t k_max = (uint32_t)b->settings.k_max;
	double bound_ms = cell->bound ? sim_bound_ms(curve, w->texts, n, k_max) : 0;
	for (uint32_t i = 0; i < n; i++)
		cell->optimum_ms[first + i] = cell->bound
						      ? bound_ms * w->texts[i].n
						      : sim_optimum_ms(curve, &w->texts[i], k_max);
	return 0;
}

static int make_texts(struct cell_work *w, uint32_t first, uint32_t n, struct error *err)
{
	const struct bench *b = w->bench;
	int r = 0;
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		struct sim_process random;
		uint64_t seed = b->options.seed * RECORDED_SESSIONS + first + i;
		if (!w->process)
			sim_process_random(seed, &random);
		/* Recorded texts are taken in their order. */
		const struct sim_process *p = w->process ? w->process : &random;
		r = sim_text_make(&w->texts[i], p, b->recorded, b->options.tokens,
			p->recorded || p->journal ? first + i : seed, err);
	}
	return r;
}

static int run_cell(struct cell_work *w, struct sim_cell *cell, struct error *err)
{
	const struct bench *b = w->bench;
	struct sim_driver drivers[SIM_POLICIES] = {{0}};
	int r = 0;
	cell->n_sessions = b->sessions;
	for (uint32_t p = 0; r == 0 && p < b->n_policies; p++) {
		struct sim_row *row = &cell->rows[cell->n_rows++];
		snprintf(row->policy, sizeof(row->policy), "%s", b->policy[p]);
		row->session_ms = calloc(b->sessions, sizeof(double));
		if (w->process)
			r = sim_driver_open(&drivers[p], b->policy[p], &b->settings, err);
	}
	cell->bound = b->options.batch > 1;
	cell->optimum_ms = calloc(b->sessions, sizeof(double));
	for (uint32_t first = 0; r == 0 && first < b->sessions; first += b->options.batch) {
		uint32_t left = b->sessions - first;
		uint32_t n = left < b->options.batch ? left : b->options.batch;
		r = make_texts(w, first, n, err);
		if (r == 0)
			r = run_group(w, cell, first, n, drivers, err);
		for (uint32_t i = 0; i < n; i++)
			sim_text_exit(&w->texts[i]);
	}
	for (uint32_t p = 0; p < b->n_policies; p++)
		if (drivers[p].state)
			drivers[p].close(drivers[p].state);
	return r;
}

static int take_curves(struct bench *b, struct sim_curve *curves, uint32_t *n, struct error *err)
{
	const char *names[CELLS_MAX];
	uint32_t n_names = 0;
	int r = 0;
	if (strcmp(b->curves, "all") == 0)
		for (; sim_curve_names[n_names]; n_names++)
			names[n_names] = sim_curve_names[n_names];
	else
		r = split("curve", b->curves, b->curve_text, sizeof(b->curve_text), names,
			CELLS_MAX, &n_names, err);
	for (*n = 0; r == 0 && *n < n_names; r == 0 ? ++*n : *n)
		r = sim_curve_find(names[*n], &curves[*n], err);
	return r;
}

static int add_cell(struct bench *b, const struct sim_process *process, struct sim_curve *curves,
	uint32_t n_curves, uint32_t index, struct error *err)
{
	struct sim_cell *cell = &b->cells[b->n_cells++];
	struct cell_work work = {.bench = b, .curve = curves[index], .process = process};
	if (!process) {
		work.curves = curves;
		work.n_curves = n_curves;
	}
	snprintf(cell->name, sizeof(cell->name), "%.47s, %.47s",
		process ? curves[index].name : "each session another curve",
		process ? process->name : "random phases");
	cell->curve_source = process ? curves[index].source : "all of --curve in turn";
	cell->process_source = process ? process->source : "drawn";
	return run_cell(&work, cell, err);
}

/* Adds a process on every curve; random ones once, on all curves in turn. */
static int add_cells(struct bench *b, const char *name, const struct sim_process *process,
	struct sim_curve *curves, uint32_t n_curves, struct error *err)
{
	int r = 0;
	bool random = strcmp(name, "random") == 0;
	if (!process && !random) {
		char names[256];
		sim_process_list(names, sizeof(names));
		return error_set(err, EINVAL,
			"--process %s: takes random, a file that ends in .journal, or %s", name,
			names);
	}
	for (uint32_t c = 0; r == 0 && c < (random ? 1 : n_curves); c++) {
		if (b->n_cells == CELLS_MAX)
			return error_set(err, EINVAL, "more than %d cells", CELLS_MAX);
		r = add_cell(b, process, curves, n_curves, c, err);
	}
	return r;
}

static int run_cells(struct bench *b, struct error *err)
{
	struct sim_curve curves[CELLS_MAX];
	const char *names[CELLS_MAX];
	uint32_t n_curves, n_names;
	int r = take_curves(b, curves, &n_curves, err);
	if (r == 0)
		r = split("process", b->processes, b->process_text, sizeof(b->process_text), names,
			CELLS_MAX, &n_names, err);
	for (uint32_t i = 0; r == 0 && i < n_names; i++) {
		struct sim_process served = {.source = "served: the journal of outrider-policy"};
		struct sim_journal *journal = NULL;
		const struct sim_process *process = sim_process_find(names[i]);
		if (sim_is_journal(names[i])) {
			const char *slash = strrchr(names[i], '/');
			snprintf(served.name, sizeof(served.name), "%s",
				slash ? slash + 1 : names[i]);
			r = sim_journal_open(names[i], &journal, err);
			served.journal = journal;
			process = &served;
		}
		if (r == 0)
			r = add_cells(b, names[i], process, curves, n_curves, err);
		sim_journal_close(&journal);
	}
	return r;
}

static int report(struct bench *b, struct error *err)
{
	char about[256];
	json_t *cells = json_array(), *json;
	snprintf(about, sizeof(about),
		"%u tokens a session, %u side by side, records seen %u passes late, noise %.0f%%, "
		"seed %llu",
		b->options.tokens, b->options.batch, b->lag, 100 * b->options.noise,
		(unsigned long long)b->options.seed);
	for (size_t i = 0; i < b->n_cells; i++)
		json_array_append_new(cells, sim_cell_json(&b->cells[i]));
	json = json_pack("{s:s, s:o}", "about", about, "cells", cells);
	if (b->n_cells > 1)
		json_object_set_new(json, "mix", sim_mix_json(b->cells, b->n_cells));
	if (b->published) {
		json_t *published =
			sim_published(&b->options, b->sessions, &b->settings, b->in_place, err);
		if (!published) {
			json_decref(json);
			return -EINVAL;
		}
		json_object_set_new(json, "published", published);
	}
	if (b->json) {
		json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(5));
		putchar('\n');
	} else {
		sim_report_text(json, stdout);
	}
	json_decref(json);
	return 0;
}

int bench_policy(int argc, char **argv)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct error err = {""};
	if (b)
		b->cells = calloc(CELLS_MAX, sizeof(*b->cells));
	if (!b || !b->cells) {
		free(b);
		return EX_OSERR;
	}
	b->policies = default_policies;
	b->curves = "all";
	b->processes = "random";
	b->recorded = "models/golden/workload-outputs.jsonl";
	b->format = "text";
	b->sessions = 200;
	b->lag = 2;
	b->noise = 0.05f;
	b->options = (struct sim_options){.tokens = 512, .batch = 1, .seed = 1};
	config_defaults(settings_keys, &b->settings);
	int r = parse(b, argc, argv, &err);
	if (r == 0 && !b->help)
		r = take_policies(b, &err);
	bool usage = r < 0;
	if (r == 0 && !b->help && !b->published)
		r = run_cells(b, &err);
	if (r == 0 && !b->help)
		r = report(b, &err);
	if (r < 0)
		fprintf(stderr, "outrider-bench policy: %s\n", err.text);
	for (size_t i = 0; i < b->n_cells; i++)
		cell_exit(&b->cells[i]);
	free(b->cells);
	free(b);
	return r == 0 ? EX_OK : usage ? EX_USAGE : error_exit_status(r);
}
