#include "admin/commands.h"

#include "shared/base/nearest.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <sysexits.h>

/* Options that several commands take, as each lists them. */
#define SESSION_HELP(what) "  --session SESSION   " what "; outriderctl sessions lists them\n"
#define IF_HELP "  --if VALUE          only if the knob before it has this value now\n"
#define SET_HELP                                                                                   \
	"  --for TIME          go back by itself after this time: 30s, 10m, 2h, 1d; at most 30d\n" \
	"  --persist           now, and at every start from the next on: lasting, by a drop-in\n"  \
	"                      beside the configuration file\n"                                    \
	"  --next-start        not now, but at every start from the next on: as lasting\n" IF_HELP
#define PHASES_HELP                                                                               \
	"PHASE: baseline, K = 0 is measured; test, a K is on trial; set, a K was found to pay "   \
	"and\n"                                                                                   \
	"is kept; off, none pays, K = 0; fixed, K is the request's own. UTILITY: tokens per\n"    \
	"iteration, over the time of an iteration as a multiple of one at K = 0; above 1 drafts " \
	"pay.\n"

enum {
	SET_OPTIONS = LINE_JSON | LINE_FOR | LINE_PERSIST | LINE_NEXT_START | LINE_IF,
	RESET_OPTIONS = LINE_JSON | LINE_SESSION | LINE_PERSIST | LINE_NEXT_START | LINE_IF,
};

static const struct command commands[] = {
	{{"status"}, ctl_status, "", "what is served, how fast, how full, what is wrong", false,
		LINE_JSON | LINE_ALL,
		"Ends with 0 if all processes answer, else with 69.\n\n"
		"  --all               also every counter of each process\n"},
	{{"sessions"}, ctl_sessions, "", "what is being generated", false, LINE_JSON,
		"PROMPT, OUTPUT and MAX are tokens; K is what is drafted at a time, ACC the share "
		"of\n"
		"drafted tokens that were accepted, TOK/S the tokens of its output over the time "
		"since the\n"
		"session began, with the wait for a place and the prompt.\n"
		"Finished sessions are shown while they are kept for their client.\n"},
	{{"policy", "get"}, ctl_policy_get, "",
		"the policy, its knobs with their ranges, its sessions", false,
		LINE_JSON | LINE_ALL,
		"Of the sessions those that are being generated, or wait to be. ACC is the share "
		"of\n"
		"drafted tokens that are accepted, ETR the tokens of an iteration, ITER MS what "
		"one "
		"takes:\n"
		"means of the session's last ones. BASE MS is what one at K = 0 took, AGE "
		"iterations ago.\n"
		"UTILITY is ETR x BASE MS / ITER MS, DECIDED what the policy decided by last: of "
		"cascade\n"
		"as measured in a test, of yield as expected.\n" PHASES_HELP "\n"
		"  --all               also those that have ended and are still remembered\n"},
	{{"policy", "set"}, ctl_policy_set, "NAME | KNOB=VALUE ...",
		"change the policy (static:3, cascade, yield) or knobs, now", true,
		SET_OPTIONS | LINE_SESSION,
		"Everything is checked before anything changes; what is refused is named with its "
		"range.\n"
		"`policy get` lists the knobs.\n\n" SESSION_HELP("for this session alone")
			SET_HELP},
	{{"policy", "watch"}, ctl_policy_watch, "", "each decision with the figures behind it",
		false, LINE_JSON | LINE_ONCE | LINE_ALL,
		"First the decisions so far about sessions that are being generated, then each new "
		"one:\n"
		"its time, its session, K before and from now on, its phase, the utility and the "
		"reason.\n"
		"\"K 0 -> 3 for 4, then 0\" is a trial of 4 iterations. With JSON a line each, "
		"with "
		"--once one\n"
		"document of all of them.\n" PHASES_HELP "\n"
		"  --all               first also those about sessions that have ended\n"
		"  --once              print what there is and end\n"},
	{{"policy", "explain"}, ctl_policy_explain, "[SESSION]",
		"why a session's K is what it is now", true, LINE_JSON | LINE_SESSION,
		"In words, then what is known of each K, the acceptance by position, and the last "
		"decisions.\n"
		"DRAFTED and TOKENS are of an iteration of the session; TIME MS is what the "
		"iteration takes, a pass\n"
		"of the model for the whole batch and the wait for drafts; TOKENS/S, +- their "
		"standard deviation,\n"
		"are those while it decodes, of the batch or the session, as the line below says; "
		"what a trial\n"
		"BRINGS and COSTS is in iterations at the best K.\n"
		"The star is the K in force.\n" PHASES_HELP
		"\n" SESSION_HELP("this one; without it the one seen last")},
	{{"policy", "plot"}, ctl_policy_plot, "[SESSION] [FILE.svg|FILE.png]",
		"K, tokens, cost and utility of a session over its iterations", true,
		LINE_JSON | LINE_SESSION,
		"From the journal of the policy-controller. In the terminal, or as a picture "
		"(gnuplot is needed\n"
		"for one); --json prints the journal's entries. A column in the terminal is the "
		"mean of\n"
		"several iterations where they are many. The utility is of moving means of the "
		"tokens and the times\n"
		"that are drawn, where K was above 0; the time at K = 0 is the one measured last "
		"before each\n"
		"iteration.\n\n" SESSION_HELP("this one; without it the newest")},
	{{"knob", "list"}, ctl_knob_list, "[PROCESS | KNOB ...]",
		"every knob with its value and range", true, LINE_JSON | LINE_SESSION,
		"A knob that is live may change while its process runs; the others need a "
		"restart.\n\n" SESSION_HELP("the values of this one")},
	{{"knob", "get"}, ctl_knob_get, "KNOB ...", "all about some knobs", true,
		LINE_JSON | LINE_SESSION,
		"A knob is named as k_max, or as policy.k_max where several processes have one of "
		"that name.\n"
		"Ends with 69 when a process whose knob it is does not run: knob list says what it "
		"takes.\n\n" SESSION_HELP("the values of this one")},
	{{"knob", "set"}, ctl_knob_set, "KNOB=VALUE ...", "change knobs, now", true,
		SET_OPTIONS | LINE_SESSION,
		"All of them or none, also over several processes. What is refused is named with "
		"its range.\n\n" SET_HELP SESSION_HELP("for this session alone")},
	{{"knob", "reset"}, ctl_knob_reset, "KNOB ...", "back to what the process was started with",
		true, RESET_OPTIONS,
		"\n  --persist           to what is configured without --persist or --next-start, "
		"now and at every\n"
		"                      start from the next on\n"
		"  --next-start        the same, but not now\n" IF_HELP SESSION_HELP(
			"to what all sessions have")},
	{{"knob", "history"}, ctl_knob_history, "[PROCESS | KNOB ...]",
		"who changed what, when, from what to what", true, LINE_JSON | LINE_LAST,
		"\n  --last N            the newest N\n"},
	{{"knob", "complete"}, ctl_knob_complete, "set|name|any WORD",
		"what the shell may complete a word to", true, LINE_JSON,
		"set: KNOB=VALUE; name: a knob; any: a knob or a process.\n"},
	{{"cache", "set"}, ctl_cache_set, "KNOB=VALUE ...",
		"knob set for the knobs of the expert-cache", true, SET_OPTIONS, "\n" SET_HELP},
	{{"cache", "stats"}, ctl_cache_stats, "",
		"the expert cache: budget, hits, link, hints, memory", false,
		LINE_JSON | LINE_LAYERS,
		"Counts since the cache's memory was made, also by processes before this one.\n"
		"A look-up is a hit when the expert is in its slot then; a miss is waited for "
		"(stalled)\n"
		"or read by the verifier itself. A load is a prefetch when it was in its slot "
		"before anybody\n"
		"asked for it: useful when a token has chosen the expert since, wasted when it was "
		"evicted\n"
		"before one did, unused yet otherwise. One that was asked for while it was being "
		"read counts as\n"
		"late, and its load as a demand's; one that was no longer wanted before its read "
		"began or ended\n"
		"as taken back.\n"
		"Of hints, by source: recall is the share of experts used that the source had "
		"hinted before they\n"
		"were asked for, in those passes of a layer for which it hinted anything; the line "
		"\"any\" is of the\n"
		"passes that some source hinted for, so it may be below a source that was silent "
		"in the hard ones.\n"
		"Precision is the share of hinted ones that were used, lead the time from hint to "
		"use, late those\n"
		"for what had been asked for already.\n\n"
		"  --layers            each layer's hits, loads, evictions, bytes, stalls, "
		"prefetches "
		"and hints\n"},
	{{"cache", "top"}, ctl_cache_top, "", "what each layer does, each second", false,
		LINE_JSON | LINE_ONCE,
		"Until it is interrupted; without a terminal, one second of it. RATE is the share "
		"of "
		"look-ups that\n"
		"hit, STALL the share of the time that a look-up was waited for.\n\n"
		"  --once              one second and end\n"},
	{{"cache", "hot"}, ctl_cache_hot, "[N]", "the experts that are used most", true, LINE_JSON,
		"N experts, 20 when it is not given. A use is a token that chose it, SHARE its "
		"share "
		"of all uses.\n"},
	{{"trace"}, ctl_trace, "[TIME] [FILE]",
		"what every process does, for Perfetto (2s, outrider-trace.json)", true, LINE_JSON,
		"Writes a timeline of drafts, passes, expert loads and decisions of all processes "
		"on one clock,\n"
		"in the Trace Event Format. Open it at ui.perfetto.dev or chrome://tracing. TIME "
		"is "
		"from 1ms to\n"
		"1m, with its unit; an interrupt ends it early. FILE appears when it is whole.\n"
		"Ends with 69 when no process answers.\n"},
	{{"top"}, ctl_top, "", "a live screen; q leaves", false, LINE_JSON | LINE_ONCE,
		"Without a terminal, one print of it. Ends with 69 when no process answers. ACC "
		"and "
		"UTIL as ACC and\n"
		"UTILITY of policy get.\n\n"
		"  --once              print what there is and end\n"},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0], NAME_BYTES = 64, WORDS_COLUMNS = 34 };

/* Of no use to a person: neither lists nor completion offer it. */
static bool is_for_shells(const struct command *c)
{
	return c->run == ctl_knob_complete;
}

const char *commands_name(const struct command *command, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s%s%s", command->words[0], command->words[1] ? " " : "",
		command->words[1] ? command->words[1] : "");
	return out;
}

void commands_usage(FILE *to, const char *group)
{
	fputs("usage: outriderctl [options] COMMAND\n\n", to);
	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];
		char name[NAME_BYTES], words[2 * NAME_BYTES];

		if (is_for_shells(c) || (group && strcmp(group, c->words[0]) != 0))
			continue;
		snprintf(words, sizeof words, "%s%s%s", commands_name(c, name, sizeof name),
			c->arguments[0] ? " " : "", c->arguments);
		/* What is longer has a line of its own. */
		if (strlen(words) > WORDS_COLUMNS)
			fprintf(to, "  %s\n%*s%s\n", words, 2 + WORDS_COLUMNS + 1, "", c->help);
		else
			fprintf(to, "  %-*s %s\n", WORDS_COLUMNS, words, c->help);
	}
	fputs("\n"
	      "  --runtime-dir DIR   where the service is\n"
	      "  --format text|json  how to print; text is the default\n"
	      "  --json              as --format json; what is wrong is JSON too, on standard "
	      "error\n"
	      "  --help              with a command: all about it, and the options it takes\n"
	      "  --version\n",
		to);
}

void commands_usage_of(const struct command *command, FILE *to)
{
	char name[NAME_BYTES];

	fprintf(to, "usage: outriderctl %s%s%s [options]\n%c%s.\n%s",
		commands_name(command, name, sizeof name), command->arguments[0] ? " " : "",
		command->arguments, toupper((unsigned char)command->help[0]), command->help + 1,
		command->more);
	fputs("\n  --runtime-dir DIR   where the service is\n", to);
	if (command->options & LINE_JSON)
		fputs("  --format text|json  how to print; text is the default\n"
		      "  --json              as --format json\n",
			to);
}

json_t *commands_json_of(const struct command *command)
{
	char name[NAME_BYTES];

	return json_pack("{s:s,s:s,s:s,s:s,s:o}", "name", commands_name(command, name, sizeof name),
		"arguments", command->arguments, "help", command->help, "more", command->more,
		"options", line_options_json(command->options));
}

json_t *commands_json(const char *group)
{
	json_t *list = json_array();

	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!is_for_shells(&commands[i]) &&
			(!group || strcmp(group, commands[i].words[0]) == 0))
			json_array_append_new(list, commands_json_of(&commands[i]));
	return json_pack("{s:o}", "commands", list);
}

const struct command *commands_find(int n, char **words, int *n_words)
{
	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];

		*n_words = c->words[1] ? 2 : 1;
		if (n >= *n_words && strcmp(c->words[0], words[0]) == 0 &&
			(!c->words[1] || strcmp(c->words[1], words[1]) == 0))
			return c;
	}
	return NULL;
}

bool commands_is_group(const char *word)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (commands[i].words[1] && strcmp(commands[i].words[0], word) == 0)
			return true;
	return false;
}

void commands_with(unsigned option, char *out, size_t bytes)
{
	size_t used = 0, n = 0;

	out[0] = '\0';
	for (size_t i = 0; i < N_COMMANDS; i++)
		n += (commands[i].options & option) != 0;
	if (n > N_COMMANDS / 2) {
		snprintf(out, bytes, "the other commands");
		return;
	}
	for (size_t i = 0; i < N_COMMANDS; i++) {
		char name[NAME_BYTES];

		if (commands[i].options & option && used < bytes)
			used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "",
				commands_name(&commands[i], name, sizeof name));
	}
}

/* What may follow "knob". */
static void list_second_words(const char *first, char *out, size_t bytes)
{
	size_t used = 0;

	for (size_t i = 0; i < N_COMMANDS; i++)
		if (commands[i].words[1] && strcmp(commands[i].words[0], first) == 0 &&
			!is_for_shells(&commands[i]) && used < bytes)
			used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "",
				commands[i].words[1]);
}

int commands_unknown(int n, char **words)
{
	char name[160], seconds[256] = "", nearest[NAME_BYTES] = "";
	size_t best = SIZE_MAX;
	bool group = commands_is_group(words[0]);

	snprintf(name, sizeof name, "%.64s%s%.64s", words[0], n > 1 ? " " : "",
		n > 1 ? words[1] : "");
	for (size_t i = 0; i < N_COMMANDS; i++) {
		char known[NAME_BYTES];

		if (is_for_shells(&commands[i]))
			continue;
		/* Of a word that is right only what may follow it is wrong. */
		if (group && strcmp(commands[i].words[0], words[0]) != 0)
			continue;
		commands_name(&commands[i], known, sizeof known);
		/* A command of one word may have arguments behind it. */
		size_t distance = nearest_distance(commands[i].words[1] ? name : words[0], known);

		if (distance >= best)
			continue;
		best = distance;
		snprintf(nearest, sizeof nearest, "%s", known);
	}
	if (nearest_worth(name, best))
		return ctl_fail(EX_USAGE,
			"no command \"%s\"; did you mean %s? outriderctl --help lists them", name,
			nearest);
	if (group) {
		list_second_words(words[0], seconds, sizeof seconds);
		if (n == 1)
			return ctl_fail(
				EX_USAGE, "%.64s is followed by one of: %s", words[0], seconds);
		return ctl_fail(EX_USAGE, "no command \"%s\"; %.64s is followed by one of: %s",
			name, words[0], seconds);
	}
	return ctl_fail(EX_USAGE, "no command \"%s\"; outriderctl --help lists them", name);
}
