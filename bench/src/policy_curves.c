/*
 * Cost curves. The papers' figures are published for a few n; between them the curve follows the
 * experts: n tokens of which each goes its own way with chance 1 - affinity touch E (1 - (1 -
 * k/E)^m) of E experts, m = 1 + (n - 1)(1 - affinity) (balls in bins: Cascade, section 2.4). With x
 * the share of experts in the bytes of a token, T(n) / T(1) = 1 - x + x distinct(n) / k.
 */
#include "bench/src/policy_sim.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 24 /* of the counts of experts: their growth is what matters */

/* x from Cascade's table 1: of T parameters A are active, so the routed ones are (T - A) / (1 -
 * k/E), and k/E of them are read for a token. For Mixtral section 2.4 measured it: attention is 8%
 * of the time. */
static const struct shape {
	const char *name, *source;
	double experts, used, share, affinity, base_ms;
} shapes[] = {
	{"mixtral-code", "Cascade 2.3: T(8) = 2.3 (code), 2.4: 8% attention, 6: 28 ms", 8, 2, 0.92,
		0.684, 28},
	{"mixtral-math", "Cascade 2.3: T(8) = 3.0 (math), 2.4: 8% attention, 6: 28 ms", 8, 2, 0.92,
		0.36, 28},
	{"mixtral-extract", "Cascade 2.3: T(8) = 2.6 (extraction), 2.4: 8% attention, 6: 28 ms", 8,
		2, 0.92, 0.54, 28},
	{"phi-3.5", "Cascade table 1; affinity from 2.5: math at K = 1 loses 10%", 16, 2, 0.766,
		0.375, 14},
	{"olmoe", "Cascade table 1, 6: 6 ms; affinity from 7: K = 3 wins 33% on average", 64, 8,
		0.857, 0.86, 6},
	{"deepseek-v1", "Cascade table 1; affinity as Mixtral's math", 64, 6, 0.502, 0.36, 8},
	{"qwen-1.5", "Cascade table 1; affinity as Mixtral's math", 64, 4, 0.279, 0.36, 8},
	{"qwen3-30b",
		"128 experts of which 8, two thirds of a token's bytes; affinity as Mixtral's math",
		128, 8, 0.67, 0.36, 10},
	{"dense", "Cascade 2.3: verification costs at most 3% at K = 7", 1, 1, 0, 0, 10},
};

const char *const sim_curve_names[] = {"mixtral-code", "mixtral-math", "mixtral-extract", "phi-3.5",
	"olmoe", "deepseek-v1", "qwen-1.5", "qwen3-30b", "dense", NULL};

/* The knot before n, and in *part how far n is on the way to the next. */
static uint32_t knot_before(const struct sim_curve *curve, double n, double *part)
{
	uint32_t i = 1;
	while (i + 1 < curve->n_knots && n > curve->knots[i].n)
		i++;
	*part = (n - curve->knots[i - 1].n) / (curve->knots[i].n - curve->knots[i - 1].n);
	return i - 1;
}

double sim_curve_cost(const struct sim_curve *curve, double n)
{
	double part;
	uint32_t i = knot_before(curve, n, &part);
	return curve->knots[i].cost * (1 - part) + curve->knots[i + 1].cost * part;
}

uint32_t sim_curve_experts(const struct sim_curve *curve, double n)
{
	double part;
	uint32_t i = knot_before(curve, n, &part);
	double experts = curve->knots[i].experts * (1 - part) + curve->knots[i + 1].experts * part;
	return experts > 0 ? (uint32_t)(experts + 0.5) : 0;
}

static void from_shape(const struct shape *s, struct sim_curve *out)
{
	for (uint32_t n = 1; n <= SIM_KNOTS; n++) {
		double at = n <= 24 ? n : 24 + (n - 24) * 8;
		double m = 1 + (at - 1) * (1 - s->affinity);
		double distinct = s->experts * (1 - pow(1 - s->used / s->experts, m));
		double cost = 1 - s->share + s->share * distinct / s->used;
		if (s->share <= 0)
			cost = 1 + 0.03 * (at - 1) / 7;
		out->knots[out->n_knots].n = at;
		out->knots[out->n_knots].experts = s->share > 0 ? LAYERS * distinct : 0;
		out->knots[out->n_knots++].cost = cost;
	}
	out->source = s->source;
	out->base_ms = s->base_ms;
	/* Section 2.3: drafting and rejection sampling add 1 to 2%. */
	out->draft_fixed = 0.015;
}

static int from_json(const char *path, struct sim_curve *out, struct error *err)
{
	json_error_t why;
	json_t *json = json_load_file(path, 0, &why), *row;
	size_t i;
	if (!json)
		return why.line > 0 ? error_set(err, EINVAL, "--curve %s: line %d: %s", path,
					      why.line, why.text)
				    : error_set(err, EINVAL, "--curve: %s", why.text);
	const json_t *rows = json_object_get(json, "batch");
	json_array_foreach(rows, i, row)
	{
		double n = json_number_value(json_object_get(row, "n"));
		double ms = json_number_value(json_object_get(row, "ms"));
		if (!(n >= 1) || !(ms > 0) || out->n_knots == SIM_KNOTS ||
			(out->n_knots > 0 && n <= out->knots[out->n_knots - 1].n))
			break;
		if (out->n_knots == 0)
			out->base_ms = ms;
		out->knots[out->n_knots].n = n;
		out->knots[out->n_knots].experts =
			json_number_value(json_object_get(row, "distinct_experts"));
		out->knots[out->n_knots++].cost = ms / out->base_ms;
	}
	const json_t *draft = json_object_get(json, "draft");
	out->draft_fixed = json_number_value(json_object_get(draft, "fixed"));
	out->draft_step = json_number_value(json_object_get(draft, "step"));
	bool good = rows && i == json_array_size(rows) && out->n_knots >= 2 &&
		    out->knots[0].n <= 1 && out->draft_fixed >= 0 && out->draft_step >= 0;
	json_decref(json);
	if (!good)
		return error_set(err, EINVAL,
			"--curve %s: expected the output of outrider-bench model --format json: 2 "
			"to %d rows of \"batch\" with rising n from 1 on and ms above 0",
			path, SIM_KNOTS);
	out->source = "measured: outrider-bench model --format json";
	return 0;
}

static int from_journal(const char *path, struct sim_curve *out, struct error *err)
{
	struct sim_journal *journal;
	int r = sim_journal_open(path, &journal, err);
	if (r == 0 && (r = sim_journal_curve(journal, out, err)) < 0)
		r = error_prefix(err, r, "%s", path);
	sim_journal_close(&journal);
	return r;
}

int sim_curve_find(const char *name, struct sim_curve *out, struct error *err)
{
	size_t length = strlen(name);
	memset(out, 0, sizeof(*out));
	const char *slash = strrchr(name, '/');
	snprintf(out->name, sizeof(out->name), "%s", slash ? slash + 1 : name);
	if (sim_is_journal(name))
		return from_journal(name, out, err);
	if (slash || (length > 5 && strcmp(name + length - 5, ".json") == 0))
		return from_json(name, out, err);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
		if (strcmp(shapes[i].name, name) == 0) {
			from_shape(&shapes[i], out);
			return 0;
		}
	return error_set(err, ENOENT,
		"--curve %s: takes a file of outrider-bench model, a journal, all, or one of "
		"mixtral-code, "
		"mixtral-math, mixtral-extract, phi-3.5, olmoe, deepseek-v1, qwen-1.5, qwen3-30b, "
		"dense",
		name);
}
