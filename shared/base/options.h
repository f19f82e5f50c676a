/*
 * The command line that every daemon has: where the processes meet, where the settings come from, and short forms of
 * some settings. One place, so that the four read flags, files and overrides alike and in the same order: defaults, the
 * configuration file and its drop-ins, then the command line from left to right.
 */
#pragma once

#include "shared/base/config.h"

/* --model FILE as another way to write --set model=FILE. */
struct options_shortcut {
	const char *flag, *key, *argument, *help;
};

enum { OPTIONS_SHORTCUTS = 4, OPTIONS_KEYS = 96 };

struct options_spec {
	const char *program; /* "outrider-verifier" */
	const char *summary; /* one sentence */
	const char *config_path; /* read when it is there */
	const struct config_key *keys;
	struct options_shortcut shortcuts[OPTIONS_SHORTCUTS]; /* ended by flag == NULL when fewer */
};

struct options {
	const char *runtime_dir; /* NULL: the default */
	bool check; /* -n: everything is checked, nothing is started */
	int verbosity;
	char config_path[4096]; /* the file that was read, or would have been if it were there */
	bool on_command_line[OPTIONS_KEYS]; /* whether it set this key, in the table's order */
};

/* Fills options and *config. 1: go on; 0: all is done (help, version or the configuration was written to `to`); -EINVAL:
 * the command line itself is wrong; another -errno: a file or a value is. */
int options_read(const struct options_spec *spec, int argc, char **argv, struct options *options,
	void *config, FILE *to, struct error *err);

/* What getopt_long refused (opterr 0) when it returned flag, '?' or ':', in words: "unknown option -x", "--set needs a value".
 * letters: the short options it was given, ":" before them. */
void options_refused(int flag, const char *letters, char **argv, char *out, size_t bytes);

/* Whether --json, or --format json as the last word about it, is in a command line, which may be wrong before it. Reads argv as
 * getopt_long does with these letters (":" before them) and flags, and leaves it to be read from the beginning. */
struct option;
bool options_want_json(int argc, char **argv, const char *letters, const struct option *flags);

/* The exit status for what options_read returned below 1. */
int options_exit_status(int result);
