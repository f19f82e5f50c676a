/*
 * The command line of outriderctl: the words of a command and options, in whatever order. The table of commands says which
 * options each takes; one that it would ignore is refused by its name.
 */
#pragma once

#include "admin/ctl.h"

enum { LINE_WORDS_MAX = 128 };

enum line_option {
	LINE_JSON = 1 << 0, /* --json, --format */
	LINE_SESSION = 1 << 1,
	LINE_FOR = 1 << 2,
	LINE_PERSIST = 1 << 3,
	LINE_NEXT_START = 1 << 4,
	LINE_IF = 1 << 5,
	LINE_LAST = 1 << 6,
	LINE_LAYERS = 1 << 7,
	LINE_ONCE = 1 << 8,
	LINE_ALL = 1 << 9,
};

struct line {
	char *words[LINE_WORDS_MAX];
	int n_words;
	const char *runtime_dir; /* NULL: not given */
	unsigned given; /* enum line_option */
	bool help, version;
};

/* Whether it asks for JSON, be it wrong elsewhere: what is wrong is said as JSON then. */
bool line_wants_json(int argc, char **argv);

/* Reads the command line; the values of options go into *ctl. 0, or an exit status after saying what is wrong. */
int line_read(struct ctl *ctl, int argc, char **argv, struct line *line);

/* Those options, as they are written: ["--json", "--session"]. */
json_t *line_options_json(unsigned options);

/* Options of `given` that a command does not take: 0 when there are none, or EX_USAGE after naming the first and the commands
 * that do. words: what the command is called. who: the names of the commands that take an option, for the sentence. */
int line_check(const struct line *line, const char *command, unsigned taken,
	void (*who)(unsigned option, char *out, size_t bytes));
