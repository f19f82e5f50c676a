/*
 * Cascade's published figures (the paper's section is given with each) beside what this simulator
 * makes of the same policy, on curves and processes that were fitted to some of them: those are the
 * anchors, the others are predictions.
 */
#include "bench/src/policy_sim.h"

#include <string.h>

static const struct figure {
	const char *curve, *process, *policy, *where;
	double published;
	bool anchor;
} figures[] = {
	{"mixtral-code", "ngram-code", "static:3", "2.5: 39% faster", 1.39, true},
	{"mixtral-code", "ngram-code", "static:7", "2.3: 1.4 times", 1.40, true},
	{"mixtral-code", "ngram-code", "cascade", "7: 57% faster", 1.57, false},
	{"mixtral-math", "ngram-math", "static:1", "7: 26% slower at worst", 1 / 1.26, true},
	{"mixtral-math", "ngram-math", "static:2", "7: 38% slower at worst", 1 / 1.38, false},
	{"mixtral-math", "ngram-math", "static:3", "2.5: 54% slower", 1 / 1.54, true},
	{"mixtral-math", "ngram-math", "cascade", "7: 5% slower at worst", 0.95, false},
	{"mixtral-extract", "ngram-extract", "static:3", "2.3: slower at every K", 0.95, true},
	{"mixtral-extract", "ngram-extract", "cascade", "7: 5% slower at worst, else faster", 1.0,
		false},
	{"phi-3.5", "ngram-phi-math", "static:1", "2.5: 10% slower", 1 / 1.10, true},
	{"phi-3.5", "ngram-phi-math", "cascade", "7: 5% slower at worst", 0.95, false},
	{"phi-3.5", "ngram-phi-extract", "static:3", "2.5: 20% faster, figure 6: 23%", 1.2, true},
	{"olmoe", "ngram-code,ngram-math,ngram-extract", "static:2", "7: 31% on average", 1.31,
		false},
	{"olmoe", "ngram-code,ngram-math,ngram-extract", "static:3", "7: 33% on average", 1.33,
		true},
	{"olmoe", "ngram-code,ngram-math,ngram-extract", "cascade", "7: 29% on average", 1.29,
		false},
	{"deepseek-v1", "ngram-code,ngram-math,ngram-extract", "cascade", "7: 1% on average", 1.01,
		false},
	{"mixtral-*", "ngram-code,ngram-math,ngram-extract", "static:2", "7, 7.5: 20% less 18%",
		1.2 / 1.18, false},
	{"mixtral-*", "ngram-code,ngram-math,ngram-extract", "cascade", "7.5: 20% on average", 1.2,
		false},
};

/* Speed to K = 0 of one policy on one curve and process. */
static int ratio_of(const char *curve_name, const char *process_name, const char *policy,
	const struct sim_options *options, uint32_t sessions, const struct settings *settings,
	double *out, struct error *err)
{
	const struct sim_process *process = sim_process_find(process_name);
	struct sim_driver drivers[2] = {{0}};
	struct sim_total totals[2] = {{0}};
	struct sim_curve curve;
	int r = sim_curve_find(curve_name, &curve, err);
	if (r == 0)
		r = sim_driver_open(&drivers[0], "static:0", settings, err);
	if (r == 0)
		r = sim_driver_open(&drivers[1], policy, settings, err);
	for (uint32_t i = 0; r == 0 && i < sessions; i++) {
		struct sim_text text;
		r = sim_text_make(&text, process, "", options->tokens, options->seed + i, err);
		for (uint32_t p = 0; r == 0 && p < 2; p++)
			sim_run(&drivers[p], &curve, options, &text, 1, i + 1, &totals[p]);
		sim_text_exit(&text);
	}
	for (uint32_t p = 0; p < 2; p++)
		if (drivers[p].state)
			drivers[p].close(drivers[p].state);
	*out = totals[1].ms > 0 ? totals[0].ms / totals[1].ms : 0;
	return r;
}

/* The mean over the processes of a list; a curve "mixtral-*" is that of each process's task. */
static int simulate(const struct figure *f, const struct sim_options *options, uint32_t sessions,
	const struct settings *settings, double *out, struct error *err)
{
	char copy[128], *rest = copy, *word;
	uint32_t n = 0;
	*out = 0;
	snprintf(copy, sizeof(copy), "%s", f->process);
	while ((word = strsep(&rest, ",")) != NULL) {
		char curve[SIM_NAME];
		double ratio;
		const char *star = strchr(f->curve, '*'), *task = strchr(word, '-');
		snprintf(curve, sizeof(curve), "%.*s%s",
			star ? (int)(star - f->curve) : (int)strlen(f->curve), f->curve,
			star ? task + 1 : "");
		int r = ratio_of(curve, word, f->policy, options, sessions, settings, &ratio, err);
		if (r < 0)
			return r;
		*out += ratio;
		n++;
	}
	*out /= n;
	return 0;
}

json_t *sim_published(const struct sim_options *options, uint32_t sessions,
	const struct settings *settings, struct error *err)
{
	json_t *rows = json_array();
	for (size_t i = 0; i < sizeof(figures) / sizeof(*figures); i++) {
		const struct figure *f = &figures[i];
		char name[2 * SIM_NAME];
		double simulated;
		if (simulate(f, options, sessions, settings, &simulated, err) < 0) {
			json_decref(rows);
			return NULL;
		}
		snprintf(name, sizeof(name), "%s, %s", f->curve,
			strchr(f->process, ',') ? "3 tasks" : f->process);
		json_array_append_new(
			rows, json_pack("{s:s, s:s, s:s, s:f, s:f, s:b}", "name", name, "policy",
				      f->policy, "where", f->where, "published", f->published,
				      "simulated", simulated, "anchor", (int)f->anchor));
	}
	return rows;
}
