#include "admin/commands.h"

#include "shared/base/nearest.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <sysexits.h>

/* Help for options that several commands take, as each lists them. */
#define SESSION_HELP(what) "  --session SESSION   " what "; outriderctl sessions lists them\n"
#define IF_HELP "  --if VALUE          only if the knob before it has this value now\n"
#define SET_HELP                                                                                \
	"  --for TIME          temporary: goes back by itself after this time, 30s, 10m, 2h, "  \
	"1d;\n"                                                                                 \
	"                      at most 30d\n"                                                   \
	"  --persist           now and at every later start, written to a drop-in file beside " \
	"the\n"                                                                                 \
	"                      configuration file\n"                                            \
	"  --next-start        the same, but not now\n" IF_HELP
#define PHASES_HELP                                                                                \
	"PHASE: baseline, K = 0 is being measured; test, a K is on trial; set, a K was found to\n" \
	"pay and is kept; off, no K pays, K = 0; fixed, the request fixed K.\n"                    \
	"UTILITY: tokens per iteration, divided by the time of an iteration as a multiple of one " \
	"at\n"                                                                                     \
	"K = 0. Above 1, drafts pay.\n"

enum {
	SET_OPTIONS = LINE_JSON | LINE_FOR | LINE_PERSIST | LINE_NEXT_START | LINE_IF,
	RESET_OPTIONS = LINE_JSON | LINE_SESSION | LINE_PERSIST | LINE_NEXT_START | LINE_IF,
};

static const struct command commands[] = {
	{{"status"}, ctl_status, "", "what is served, how fast, how full, what is wrong", false,
		LINE_JSON | LINE_ALL,
		"Exits with 0 if all processes answer, else with 69.\n\n"
		"  --all               also every counter of each process\n"},
	{{"sessions"}, ctl_sessions, "", "what is being generated", false, LINE_JSON,
		"PROMPT, OUTPUT and MAX are in tokens. K is the number of tokens drafted at a "
		"time. ACC is\n"
		"the share of drafted tokens that were accepted. TOK/S is the output's tokens per "
		"second\n"
		"since the session began, including the wait for a place and the prompt.\n"
		"Finished sessions are shown while they are kept for their client.\n"},
	{{"session", "sleep"}, ctl_session_sleep, "SESSION",
		"give up a session's KV pages, to disk, until it is woken", true, LINE_JSON,
		"SESSION is the name or the number of a session that runs or waits. Its pages are "
		"written to\n"
		"prefix_dir, if that is set. It is computed no further until session wake; its "
		"answer stays\n"
		"the same. Its client waits meanwhile.\n"},
	{{"session", "wake"}, ctl_session_wake, "SESSION", "let a session go on that sleeps", true,
		LINE_JSON,
		"What is on disk is read back; the rest of its tokens is computed again.\n"},
	{{"policy", "get"}, ctl_policy_get, "",
		"the policy, its knobs with their ranges, its sessions", false,
		LINE_JSON | LINE_ALL,
		"Shows the sessions that are running or waiting. ACC, ETR and ITER MS are means of "
		"the\n"
		"session's last iterations: the share of drafted tokens that were accepted, the "
		"tokens of\n"
		"an iteration, and its time. BASE MS is the time of an iteration at K = 0, "
		"measured AGE\n"
		"iterations ago. UTILITY is ETR x BASE MS / ITER MS. DECIDED is the utility behind "
		"the\n"
		"last decision: measured in a test for cascade, expected for yield.\n" PHASES_HELP
		"\n"
		"  --all               also finished sessions that are still remembered\n"},
	{{"policy", "set"}, ctl_policy_set, "NAME | KNOB=VALUE ...",
		"change the policy (yield, goodput, static:3 ...) or knobs, now", true,
		SET_OPTIONS | LINE_SESSION,
		"Checks everything before it changes anything. An error names the allowed range.\n"
		"`policy get` lists the knobs.\n\n" SESSION_HELP("for this session only") SET_HELP},
	{{"policy", "watch"}, ctl_policy_watch, "", "each decision with the figures behind it",
		false, LINE_JSON | LINE_ONCE | LINE_ALL,
		"Prints earlier decisions about running sessions, then each new decision: the "
		"time, the\n"
		"session, K before and after, the phase, the utility and the reason.\n"
		"\"K 0 -> 3 for 4, then 0\" is a trial of 4 iterations. With --json each decision "
		"is a line;\n"
		"with --once too they are one document.\n" PHASES_HELP "\n"
		"  --all               begin with decisions about finished sessions too\n"
		"  --once              print the decisions so far and end\n"},
	{{"policy", "explain"}, ctl_policy_explain, "[SESSION]",
		"why a session's K is what it is now", true, LINE_JSON | LINE_SESSION,
		"Prints the rule in words, a table of each K that the policy has figures for, the\n"
		"acceptance by position, and the last decisions. In the table:\n"
		"DRAFTED and TOKENS are those of an iteration of the session.\n"
		"TIME MS is the time of the iteration: a pass of the model for the whole batch, "
		"and the\n"
		"wait for drafts.\n"
		"TOKENS/S and +-, its standard deviation, are for decoding, of the batch or of the "
		"session,\n"
		"as the line below the table says.\n"
		"BRINGS and COSTS, of a trial, are in iterations at the best K.\n"
		"The star marks the K in force.\n" PHASES_HELP
		"\n" SESSION_HELP("this session; default: the one seen last")},
	{{"policy", "plot"}, ctl_policy_plot, "[SESSION] [FILE.svg|FILE.png]",
		"K, tokens, cost and utility of a session over its iterations", true,
		LINE_JSON | LINE_SESSION,
		"Plots the journal of the policy-controller in the terminal, or into a picture "
		"(this needs\n"
		"gnuplot). --json prints the journal's entries. If there are more iterations than "
		"columns,\n"
		"a column in the terminal is the mean of several.\n"
		"The utility is computed from moving means of tokens and times over iterations "
		"with K above\n"
		"0. The time at K = 0 is the last one measured before each "
		"iteration.\n\n" SESSION_HELP("this session; default: the newest")},
	{{"tolerance"}, ctl_tolerance, "[FILE.svg|FILE.png]",
		"whether drafts can pay, by size of the batch", true, LINE_JSON,
		"One line for each size of batch that was seen, and each length of drafts. GAMMA "
		"is the\n"
		"drafted tokens of each session, PASS MS the time of a pass with them, TAU that of "
		"a pass\n"
		"without drafts divided by it. LAMBDA is the tokens that a session got in such a "
		"pass.\n"
		"Drafts can pay only if TAU is above 1 / LAMBDA: if the bar reaches beyond the "
		"mark.\n"
		"DELTA is the wait for a drafted token, in passes without drafts. EXPECTED is the "
		"speed-up\n"
		"LAMBDA TAU / (1 + GAMMA DELTA TAU), from what was known before each pass; "
		"MEASURED "
		"is what\n"
		"the passes brought, against those without drafts in batches of that size.\n"
		"With a file, draws TAU and 1 / LAMBDA into it; this needs gnuplot.\n"},
	{{"knob", "list"}, ctl_knob_list, "[PROCESS | KNOB ...]",
		"every knob with its value and range", true, LINE_JSON | LINE_SESSION,
		"A live knob can be changed while its process runs; the others need a "
		"restart.\n\n" SESSION_HELP("the values of this session")},
	{{"knob", "get"}, ctl_knob_get, "KNOB ...", "everything about some knobs", true,
		LINE_JSON | LINE_SESSION,
		"A knob is named as k_max, or as policy.k_max if several processes have this "
		"name.\n"
		"Exits with 69 if a process that owns one of the knobs is not running; knob list "
		"shows the\n"
		"allowed values without it.\n\n" SESSION_HELP("the values of this session")},
	{{"knob", "set"}, ctl_knob_set, "KNOB=VALUE ...", "change knobs, now", true,
		SET_OPTIONS | LINE_SESSION,
		"Changes all of them or none, even over several processes. An error names the "
		"allowed range.\n\n" SET_HELP SESSION_HELP("for this session only")},
	{{"knob", "reset"}, ctl_knob_reset, "KNOB ...",
		"reset knobs to the values their process was started with", true, RESET_OPTIONS,
		"\n"
		"  --persist           remove persistent changes too: reset to the configured "
		"value, now\n"
		"                      and at every later start\n"
		"  --next-start        the same, but not now\n" IF_HELP SESSION_HELP(
			"reset to the value of all sessions")},
	{{"knob", "history"}, ctl_knob_history, "[PROCESS | KNOB ...]",
		"who changed a knob, when, from which value to which", true, LINE_JSON | LINE_LAST,
		"\n"
		"  --last N            only the newest N\n"},
	{{"knob", "complete"}, ctl_knob_complete, "set|name|any WORD",
		"the completions of a word, for shells", true, LINE_JSON,
		"set: KNOB=VALUE; name: a knob; any: a knob or a process.\n"},
	{{"cache", "set"}, ctl_cache_set, "KNOB=VALUE ...",
		"change the expert-cache's knobs, or device_memory and device_kv", true,
		SET_OPTIONS, "\n" SET_HELP},
	{{"cache", "stats"}, ctl_cache_stats, "",
		"the expert cache: budget, hits, link, hints, memory", false,
		LINE_JSON | LINE_LAYERS,
		"Counts begin when the cache's memory is created and continue over restarts.\n"
		"A look-up is a hit if the expert is in its slot at that moment. On a miss the "
		"look-up waits\n"
		"(it is stalled), or the verifier reads the expert itself.\n"
		"A load is a prefetch if it was in its slot before anybody asked for the expert. "
		"It is:\n"
		"useful, if a token has chosen the expert since;\n"
		"wasted, if the expert was evicted before that;\n"
		"unused so far, otherwise.\n"
		"If the expert was asked for while it was being read, the prefetch counts as late "
		"and the\n"
		"load as a demand. If it was no longer wanted before its read began or ended, the "
		"prefetch\n"
		"counts as taken back.\n"
		"Recall of a source of hints is the share of used experts that it had hinted "
		"before they\n"
		"were asked for, in those passes of a layer for which it hinted anything. The "
		"line\n"
		"\"any\" counts the passes for which any source hinted. It may be lower than the "
		"line of a\n"
		"source that was silent in the hard passes. Precision is the share of hinted "
		"experts that\n"
		"were used. Lead is the time from hint to use. Late hints are for experts that had "
		"been\n"
		"asked for already.\n\n"
		"  --layers            hits, loads, evictions, bytes, stalls, prefetches and hints "
		"by layer\n"},
	{{"cache", "top"}, ctl_cache_top, "", "the activity of each layer, each second", false,
		LINE_JSON | LINE_ONCE,
		"Runs until it is interrupted; without a terminal, for one second. RATE is the "
		"share of\n"
		"look-ups that hit. STALL is the share of the time that look-ups waited.\n\n"
		"  --once              show one second and end\n"},
	{{"cache", "hot"}, ctl_cache_hot, "[N]", "the experts that are used most", true, LINE_JSON,
		"Shows N experts, 20 by default. A use is a token that chose the expert. SHARE is "
		"its share\n"
		"of all uses.\n"},
	{{"trace"}, ctl_trace, "[TIME] [FILE]",
		"timeline of processes, for Perfetto (2s, outrider-trace.json)", true, LINE_JSON,
		"Writes a timeline of drafts, passes, expert loads and decisions of all processes "
		"on one\n"
		"clock, in the Trace Event Format. ui.perfetto.dev and chrome://tracing open it.\n"
		"TIME is 1ms to 1m, with its unit; an interrupt ends it early. FILE appears when "
		"it is\n"
		"complete. Exits with 69 if no process answers.\n"},
	{{"drain"}, ctl_drain, "", "let what runs come to its end, and accept nothing new", false,
		LINE_JSON | LINE_ONCE,
		"Sets the verifier's knob admit to no and waits until no session runs or waits. "
		"The\n"
		"service can then be stopped, or started with another version, without cutting "
		"off\n"
		"anybody. `knob set admit=yes` accepts requests again; so does a restart.\n\n"
		"  --once              print how many sessions are left and do not wait\n"},
	{{"top"}, ctl_top, "", "a live screen; q leaves", false, LINE_JSON | LINE_ONCE,
		"Without a terminal the screen is printed once. Exits with 69 if no process "
		"answers.\n"
		"ACC and UTIL are ACC and UTILITY of policy get.\n\n"
		"  --once              print the screen once and end\n"},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0], NAME_BYTES = 64, WORDS_COLUMNS = 34 };

/* Commands that are of no use to a person: neither lists nor completion offer them. */
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
		/* A command that is too long has a line of its own. */
		if (strlen(words) > WORDS_COLUMNS)
			fprintf(to, "  %s\n%*s%s\n", words, 2 + WORDS_COLUMNS + 1, "", c->help);
		else
			fprintf(to, "  %-*s %s\n", WORDS_COLUMNS, words, c->help);
	}
	fputs("\n"
	      "  --runtime-dir DIR   the runtime directory of the service\n"
	      "  --format text|json  output format; text is the default\n"
	      "  --json              --format json; errors are JSON too, on standard error\n"
	      "  --help              with a command: its description and options\n"
	      "  --version           print the version\n",
		to);
}

void commands_usage_of(const struct command *command, FILE *to)
{
	char name[NAME_BYTES];

	fprintf(to, "usage: outriderctl %s%s%s [options]\n%c%s.\n%s",
		commands_name(command, name, sizeof name), command->arguments[0] ? " " : "",
		command->arguments, toupper((unsigned char)command->help[0]), command->help + 1,
		command->more);
	fputs("\n  --runtime-dir DIR   the runtime directory of the service\n", to);
	if (command->options & LINE_JSON)
		fputs("  --format text|json  output format; text is the default\n"
		      "  --json              --format json\n",
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

/* Lists the words that may follow "knob". */
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
		/* If the first word is right, only the words that may follow it are offered. */
		if (group && strcmp(commands[i].words[0], words[0]) != 0)
			continue;
		commands_name(&commands[i], known, sizeof known);
		/* A command of one word may be followed by arguments. */
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
