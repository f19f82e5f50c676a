#include "bench/src/budget.h"

#include "bench/src/options.h"
#include "bench/src/prompts_file.h"
#include "shared/base/cpu_name.h"
#include "shared/spec/budget.h"
#include "shared/spec/profile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

/* ---- Measuring. ---- */

static int take_line(void *arg, const json_t *line, uint32_t number, struct error *err)
{
	struct budget_run *run = arg;
	const struct budget_options *o = run->options;
	uint32_t room = run->target.n_context;
	size_t n = 0;
	json_int_t own = json_integer_value(json_object_get(line, "max_tokens"));
	uint32_t most = own > 0 && own < o->max_tokens ? (uint32_t)own : o->max_tokens;
	int32_t *ids = NULL;
	int rc = prompt_encode(&run->target, line, &ids, &n, err);

	(void)number;
	if (rc == 0 && (n == 0 || n > room || most + o->depth + o->nodes + 1 > room - n))
		rc = error_set(err, EINVAL,
			"a prompt of %zu tokens, %u more and a tree do not fit the context of %u",
			n, most, room);
	if (rc == 0)
		rc = budget_answer(run, ids, (uint32_t)n, most, err);
	free(ids);
	return rc;
}

static int open_models(struct budget_run *run, struct error *err)
{
	const struct budget_options *o = run->options;
	const struct decoding_options target = {.model = o->model,
		.threads = o->threads,
		.chunk = 1 + o->nodes,
		.n_oracle = 1 + o->nodes};
	const struct decoding_options draft = {
		.model = o->draft, .threads = o->threads, .chunk = 1 + o->nodes, .quiet = true};
	int rc = decoding_open(&run->target, &target, err);

	if (rc == 0 && run->target.model->config.n_experts == 0)
		return error_set(err, EINVAL, "%s has no experts", o->model);
	if (rc == 0 && o->draft)
		rc = decoding_open(&run->draft, &draft, err);
	if (rc == 0 && o->draft &&
		run->draft.model->config.n_vocab != run->target.model->config.n_vocab)
		return error_set(err, EINVAL, "%s has %u tokens, and the model %u", o->draft,
			run->draft.model->config.n_vocab, run->target.model->config.n_vocab);
	return rc;
}

/* Without --budgets: every eighth of the experts. */
static int settle_points(struct budget_options *o, const struct model_config *c, struct error *err)
{
	for (uint32_t i = 0; i < o->n_points; i++)
		if (o->experts[i] > c->n_experts)
			return error_set(err, EINVAL,
				"--budgets: %u, but a layer of the model has %u experts",
				o->experts[i], c->n_experts);
	bool given = o->n_points > 0;
	for (uint32_t i = 0; !given && i < 8; i++)
		o->experts[o->n_points++] = (c->n_experts * (i + 1) + 7) / 8;
	return 0;
}

static int measure(struct budget_run *run, struct budget_options *o, struct error *err)
{
	uint64_t *uses = NULL;
	int rc = open_models(run, err);
	const struct model_config *c = run->target.model ? &run->target.model->config : NULL;

	if (rc == 0)
		rc = settle_points(o, c, err);
	if (rc == 0 && o->profile)
		rc = profile_read(o->profile, c->n_layers, c->n_experts, &uses, err);
	if (rc == 0)
		rc = budget_layers_init(&run->layers, o, &run->target, uses, 1 + o->nodes, err);
	if (rc == 0 && draft_room(&run->reply, o->nodes) < 0)
		rc = error_set(err, ENOMEM, "no memory for a tree");
	if (rc == 0)
		rc = prompts_each(o->workload, o->limit, take_line, run, err);
	if (rc == 0 && run->layers.sums.n == 0)
		rc = error_set(err, EINVAL, "%s: no layer was measured", o->model);
	free(uses);
	return rc;
}

/* ---- What came of it. ---- */

static double each(const struct budget_sums *sums, double sum)
{
	return sum / (double)sums->n;
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static void print_text(const struct budget_run *run)
{
	const struct budget_options *o = run->options;
	const struct model_config *c = &run->target.model->config;
	const struct budget_sums *sums = &run->layers.sums;
	char cpu[CPU_NAME_BYTES];

	cpu_name(cpu);
	printf("%s, %s; %s\n", last_part(o->model), last_part(o->workload), cpu);
	printf("%llu trees of up to %u tokens and depth %u, drafted by %s; %.2f tokens accepted "
	       "of each\n",
		(unsigned long long)run->trees, o->nodes, o->depth,
		o->draft ? last_part(o->draft) : "the model itself",
		(double)run->tokens / (double)run->trees);
	printf("%u experts of a layer, %u for each token; a tree of %.1f rows uses %.1f of "
	       "them\n\n",
		c->n_experts, c->n_experts_used, each(sums, (double)sums->rows),
		each(sums, (double)sums->used));
	printf("%7s  %-23s  %-23s  %-23s\n", "", "share of the weight, %", "error, substitution, %",
		"error, truncation, %");
	printf("%7s", "experts");
	for (int part = 0; part < 3; part++)
		printf("  %7s %7s %7s", budget_ranking_names[0], budget_ranking_names[1],
			budget_ranking_names[2]);
	putchar('\n');
	for (uint32_t i = 0; i < o->n_points; i++) {
		printf("%7u", o->experts[i]);
		for (int part = 0; part < 3; part++) {
			putchar(' ');
			for (int r = 0; r < BUDGET_RANKINGS; r++) {
				double sum =
					part == 0 ? sums->share[i][r] : sums->error[i][r][part - 1];
				if (r == BUDGET_STATIC && !o->profile)
					printf(" %7s", "");
				else
					printf(" %7.2f", 100 * each(sums, sum));
			}
		}
		putchar('\n');
	}
	puts("\nshare: of the sum of the router's scores over the rows of a tree, what the kept "
	     "experts hold. error: the squared distance of a\n"
	     "layer's result from the exact one, of the exact one's square, with exact inputs. "
	     "Both are means over the layers and the trees.");
}

static json_t *point_json(const struct budget_run *run, uint32_t i)
{
	const struct budget_sums *sums = &run->layers.sums;
	json_t *share = json_object(), *error = json_object();

	for (int r = 0; r < BUDGET_RANKINGS; r++) {
		if (r == BUDGET_STATIC && !run->options->profile)
			continue;
		json_object_set_new(
			share, budget_ranking_names[r], json_real(each(sums, sums->share[i][r])));
		json_object_set_new(error, budget_ranking_names[r],
			json_pack("{s:f,s:f}", budget_coverage_names[BUDGET_SUBSTITUTION],
				each(sums, sums->error[i][r][BUDGET_SUBSTITUTION]),
				budget_coverage_names[BUDGET_TRUNCATION],
				each(sums, sums->error[i][r][BUDGET_TRUNCATION])));
	}
	return json_pack("{s:i,s:o,s:o}", "experts", (int)run->options->experts[i], "share", share,
		"error", error);
}

static void print_json(const struct budget_run *run)
{
	const struct budget_options *o = run->options;
	const struct budget_sums *sums = &run->layers.sums;
	json_t *points = json_array();

	for (uint32_t i = 0; i < o->n_points; i++)
		json_array_append_new(points, point_json(run, i));
	json_t *json = json_pack("{s:s,s:s,s:I,s:f,s:f,s:f,s:o}", "model", o->model, "workload",
		o->workload, "trees", (json_int_t)run->trees, "accepted",
		(double)run->tokens / (double)run->trees, "rows", each(sums, (double)sums->rows),
		"used", each(sums, (double)sums->used), "budgets", points);

	json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(json);
}

/* ---- The command. ---- */

static int check(
	struct budget_options *o, const char *budgets, const char *format, struct error *err)
{
	if (!o->model || !o->workload)
		return error_set(err, EINVAL, "--model and --workload are needed");
	int rc = format ? option_format(format, &o->json, err) : 0;

	if (rc == 0 && budgets)
		rc = option_numbers("budgets", budgets, 1, LIMIT_EXPERTS, BUDGET_POINTS, o->experts,
			&o->n_points, err);
	return rc;
}

static int run_all(struct budget_options *o, struct error *err)
{
	struct budget_run *run = calloc(1, sizeof(*run));

	if (!run)
		return error_set(err, ENOMEM, "no memory to measure");
	run->options = o;
	int rc = measure(run, o, err);
	if (rc == 0 && o->json)
		print_json(run);
	else if (rc == 0)
		print_text(run);
	budget_layers_exit(&run->layers);
	draft_reply_exit(&run->reply);
	if (o->draft)
		engine_close(&run->draft);
	engine_close(&run->target);
	free(run);
	return rc;
}

int bench_budget(int argc, char **argv)
{
	struct budget_options o = {.nodes = 63,
		.depth = 8,
		.width = 8,
		.limit = UINT32_MAX,
		.max_tokens = 128,
		.threads = 1};
	const char *budgets = NULL, *format = NULL;
	const struct arg args[] = {
		{"model", ARG_STRING, &o.model, 0, 0, "FILE", "the GGUF model (needed)"},
		{"workload", ARG_STRING, &o.workload, 0, 0, "FILE",
			"prompts, one JSON object a line (needed)"},
		{"draft", ARG_STRING, &o.draft, 0, 0, "FILE",
			"a draft model, which grows the trees; default: the model itself"},
		{"profile", ARG_STRING, &o.profile, 0, 0, "FILE",
			"uses of experts for the ranking static, of cache profile; without it "
			"there is none"},
		{"budgets", ARG_STRING, &budgets, 0, 0, "N,...",
			"numbers of experts, default every eighth of a layer's"},
		{"nodes", ARG_U32, &o.nodes, 1, LIMIT_DRAFT_NODES, "N",
			"tokens of a tree, default 63"},
		{"depth", ARG_U32, &o.depth, 1, LIMIT_DRAFT_DEPTH, "N",
			"tokens of a path, default 8"},
		{"width", ARG_U32, &o.width, 1, TREE_WIDTH, "N", "tokens behind one, default 8"},
		{"limit", ARG_U32, &o.limit, 1, UINT32_MAX, "N", "the most prompts"},
		{"max-tokens", ARG_U32, &o.max_tokens, 1, 1 << 14, "N",
			"the most tokens of an answer, default 128"},
		{"threads", ARG_U32, &o.threads, 1, LIMIT_THREADS, "N", "default 1"},
		{"format", ARG_FORMAT, &format, 0, 0, "text|json", "default text"},
		{0},
	};
	struct error err = {""};

	if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		puts("usage: outrider-bench budget --model FILE --workload FILE.jsonl [OPTIONS]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	int rc = args_parse(argc, argv, args, &err);
	if (rc == 0)
		rc = check(&o, budgets, format, &err);
	if (rc == 0)
		rc = run_all(&o, &err);
	if (rc < 0)
		fprintf(stderr, "outrider-bench budget: %s\n", err.text);
	return rc == 0 ? EX_OK : rc == -EINVAL ? EX_USAGE : error_exit_status(rc);
}
