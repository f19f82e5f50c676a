#include "bench/src/spec.h"

#include "bench/src/options.h"
#include "shared/base/layer_limits.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

static const char usage[] =
	"usage: outrider-bench spec FILE.jsonl [--method M,...] [--depth D,...] [--nodes N,...]\n"
	"                           [--width W] [--budget-experts "
	"off|B[/RANKING[/COVERAGE]],...]...\n"
	"                           [--rounds N] [--seconds S] [--limit PROMPTS] [--max-tokens N]\n"
	"                           [--ignore-eos] [--runtime-dir DIR] [--format text|json] "
	"[--json]\n"
	"\nAnswers the prompts of FILE with the running service, greedily, without drafts and "
	"with\n"
	"every tree of drafts: methods (ngram, model, eagle3, mtp, layer-skip; replay:A are\n"
	"trees of the answer itself, whose first token is right as often as A says), depths (1 to "
	"63),\n"
	"tokens (1 to 511) and expert budgets. A budget by layer, as 0-3:16,7:4,9-:8, takes a\n"
	"--budget-experts of its own. Up to W tokens are alternatives for one place\n"
	"(1 to 255; default: as many as a tree of N tokens needs to be D deep).\n"
	"Each prompt is answered in every way before the next one. Prints tokens/s (median of the\n"
	"rounds), tokens per iteration, distinct experts, and of answers with an expert budget "
	"what\n"
	"differs: tokens, perplexity under the model itself, and right answers, where FILE has "
	"them.\n"
	"No further round begins after S seconds. An answer without a budget that differs is an\n"
	"error.\n";

enum {
	OPT_METHOD = 1,
	OPT_DEPTH,
	OPT_NODES,
	OPT_WIDTH,
	OPT_BUDGET,
	OPT_ROUNDS,
	OPT_SECONDS,
	OPT_LIMIT,
	OPT_TOKENS,
	OPT_EOS,
	OPT_DIR,
	OPT_FORMAT,
	OPT_JSON,
};

static const struct option long_options[] = {{"method", 1, NULL, OPT_METHOD},
	{"depth", 1, NULL, OPT_DEPTH}, {"nodes", 1, NULL, OPT_NODES}, {"width", 1, NULL, OPT_WIDTH},
	{"budget-experts", 1, NULL, OPT_BUDGET}, {"rounds", 1, NULL, OPT_ROUNDS},
	{"seconds", 1, NULL, OPT_SECONDS}, {"limit", 1, NULL, OPT_LIMIT},
	{"max-tokens", 1, NULL, OPT_TOKENS}, {"ignore-eos", 0, NULL, OPT_EOS},
	{"runtime-dir", 1, NULL, OPT_DIR}, {"format", 1, NULL, OPT_FORMAT},
	{"json", 0, NULL, OPT_JSON}, {"help", 0, NULL, 'h'}, {0}};

static int take_method(const char *word, struct spec_method *out, struct error *err)
{
	static const char *const names[] = {"ngram", "model", "eagle3", "mtp", "layer-skip"};
	char *end;

	snprintf(out->name, sizeof(out->name), "%s", word);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (strcmp(word, names[i]) == 0)
			out->method = names[i];
	if (out->method != NULL)
		return 0;
	out->method = "replay";
	out->error = 1;
	const char *share = strncmp(word, "replay:", 7) == 0 ? word + 7 : "";
	out->error = 1 - strtof(share, &end);
	if (end == share || *end || !(out->error >= 0 && out->error < 1))
		return error_set(err, EINVAL,
			"--method takes ngram, model, eagle3, mtp, layer-skip and replay:A (A more "
			"than 0, up "
			"to 1), not \"%s\"",
			word);
	return 0;
}

/* "off", or B, B/RANKING, B/RANKING/COVERAGE. The service checks the names, and what layers and
 * experts the model has. */
static int take_budget(const char *word, struct spec_budget *out, struct error *err)
{
	char copy[SPEC_NAME], *rest = copy;

	snprintf(out->name, sizeof(out->name), "%s", word);
	if (strcmp(word, "off") == 0)
		return 0;
	snprintf(copy, sizeof(copy), "%s", word);
	const char *experts = strsep(&rest, "/"), *ranking = strsep(&rest, "/");
	int r = layer_limits_form("--budget-experts", experts, err);
	if (r < 0)
		return strchr(experts, ':') ? r
					    : error_set(err, EINVAL,
						      "--budget-experts takes off and "
						      "B[/RANKING[/COVERAGE]] with a number B, "
						      "or by layer (0-3:16,7:4), not \"%s\"",
						      word);
	snprintf(out->experts, sizeof(out->experts), "%s", experts);
	snprintf(out->ranking, sizeof(out->ranking), "%s", ranking ? ranking : "");
	snprintf(out->coverage, sizeof(out->coverage), "%s", rest ? rest : "");
	return 0;
}

/* Reads a list of words into methods, or adds one of budgets to those of earlier options. The commas
 * of a budget by layer are its own. */
static int take_list(struct spec_options *options, bool methods, struct error *err)
{
	const char *name = methods ? "method" : "budget-experts";
	uint32_t *n = methods ? &options->n_methods : &options->n_budgets;
	uint32_t most = methods ? SPEC_METHODS : SPEC_BUDGETS;
	const char *between = !methods && strchr(optarg, ':') ? "" : ",";
	char *copy = strdup(optarg), *rest = copy, *word;
	int r = copy ? 0 : error_set(err, ENOMEM, "no memory for --%s", name);

	if (methods)
		*n = 0;
	while (r == 0 && (word = strsep(&rest, between)) != NULL) {
		if (*n == most || strlen(word) >= SPEC_NAME)
			r = error_set(err, EINVAL,
				"--%s takes up to %u words of less than %d characters", name, most,
				SPEC_NAME);
		else if (methods)
			r = take_method(word,
				memset(&options->method[*n], 0, sizeof(*options->method)), err);
		else
			r = take_budget(word,
				memset(&options->budget[*n], 0, sizeof(*options->budget)), err);
		*n += 1;
	}
	free(copy);
	return r;
}

static int take_number(const char *name, uint32_t high, size_t *out, struct error *err)
{
	uint32_t value = 0, n;
	int r = option_numbers(name, optarg, 1, high, 1, &value, &n, err);

	*out = value;
	return r;
}

static int take_option(int option, struct spec_options *o, struct error *err)
{
	size_t number = 0;
	int r;

	switch (option) {
	case OPT_METHOD:
	case OPT_BUDGET:
		return take_list(o, option == OPT_METHOD, err);
	case OPT_DEPTH:
		return option_numbers("depth", optarg, 1, LIMIT_DRAFT_DEPTH, SPEC_SHAPES, o->depth,
			&o->n_depths, err);
	case OPT_NODES:
		return option_numbers("nodes", optarg, 1, LIMIT_DRAFT_NODES, SPEC_SHAPES, o->nodes,
			&o->n_nodes, err);
	case OPT_WIDTH:
		r = take_number("width", LIMIT_DRAFT_WIDTH, &number, err);
		o->width = (uint32_t)number;
		return r;
	case OPT_ROUNDS:
		return take_number("rounds", SPEC_ROUNDS, &o->rounds, err);
	case OPT_SECONDS:
		return take_number("seconds", 3600, &o->seconds, err);
	case OPT_LIMIT:
		return take_number("limit", 1000000, &o->limit, err);
	case OPT_TOKENS:
		r = take_number("max-tokens", LIMIT_CONTEXT, &number, err);
		o->max_tokens = (uint32_t)number;
		return r;
	case OPT_EOS:
		o->ignore_eos = true;
		return 0;
	case OPT_DIR:
		o->runtime_dir = optarg;
		return 0;
	case OPT_FORMAT:
		return option_format(optarg, &o->json, err);
	case OPT_JSON:
		o->json = true;
		return 0;
	default:
		return -ENOENT;
	}
}

static bool is_there(const struct spec_cell *cells, size_t n, const struct spec_cell *cell)
{
	for (size_t i = 0; i < n; i++)
		if (cells[i].method == cell->method && cells[i].budget == cell->budget &&
			cells[i].depth == cell->depth && cells[i].nodes == cell->nodes)
			return true;
	return false;
}

/* The tree of option number i, counting with the last of the options fastest. */
static struct spec_cell cell_at(const struct spec_options *o, size_t i)
{
	uint32_t nodes = o->nodes[i % o->n_nodes];
	size_t rest = i / o->n_nodes;
	uint32_t depth = o->depth[rest % o->n_depths];

	rest /= o->n_depths;
	bool chain = nodes <= depth;
	uint32_t width = o->width > 0 ? o->width : (nodes + depth - 1) / depth;
	return (struct spec_cell){
		.budget = &o->budget[rest % o->n_budgets],
		.method = &o->method[rest / o->n_budgets],
		.depth = chain ? nodes : depth,
		.nodes = nodes,
		.width = chain ? 1 : width,
	};
}

size_t spec_cells(const struct spec_options *o, struct spec_cell out[SPEC_CELLS])
{
	size_t n = 1, all = (size_t)o->n_methods * o->n_budgets * o->n_depths * o->n_nodes;

	memset(&out[0], 0, sizeof(out[0]));
	for (size_t i = 0; i < all && n < SPEC_CELLS; i++) {
		struct spec_cell cell = cell_at(o, i);

		if (!is_there(out, n, &cell))
			out[n++] = cell;
	}
	return n;
}

static int run(const struct spec_options *options)
{
	struct spec_cell *cells = calloc(SPEC_CELLS, sizeof(*cells));

	if (cells == NULL)
		return EX_OSERR;
	size_t n = spec_cells(options, cells);
	int r = spec_run(options, cells, n);
	if (r == 0 && options->json) {
		json_t *json = spec_json(options, cells, n);

		json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
		putchar('\n');
		json_decref(json);
	} else if (r == 0) {
		spec_table(options, cells, n, stdout);
	}
	free(cells);
	return r == 0 ? EX_OK : error_exit_status(r);
}

int bench_spec(int argc, char **argv)
{
	struct spec_options options = {
		.method = {{.name = "ngram", .method = "ngram"}},
		.depth = {8},
		.nodes = {1, 3, 7, 15, 31, 63},
		.n_methods = 1,
		.n_depths = 1,
		.n_nodes = 6,
		.rounds = 3,
		.limit = SIZE_MAX,
	};
	struct error err = {""};
	int option, r;

	while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		if (option == 'h') {
			fputs(usage, stdout);
			return EX_OK;
		}
		r = take_option(option, &options, &err);
		if (r == -ENOENT)
			fputs(usage, stderr);
		else if (r < 0)
			fprintf(stderr, "outrider-bench spec: %s\n", err.text);
		if (r < 0)
			return EX_USAGE;
	}
	if (optind != argc - 1) {
		fputs(usage, stderr);
		return EX_USAGE;
	}
	options.file = argv[optind];
	if (options.n_budgets == 0)
		options.budget[options.n_budgets++] = (struct spec_budget){.name = "off"};
	return run(&options);
}
