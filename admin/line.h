/*
 * The command line of outriderctl: the words of a command, and options in any order. The table of
 * commands says which options each takes; an option without effect is refused by name.
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

/* True when the line asks for JSON, even if it is wrong elsewhere, so that errors are printed as
 * JSON. */
bool line_wants_json(int argc, char **argv);

/* Reads the command line; the values of options go into *ctl. 0, or an exit status after a message.
 */
int line_read(struct ctl *ctl, int argc, char **argv, struct line *line);

/* The options as they are written: ["--json", "--session"]. */
json_t *line_options_json(unsigned options);

/* Checks for options of `given` that a command does not take: 0, or EX_USAGE after naming the first
 * and the commands that do take it. words: the name of the command. who: the names of the commands
 * that take an option, for the message. */
int line_check(const struct line *line, const char *command, unsigned taken,
	void (*who)(unsigned option, char *out, size_t bytes));
