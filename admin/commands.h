/* The commands of outriderctl: one table, from which help, errors and the shells' completion come. */
#pragma once

#include "admin/line.h"

struct command {
	const char *words[2]; /* the second may be NULL */
	int (*run)(struct ctl *ctl, int argc, char **argv);
	const char *arguments, *help;
	bool takes_arguments;
	unsigned options; /* that it takes: enum line_option */
	const char *more; /* for its own --help */
};

/* The command that the words begin with, NULL when there is none; *n_words: how many of them are its name. */
const struct command *commands_find(int n, char **words, int *n_words);
/* "knob set". */
const char *commands_name(const struct command *command, char *out, size_t bytes);
/* Whether it is the first word of commands of two. */
bool commands_is_group(const char *word);
/* Says that there is no such command, and which there are, or the nearest; EX_USAGE. */
int commands_unknown(int n, char **words);
/* "knob set, cache set": those that take the option; in other words where nearly all do. */
void commands_with(unsigned option, char *out, size_t bytes);
/* group: only the commands that begin with this word; NULL: all. */
void commands_usage(FILE *to, const char *group);
/* The same as JSON, {"commands": [...]}: each with its name, arguments, options and help. */
json_t *commands_json(const char *group);
void commands_usage_of(const struct command *command, FILE *to);
/* The same as JSON, an object as commands_json lists them, and its text. */
json_t *commands_json_of(const struct command *command);
