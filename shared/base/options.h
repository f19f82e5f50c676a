/*
 * The command line that every daemon has: the runtime directory, the configuration file, and short
 * forms of some settings. All four daemons read flags, files and overrides here, in the same order:
 * defaults, the configuration file and its drop-ins, then the command line from left to right.
 */
#pragma once

#include "shared/base/config.h"

/* A flag such as --model FILE, another way to write --set model=FILE. */
struct options_shortcut {
	const char *flag, *key, *argument, *help;
};

enum { OPTIONS_SHORTCUTS = 4, OPTIONS_KEYS = 96 };

struct options_spec {
	const char *program; /* "outrider-verifier" */
	const char *summary; /* one sentence */
	const char *config_path; /* read if it exists */
	const struct config_key *keys;
	struct options_shortcut shortcuts[OPTIONS_SHORTCUTS]; /* ended by flag == NULL when fewer */
};

struct options {
	const char *runtime_dir; /* NULL: use the default */
	bool check; /* -n: check everything, start nothing */
	int verbosity;
	char config_path[4096]; /* the file that was read, or would have been if it existed */
	/* the command line set this key; in the table's order */
	bool on_command_line[OPTIONS_KEYS];
};

/* Fills options and *config. 1: continue. 0: done (help, the version or the configuration was
 * printed to `to`). -EINVAL: the command line is wrong. Another -errno: a file or a value is wrong.
 */
int options_read(const struct options_spec *spec, int argc, char **argv, struct options *options,
	void *config, FILE *to, struct error *err);

/* Describes what getopt_long refused (with opterr 0) when it returned flag, '?' or ':': "unknown
 * option -x", "--set needs a value". letters: the short options that it was given, ":" before them.
 */
void options_refused(int flag, const char *letters, char **argv, char *out, size_t bytes);

/* True when the command line asks for JSON: --json, or --format json as the last --format. The
 * command line may have errors before that. Reads argv as getopt_long does with these letters (":"
 * before them) and flags, and resets getopt_long. */
struct option;
bool options_want_json(int argc, char **argv, const char *letters, const struct option *flags);

/* The exit status for a result of options_read below 1. */
int options_exit_status(int result);
