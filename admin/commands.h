/* The commands of outriderctl: one table, from which help, error messages and the shells'
 * completion are made. */
#pragma once

#include "admin/line.h"

struct command {
	const char *words[2]; /* the second may be NULL */
	int (*run)(struct ctl *ctl, int argc, char **argv);
	const char *arguments, *help;
	bool takes_arguments;
	unsigned options; /* the options that it takes: enum line_option */
	const char *more; /* for its own --help */
};

/* The command with whose name the words begin, or NULL; *n_words: how many of them are the name. */
const struct command *commands_find(int n, char **words, int *n_words);
/* The name of the command, such as "knob set". */
const char *commands_name(const struct command *command, char *out, size_t bytes);
/* True when it is the first word of commands with two words. */
bool commands_is_group(const char *word);
/* Prints that there is no such command, and the commands that exist, or the nearest one; EX_USAGE.
 */
int commands_unknown(int n, char **words);
/* Lists the commands that take the option, such as "knob set, cache set"; if nearly all do, it says
 * so. */
void commands_with(unsigned option, char *out, size_t bytes);
/* group: only the commands that begin with this word; NULL: all. */
void commands_usage(FILE *to, const char *group);
/* The same as JSON, {"commands": [...]}: each with its name, arguments, options and help. */
json_t *commands_json(const char *group);
void commands_usage_of(const struct command *command, FILE *to);
/* The same as JSON: an object as in commands_json, with its text. */
json_t *commands_json_of(const struct command *command);
