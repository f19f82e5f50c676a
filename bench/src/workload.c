#include "bench/src/workload.h"

#include "shared/base/error.h"
#include "shared/base/sampling.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

static const char usage[] =
	"usage: outrider-bench workload FILE.jsonl [--k 0,1,3,7,auto] [--drafter "
	"ngram|model|auto]\n"
	"                      [--rounds N] [--seconds S] [--limit PROMPTS] [--sessions N] "
	"[--max-tokens N]\n"
	"                      [--temperature T] [--ignore-eos] [--runtime-dir DIR] [--format "
	"text|json]\n"
	"                      [--json] [--plot FILE.svg|FILE.png]\n"
	"\nSends the prompts of FILE to the running service once per K and round.\n"
	"With one session at a time each prompt is sent with every K before the next prompt;\n"
	"with several at a time all prompts are sent with one K before the next K.\n"
	"Prints tokens/s (median of the rounds), acceptance by position, and distinct experts\n"
	"per iteration. No further round begins after S seconds. --max-tokens overrides FILE.\n";

static bool parse_count(const char *text, unsigned long low, unsigned long high, unsigned long *out)
{
	char *end;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value < low || value > high)
		return false;
	*out = value;
	return true;
}

static int parse_ks(const char *text, struct workload_options *options)
{
	char copy[128];
	if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy))
		return -EINVAL;
	char *rest = copy, *word;
	options->n_ks = 0;
	while ((word = strsep(&rest, ",")) != NULL) {
		unsigned long k;
		if (options->n_ks == WORKLOAD_KS)
			return -EINVAL;
		if (strcmp(word, "auto") == 0)
			options->ks[options->n_ks++] = WORKLOAD_K_AUTO;
		else if (parse_count(word, 0, LIMIT_DRAFT_DEPTH, &k))
			options->ks[options->n_ks++] = (int)k;
		else
			return -EINVAL;
	}
	return options->n_ks ? 0 : -EINVAL;
}

enum {
	OPT_K = 1,
	OPT_DRAFTER,
	OPT_ROUNDS,
	OPT_SECONDS,
	OPT_LIMIT,
	OPT_SESSIONS,
	OPT_TOKENS,
	OPT_TEMPERATURE,
	OPT_EOS,
	OPT_DIR,
	OPT_FORMAT,
	OPT_JSON,
	OPT_PLOT,
};

static const struct option long_options[] = {{"k", 1, NULL, OPT_K},
	{"drafter", 1, NULL, OPT_DRAFTER}, {"rounds", 1, NULL, OPT_ROUNDS},
	{"seconds", 1, NULL, OPT_SECONDS}, {"limit", 1, NULL, OPT_LIMIT},
	{"sessions", 1, NULL, OPT_SESSIONS}, {"max-tokens", 1, NULL, OPT_TOKENS},
	{"temperature", 1, NULL, OPT_TEMPERATURE}, {"ignore-eos", 0, NULL, OPT_EOS},
	{"runtime-dir", 1, NULL, OPT_DIR}, {"format", 1, NULL, OPT_FORMAT},
	{"json", 0, NULL, OPT_JSON}, {"plot", 1, NULL, OPT_PLOT}, {"help", 0, NULL, 'h'}, {0}};

static int refuse(const char *option, const char *takes)
{
	fprintf(stderr, "outrider-bench workload: --%s %s: takes %s\n", option, optarg, takes);
	return EX_USAGE;
}

/* A numeric option into *out. */
static int take_number(const char *option, unsigned long high, size_t *out)
{
	unsigned long n;
	char takes[64];
	snprintf(takes, sizeof(takes), "1 to %lu", high);
	if (!parse_count(optarg, 1, high, &n))
		return refuse(option, takes);
	*out = n;
	return EX_OK;
}

/* One option; EX_OK, or the exit status after its message. */
static int take_option(int option, struct workload_options *options)
{
	size_t n = 0;
	int status;
	char *end;
	switch (option) {
	case OPT_K:
		return parse_ks(optarg, options) == 0
			       ? EX_OK
			       : refuse("k", "numbers 0 to 63 and auto, by commas");
	case OPT_DRAFTER:
		options->drafter = optarg;
		return EX_OK;
	case OPT_ROUNDS:
		return take_number("rounds", WORKLOAD_ROUNDS, &options->rounds);
	case OPT_SECONDS:
		return take_number("seconds", 3600, &options->seconds);
	case OPT_LIMIT:
		return take_number("limit", 1000000, &options->limit);
	case OPT_SESSIONS:
		return take_number("sessions", LIMIT_SESSIONS, &options->sessions);
	case OPT_TOKENS:
		status = take_number("max-tokens", LIMIT_CONTEXT, &n);
		options->max_tokens = (uint32_t)n;
		return status;
	case OPT_TEMPERATURE:
		options->temperature = strtof(optarg, &end);
		return end != optarg && !*end
			       ? EX_OK
			       : refuse("temperature", sampling_range(SAMPLING_TEMPERATURE));
	case OPT_EOS:
		options->ignore_eos = true;
		return EX_OK;
	case OPT_DIR:
		options->runtime_dir = optarg;
		return EX_OK;
	case OPT_FORMAT:
		options->json = strcmp(optarg, "json") == 0;
		return options->json || strcmp(optarg, "text") == 0
			       ? EX_OK
			       : refuse("format", "text or json");
	case OPT_JSON:
		options->json = true;
		return EX_OK;
	case OPT_PLOT:
		options->plot = optarg;
		return EX_OK;
	default:
		fputs(usage, stderr);
		return EX_USAGE;
	}
}

static void print_json(const struct workload_options *options, const struct workload_row *rows)
{
	json_t *json = workload_json(options, rows);
	json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(json);
}

int bench_workload(int argc, char **argv)
{
	struct workload_options options = {
		.drafter = "auto", .rounds = 3, .limit = SIZE_MAX, .sessions = 1};
	int option, status;
	parse_ks("0,1,3,7,auto", &options);
	while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		if (option == 'h') {
			fputs(usage, stdout);
			return EX_OK;
		}
		if ((status = take_option(option, &options)) != EX_OK)
			return status;
	}
	if (optind != argc - 1) {
		fputs(usage, stderr);
		return EX_USAGE;
	}
	options.file = argv[optind];
	if (options.plot && workload_plot_check(&options) < 0)
		return EX_USAGE;

	struct workload_row *rows = calloc(options.n_ks, sizeof(*rows));
	if (!rows)
		return EX_OSERR;
	int r = workload_run(&options, rows);
	if (r == 0 && options.json)
		print_json(&options, rows);
	else if (r == 0)
		workload_table(&options, rows, stdout);
	if (r == 0 && options.plot)
		r = workload_plot(&options, rows);
	free(rows);
	return r == 0 ? EX_OK : error_exit_status(r);
}
