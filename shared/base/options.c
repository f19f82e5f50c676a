#include "shared/base/options.h"

#include "shared/base/columns.h"
#include "shared/base/standard.h"

#include <assert.h>
#include <getopt.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

enum {
	OPT_RUNTIME_DIR = 256,
	OPT_CONFIG,
	OPT_CONFIG_DIR,
	OPT_SET,
	OPT_PRINT_CONFIG,
	OPT_VERSION,
	OPT_SHORTCUT, /* + index */
};

static const char short_flags[] = ":ndvh"; /* with this, a missing value gives ':' */
static const struct option common[] = {
	{"runtime-dir", required_argument, NULL, OPT_RUNTIME_DIR},
	{"config", required_argument, NULL, OPT_CONFIG},
	{"config-dir", required_argument, NULL, OPT_CONFIG_DIR},
	{"set", required_argument, NULL, OPT_SET},
	{"print-config", no_argument, NULL, OPT_PRINT_CONFIG},
	{"check", no_argument, NULL, 'n'},
	{"foreground", no_argument, NULL, 'd'},
	{"verbose", no_argument, NULL, 'v'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPT_VERSION},
};
#define N_COMMON (sizeof(common) / sizeof(common[0]))

static void flag_table(
	const struct options_spec *spec, struct option table[N_COMMON + OPTIONS_SHORTCUTS + 1])
{
	memcpy(table, common, sizeof(common));
	struct option *next = table + N_COMMON;
	for (int i = 0; i < OPTIONS_SHORTCUTS && spec->shortcuts[i].flag; i++)
		*next++ = (struct option){
			spec->shortcuts[i].flag, required_argument, NULL, OPT_SHORTCUT + i};
	*next = (struct option){0};
}

enum { HELP_INDENT = 22 };

static void help_line(FILE *to, const char *flag, const char *argument, const char *text)
{
	int n = fprintf(to, "  --%s%s%s", flag, *argument ? " " : "", argument);
	n += fprintf(to, "%*s", n < HELP_INDENT ? HELP_INDENT - n : 1, "");
	columns_fold(to, text, n, HELP_INDENT);
}

/* The name of the configuration file without its folder. */
static const char *file_name(const struct options_spec *spec)
{
	const char *slash = strrchr(spec->config_path, '/');
	return slash ? slash + 1 : spec->config_path;
}

static void help(const struct options_spec *spec, FILE *to)
{
	fprintf(to, "usage: %s [options]\n%s\n\n", spec->program, spec->summary);
	for (int i = 0; i < OPTIONS_SHORTCUTS && spec->shortcuts[i].flag; i++)
		help_line(to, spec->shortcuts[i].flag, spec->shortcuts[i].argument,
			spec->shortcuts[i].help);
	char config[256];
	snprintf(config, sizeof(config),
		"read settings from FILE and FILE.d/*.conf (default: %s, if it exists)",
		spec->config_path);
	help_line(to, "set", "KEY=VALUE",
		"any setting, overriding the file; --print-config lists them");
	help_line(to, "config", "FILE", config);
	fprintf(to,
		"  --config-dir DIR    the same with DIR/%s\n"
		"  --runtime-dir DIR   the runtime directory of the service (default: outrider(1), "
		"ENVIRONMENT)\n"
		"  -n, --check         check the settings and exit\n"
		"  -d, --foreground    stay in the foreground (it always does)\n"
		"  -v, --verbose       log more; twice: log everything\n"
		"  --print-config      print every setting with its range and default, as a file\n"
		"  --help, --version\n",
		file_name(spec));
}

/* Where the configuration is: a given file, or the file of the default name in a given folder. */
struct place {
	const char *file, *directory; /* NULL: not given; at most one is */
};

static int take_place(const struct options_spec *spec, const struct place *place,
	struct options *options, struct error *err)
{
	size_t n, room = sizeof(options->config_path);
	struct stat st;
	if (place->file && place->directory)
		return error_set(err, EINVAL, "--config and --config-dir exclude each other");
	/* The file may be missing. A missing folder is a mistake. */
	if (place->directory && stat(place->directory, &st) < 0)
		return error_set(
			err, errno, "--config-dir %s: %s", place->directory, strerror(errno));
	if (place->directory)
		n = (size_t)snprintf(
			options->config_path, room, "%s/%s", place->directory, file_name(spec));
	else
		n = (size_t)snprintf(options->config_path, room, "%s",
			place->file ? place->file : spec->config_path);
	return n < room ? 0
			: error_set(err, ENAMETOOLONG, "%.64s...: the path is too long",
				  options->config_path);
}

void options_refused(int flag, const char *letters, char **argv, char *out, size_t bytes)
{
	/* A long option is the word before optind; a letter may be anywhere in its word. */
	const char *name = argv[optind > 1 ? optind - 1 : 1];
	bool is_letter = optopt > 0 && optopt < 256 && !strchr(letters + 1, optopt);

	if (flag == ':')
		snprintf(out, bytes, "%.64s needs a value", name);
	else if (is_letter)
		snprintf(out, bytes, "unknown option -%c", optopt);
	else
		snprintf(out, bytes, "unknown option %.64s%s", name,
			optopt ? ", which takes no value" : "");
}

/* Handles the flags that decide what happens and where the file is, in whatever order they come. 1:
 * continue. */
static int first_pass(const struct options_spec *spec, const struct option *table, int argc,
	char **argv, struct options *options, struct place *place, FILE *to, struct error *err)
{
	int flag;
	char refused[128];
	optind = 0;
	opterr = 0;
	while ((flag = getopt_long(argc, argv, short_flags, table, NULL)) != -1) {
		switch (flag) {
		case OPT_RUNTIME_DIR:
			options->runtime_dir = optarg;
			break;
		case OPT_CONFIG:
			place->file = optarg;
			break;
		case OPT_CONFIG_DIR:
			place->directory = optarg;
			break;
		case OPT_PRINT_CONFIG:
			config_print(spec->keys, to);
			return 0;
		case 'h':
			help(spec, to);
			return 0;
		case OPT_VERSION:
			fprintf(to, "%s %s\n", spec->program, OUTRIDER_VERSION);
			return 0;
		case 'n':
			options->check = true;
			break;
		case 'v':
			options->verbosity++;
			break;
		case '?':
		case ':':
			options_refused(flag, short_flags, argv, refused, sizeof(refused));
			return error_set(err, EINVAL, "%s; see --help", refused);
		default: /* the second pass handles settings */
			break;
		}
	}
	if (optind < argc)
		return error_set(err, EINVAL, "%s: unexpected argument; see --help", argv[optind]);
	return 1;
}

/* Applies "name=value" and records that the command line set it. */
static int set(const struct options_spec *spec, const char *assignment, struct options *options,
	void *config, struct error *err)
{
	char name[128];
	assert(assignment);
	int r = config_set(assignment, "command line", spec->keys, config, err);
	if (r < 0)
		return r;
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(assignment, "="), assignment);
	const struct config_key *key = config_find(spec->keys, name);
	assert(key && key - spec->keys < OPTIONS_KEYS);
	options->on_command_line[key - spec->keys] = true;
	return 0;
}

static int set_shortcut(const struct options_spec *spec, const struct options_shortcut *shortcut,
	const char *value, struct options *options, void *config, struct error *err)
{
	char assignment[2048];
	if ((size_t)snprintf(assignment, sizeof(assignment), "%s=%s", shortcut->key, value) >=
		sizeof(assignment))
		return error_set(
			err, EINVAL, "--%s %.64s...: the value is too long", shortcut->flag, value);
	return set(spec, assignment, options, config, err);
}

int options_read(const struct options_spec *spec, int argc, char **argv, struct options *options,
	void *config, FILE *to, struct error *err)
{
	struct option table[N_COMMON + OPTIONS_SHORTCUTS + 1];
	struct place place = {NULL, NULL};
	*options = (struct options){0};
	flag_table(spec, table);
	int r = first_pass(spec, table, argc, argv, options, &place, to, err);
	if (r == 0)
		return standard_written(to, err);
	if (r < 0)
		return r;
	config_defaults(spec->keys, config);
	r = take_place(spec, &place, options, err);
	if (r == 0)
		r = config_load(options->config_path, !place.file, spec->keys, config, err);
	int flag;
	optind = 0;
	while (r == 0 && (flag = getopt_long(argc, argv, short_flags, table, NULL)) != -1) {
		if (flag == OPT_SET)
			r = set(spec, optarg, options, config, err);
		else if (flag >= OPT_SHORTCUT)
			r = set_shortcut(spec, &spec->shortcuts[flag - OPT_SHORTCUT], optarg,
				options, config, err);
	}
	return r < 0 ? r : 1;
}

bool options_want_json(int argc, char **argv, const char *letters, const struct option *flags)
{
	char in_order[32];
	bool json = false;
	int flag, index = -1;

	opterr = 0;
	/* Words stay in place. Moved behind the options, one could be taken for a missing value. */
	snprintf(in_order, sizeof in_order, "-%s", letters + (letters[0] == '-'));
	/* 0 resets everything that getopt_long keeps between calls. */
	optind = 0;
	while ((flag = getopt_long(argc, argv, in_order, flags, &index)) != -1) {
		const char *name =
			index >= 0 && flag != '?' && flag != ':' ? flags[index].name : "";

		if (strcmp(name, "json") == 0)
			json = true;
		else if (strcmp(name, "format") == 0)
			json = strcmp(optarg, "json") == 0;
		index = -1;
	}
	optind = 0;
	return json;
}

int options_exit_status(int result)
{
	return result == -EINVAL ? EX_USAGE : error_exit_status(result);
}
