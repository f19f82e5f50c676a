#include "services/drafter/options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CONFIG OUTRIDER_SYSCONFDIR "/outrider/drafter.conf"

enum {
	OPTION_RUNTIME = 256,
	OPTION_CONFIG,
	OPTION_DRAFT,
	OPTION_SET,
	OPTION_PRINT,
	OPTION_VERSION
};

static const struct option flags[] = {
	{"runtime-dir", required_argument, NULL, OPTION_RUNTIME},
	{"config", required_argument, NULL, OPTION_CONFIG},
	{"draft", required_argument, NULL, OPTION_DRAFT},
	{"set", required_argument, NULL, OPTION_SET},
	{"print-config", no_argument, NULL, OPTION_PRINT},
	{"check", no_argument, NULL, 'n'},
	{"foreground", no_argument, NULL, 'd'},
	{"verbose", no_argument, NULL, 'v'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPTION_VERSION},
	{NULL, 0, NULL, 0},
};

static void help(void)
{
	puts("usage: outrider-drafter [--runtime-dir DIR] [--config FILE] [--set KEY=VALUE]... "
	     "[-ndv]\n"
	     "Chooses how many tokens are drafted per iteration, from what the verifier "
	     "measures.\n\n"
	     "  --runtime-dir DIR  where the sockets are (default: OUTRIDER_RUNTIME_DIR)\n"
	     "  --config FILE      configuration (default: " DEFAULT_CONFIG ")\n"
	     "  --draft FILE       draft model (key draft)\n"
	     "  --set KEY=VALUE    overrides one key; --print-config lists them\n"
	     "  -n, --check        checks the configuration and exits\n"
	     "  -d, --foreground   stays in the foreground (it always does)\n"
	     "  -v, --verbose      logs more; twice: everything\n"
	     "  --print-config     prints a commented configuration file\n"
	     "  --help, --version");
}

/* The flags that decide where the settings come from are read first, whatever their order. */
static int first_pass(struct options *options, int argc, char **argv, struct error *err)
{
	int flag;
	optind = 0;
	opterr = 0;
	while ((flag = getopt_long(argc, argv, "ndvh", flags, NULL)) != -1) {
		switch (flag) {
		case OPTION_RUNTIME:
			options->runtime_dir = optarg;
			break;
		case OPTION_CONFIG:
			options->config_path = optarg;
			break;
		case OPTION_DRAFT:
		case OPTION_SET:
		case 'd':
			break;
		case OPTION_PRINT:
			config_print(drafter_config_keys, stdout);
			return 0;
		case 'n':
			options->check = true;
			break;
		case 'v':
			options->verbosity++;
			break;
		case 'h':
			help();
			return 0;
		case OPTION_VERSION:
			puts("outrider-drafter " OUTRIDER_VERSION);
			return 0;
		default:
			return error_set(err, EINVAL,
				"%s: unknown option, or one without its argument; see --help",
				argv[optind - 1]);
		}
	}
	if (optind < argc)
		return error_set(err, EINVAL, "%s: no arguments are expected", argv[optind]);
	return 1;
}

static int set_draft(const char *path, struct options *options, struct error *err)
{
	char assignment[sizeof(options->config.draft) + 8];
	if ((size_t)snprintf(assignment, sizeof(assignment), "draft=%s", path) >=
		sizeof(assignment))
		return error_set(err, EINVAL, "--draft %.64s...: the path is too long", path);
	return config_set(assignment, "command line", drafter_config_keys, &options->config, err);
}

int options_read(struct options *options, int argc, char **argv, struct error *err)
{
	memset(options, 0, sizeof(*options));
	int r = first_pass(options, argc, argv, err);
	if (r <= 0)
		return r;
	config_defaults(drafter_config_keys, &options->config);
	r = config_load(options->config_path ? options->config_path : DEFAULT_CONFIG,
		!options->config_path, drafter_config_keys, &options->config, err);
	int flag;
	optind = 0;
	while (r == 0 && (flag = getopt_long(argc, argv, "ndvh", flags, NULL)) != -1) {
		if (flag == OPTION_SET)
			r = config_set(
				optarg, "command line", drafter_config_keys, &options->config, err);
		else if (flag == OPTION_DRAFT)
			r = set_draft(optarg, options, err);
	}
	if (r == 0)
		r = drafter_config_resolve(&options->config, err);
	if (r < 0)
		return r;
	return options->check ? 0 : 1;
}
