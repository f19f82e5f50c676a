/* outriderctl: look at the processes and change their knobs. */
#include "admin/ctl.h"

#include "shared/base/config.h"
#include "shared/base/nearest.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <ctype.h>
#include <getopt.h>
#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <zmq.h>

static const struct command {
	const char *words[2];
	int (*run)(struct ctl *ctl, int argc, char **argv);
	const char *arguments, *help;
	bool takes_arguments;
	const char *more; /* for its own --help */
} commands[] = {
	{{"status"}, ctl_status, "", "the processes, with details", false,
		"Ends with 0 when all of them answer, else with 69.\n"},
	{{"sessions"}, ctl_sessions, "", "what is being generated", false,
		"Finished sessions are shown while they are kept for their client.\n"},
	{{"policy", "get"}, ctl_policy_get, "",
		"the policy, its knobs with their ranges, its sessions", false,
		"Of the sessions those that are being generated, or wait to be.\n\n"
		"  --all               also those that have ended and are still remembered\n"},
	{{"policy", "set"}, ctl_policy_set, "NAME | KNOB=VALUE ...",
		"change the policy (static:3, cascade, yield) or knobs, now", true,
		"Everything is checked before anything changes; what is refused is named with its "
		"range.\n"
		"`policy get` lists the knobs.\n\n"
		"  --session UID       for this session alone\n"
		"  --for, --persist, --next-start, --if as for knob set\n"},
	{{"policy", "watch"}, ctl_policy_watch, "", "each decision with the figures behind it",
		false,
		"First the decisions so far about sessions that are being generated, then each new "
		"one.\n\n"
		"  --all               first also those about sessions that have ended\n"
		"  --once              print what there is and end\n"},
	{{"policy", "explain"}, ctl_policy_explain, "[SESSION]",
		"why a session's K is what it is now", true,
		"In words, then what is known of each K, the acceptance by position, and the last "
		"decisions.\n"
		"Without SESSION the one whose iteration was seen last.\n"},
	{{"knob", "list"}, ctl_knob_list, "[PROCESS | KNOB ...]",
		"every knob with its value and range", true,
		"A knob that is live may change while its process runs; the others need a "
		"restart.\n\n"
		"  --session UID       the values of this session\n"},
	{{"knob", "get"}, ctl_knob_get, "KNOB ...", "all about some knobs", true,
		"A knob is named as k_max, or as policy.k_max where several processes have one of "
		"that name.\n"
		"Ends with 69 when a process whose knob it is does not run: knob list says what it "
		"takes.\n\n"
		"  --session UID       the values of this session\n"},
	{{"knob", "set"}, ctl_knob_set, "KNOB=VALUE ...", "change knobs, now", true,
		"All of them or none, also over several processes. What is refused is named with "
		"its range.\n\n"
		"  --for TIME          go back by itself after this time: 30s, 10m, 2h, 1d; at "
		"most 30d\n"
		"  --persist           at the next start as well: writes a drop-in beside the "
		"configuration\n"
		"  --next-start        at the next start alone\n"
		"  --if VALUE          only if the knob before it has this value now\n"
		"  --session UID       for this session alone\n"},
	{{"knob", "reset"}, ctl_knob_reset, "KNOB ...", "back to what the process was started with",
		true,
		"  --persist           to what is configured without --persist, and so at the next "
		"start\n"
		"  --next-start        at the next start alone\n"
		"  --if VALUE          only if the knob before it has this value now\n"
		"  --session UID       to what all sessions have\n"},
	{{"knob", "history"}, ctl_knob_history, "[PROCESS | KNOB ...]",
		"who changed what, when, from what to what", true,
		"  --last N            the newest N\n"},
	{{"knob", "complete"}, ctl_knob_complete, "set|name|any WORD",
		"what the shell may complete a word to", true,
		"set: KNOB=VALUE; name: a knob; any: a knob or a process.\n"},
	{{"cache", "set"}, ctl_cache_set, "KNOB=VALUE ...",
		"knob set for the knobs of the expert-cache", true,
		"  --for, --persist, --next-start, --if as for knob set\n"},
	{{"cache", "stats"}, ctl_cache_stats, "[--layers]",
		"the expert cache: budget, hits, link, hints, memory", false,
		"  --layers            each layer's hits, loads, evictions, bytes, stalls and "
		"prefetches\n"},
	{{"cache", "top"}, ctl_cache_top, "", "what each layer does, each second", false,
		"Until it is interrupted; without a terminal, one second of it.\n\n"
		"  --once              one second and end\n"},
	{{"cache", "hot"}, ctl_cache_hot, "[N]", "the experts that are used most", true,
		"N experts, 20 when it is not given. A use is a token that chose it.\n"},
	{{"policy", "plot"}, ctl_policy_plot, "[SESSION] [FILE.svg|FILE.png]",
		"K, tokens, cost and utility of a session over its iterations", true,
		"From the journal of the policy-controller; without SESSION the newest. In the "
		"terminal, or as a\n"
		"picture (gnuplot is needed for one). --format json prints the journal's "
		"entries.\n"
		"A column in the terminal is the mean of several iterations where they are many; "
		"a utility above 1\n"
		"says that drafts pay.\n"},
	{{"trace"}, ctl_trace, "[TIME] [FILE]",
		"what every process does, for Perfetto (2s, outrider-trace.json)", true,
		"Writes a timeline of drafts, passes, expert loads and decisions of all processes "
		"on one clock,\n"
		"in the Trace Event Format. Open it at ui.perfetto.dev or chrome://tracing. TIME "
		"is "
		"from 1ms to\n"
		"1m, with its unit; an interrupt ends it early. FILE appears when it is whole.\n"
		"Ends with 69 when no process answers.\n"},
	{{"top"}, ctl_top, "", "a live screen; q leaves", false,
		"Without a terminal, one print of it. Ends with 69 when no process answers.\n\n"
		"  --once              print what there is and end\n"},
};

enum { WORDS_MAX = 128, KNOB_WORDS = 2 /* "knob set" */ };
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

/* group: only the commands that begin with this word; NULL: all. */
static void usage(FILE *to, const char *group)
{
	fputs("usage: outriderctl [options] COMMAND\n\n", to);
	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];
		char words[64];

		if (group && strcmp(group, c->words[0]) != 0)
			continue;
		snprintf(words, sizeof words, "%s%s%s%s%s", c->words[0], c->words[1] ? " " : "",
			c->words[1] ? c->words[1] : "", c->arguments[0] ? " " : "", c->arguments);
		fprintf(to, "  %-34s %s\n", words, c->help);
	}
	fputs("\n"
	      "  --runtime-dir DIR   where the service is\n"
	      "  --format text|json  how to print; --json is the second\n"
	      "  --session UID       knobs: of this session alone\n"
	      "  --for TIME, --persist, --next-start, --if VALUE\n"
	      "                      how knobs are set; outriderctl knob set --help\n"
	      "  --once              top, policy watch: print what there is and end\n"
	      "  --version\n",
		to);
}

static void usage_of(const struct command *c, FILE *to)
{
	fprintf(to, "usage: outriderctl %s%s%s%s%s [options]\n%c%s.\n%s", c->words[0],
		c->words[1] ? " " : "", c->words[1] ? c->words[1] : "", c->arguments[0] ? " " : "",
		c->arguments, toupper((unsigned char)c->help[0]), c->help + 1, c->more);
	fputs("\n"
	      "  --runtime-dir DIR   where the service is\n"
	      "  --format text|json  how to print; --json is the second\n",
		to);
}

static const struct command *find(int argc, char **argv, int *n_words)
{
	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];

		*n_words = c->words[1] ? 2 : 1;
		if (argc >= *n_words && strcmp(c->words[0], argv[0]) == 0 &&
			(!c->words[1] || strcmp(c->words[1], argv[1]) == 0))
			return c;
	}
	return NULL;
}

static const char *name_at(size_t i)
{
	static char name[64];
	const struct command *c = &commands[i];

	if (i >= N_COMMANDS)
		return NULL;
	snprintf(name, sizeof name, "%s%s%s", c->words[0], c->words[1] ? " " : "",
		c->words[1] ? c->words[1] : "");
	return name;
}

/* Whether it is the first word of commands of two. */
static bool is_group(const char *word)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (commands[i].words[1] && strcmp(commands[i].words[0], word) == 0)
			return true;
	return false;
}

/* What may follow "knob". */
static void list_second_words(const char *first, char *out, size_t bytes)
{
	size_t used = 0;

	for (size_t i = 0; i < N_COMMANDS; i++)
		if (commands[i].words[1] && strcmp(commands[i].words[0], first) == 0 &&
			used < bytes)
			used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "",
				commands[i].words[1]);
}

static int unknown(int argc, char **argv)
{
	char name[160], seconds[256] = "", nearest[64] = "";
	size_t best = SIZE_MAX;

	snprintf(name, sizeof name, "%.64s%s%.64s", argv[0], argc > 1 ? " " : "",
		argc > 1 ? argv[1] : "");
	for (size_t i = 0; i < N_COMMANDS; i++) {
		/* Of a word that is right only what may follow it is wrong. */
		if (is_group(argv[0]) && strcmp(commands[i].words[0], argv[0]) != 0)
			continue;
		/* A command of one word may have arguments behind it. */
		size_t distance =
			nearest_distance(commands[i].words[1] ? name : argv[0], name_at(i));

		if (distance >= best)
			continue;
		best = distance;
		snprintf(nearest, sizeof nearest, "%s", name_at(i));
	}
	if (nearest_worth(name, best))
		return ctl_fail(EX_USAGE,
			"no command \"%s\"; did you mean %s? outriderctl --help lists them", name,
			nearest);
	if (is_group(argv[0])) {
		list_second_words(argv[0], seconds, sizeof seconds);
		return ctl_fail(EX_USAGE, "no command \"%s\"; %.64s is followed by one of: %s",
			name, argv[0], seconds);
	}
	return ctl_fail(EX_USAGE, "no command \"%s\"; outriderctl --help lists them", name);
}

/* The words of the command line, in their order; options may stand between them. */
struct words {
	char *of[WORDS_MAX];
	int n;
};

const char *ctl_take_expected(struct ctl *ctl, const char *argument)
{
	for (size_t i = 0; i < ctl->n_expected; i++)
		if (ctl->expected[i].argument == argument) {
			ctl->expected[i].used = true;
			return ctl->expected[i].value;
		}
	return NULL;
}

int ctl_all_expected_taken(const struct ctl *ctl)
{
	for (size_t i = 0; i < ctl->n_expected; i++)
		if (!ctl->expected[i].used)
			return ctl_fail(EX_USAGE,
				"--if \"%.32s\": of no knob, or of one that has another",
				ctl->expected[i].value);
	return 0;
}

static int take_time(const char *text, uint64_t *out)
{
	static const struct config_key key = {"", "--for", CONFIG_NS, 0, sizeof(int64_t), 1e6,
		30 * 86400e9, NULL, "10m", "", "", KNOB_LIVE, KNOB_GLOBAL};
	struct error err = {""};
	int64_t ns = 0;

	if (config_assign(&key, text, "", &ns, &err) < 0)
		return ctl_fail(EX_USAGE, "%s", err.text);
	*out = (uint64_t)ns;
	return 0;
}

static int take_number(const char *flag, const char *text, uint64_t max, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 0);
	if (end == text || *end || errno || *out > max || strchr(text, '-'))
		return ctl_fail(EX_USAGE, "%s \"%.32s\": not a number, or too large", flag, text);
	return 0;
}

/* Without the flag it is 0, all sessions: a variable of a script that was not set must not come to that. */
static int take_session(const char *text, uint64_t *out)
{
	int status = take_number("--session", text, UINT64_MAX, out);

	if (status == 0 && *out == 0)
		status =
			ctl_fail(EX_USAGE, "--session \"%.32s\": no session has this number", text);
	return status;
}

/* --if is about the word before it; one that comes first is about the first knob. */
static int take_expected(struct ctl *ctl, const struct words *words, char *value)
{
	if (ctl->n_expected == CTL_EXPECTED_MAX)
		return ctl_fail(EX_USAGE, "more than %d times --if", CTL_EXPECTED_MAX);
	const char *argument = words->n > KNOB_WORDS ? words->of[words->n - 1] : NULL;
	ctl->expected[ctl->n_expected].argument = argument;
	ctl->expected[ctl->n_expected++].value = value;
	return 0;
}

static int take_flag(struct ctl *ctl, int flag, const struct words *words, const char **runtime_dir)
{
	uint64_t number;
	int status = 0;

	switch (flag) {
	case 'r':
		*runtime_dir = optarg;
		break;
	case 'f':
		if (strcmp(optarg, "json") != 0 && strcmp(optarg, "text") != 0)
			return ctl_fail(EX_USAGE, "--format \"%.32s\": text or json", optarg);
		ctl->json = optarg[0] == 'j';
		break;
	case 'j':
		ctl->json = true;
		break;
	case 'l':
		ctl->layers = true;
		break;
	case 's':
		return take_session(optarg, &ctl->session);
	case 'n':
		status = take_number("--last", optarg, UINT32_MAX, &number);
		ctl->last = (uint32_t)number;
		break;
	case 't':
		return take_time(optarg, &ctl->for_ns);
	case 'p':
		ctl->persist = true;
		break;
	case 'N':
		ctl->next_start = true;
		break;
	case 'i':
		return take_expected(ctl, words, optarg);
	case '1':
		ctl->once = true;
		break;
	case 'a':
		ctl->all = true;
		break;
	default:
		usage(stderr, NULL);
		return EX_USAGE;
	}
	return status;
}

/* 0, or an exit status; *help: it was asked for; *done: nothing else is to be done. */
static int parse(struct ctl *ctl, int argc, char **argv, struct words *words,
	const char **runtime_dir, bool *help, bool *done)
{
	static const struct option flags[] = {
		{"runtime-dir", required_argument, NULL, 'r'},
		{"format", required_argument, NULL, 'f'},
		{"json", no_argument, NULL, 'j'},
		{"layers", no_argument, NULL, 'l'},
		{"session", required_argument, NULL, 's'},
		{"last", required_argument, NULL, 'n'},
		{"for", required_argument, NULL, 't'},
		{"persist", no_argument, NULL, 'p'},
		{"next-start", no_argument, NULL, 'N'},
		{"if", required_argument, NULL, 'i'},
		{"once", no_argument, NULL, '1'},
		{"all", no_argument, NULL, 'a'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	int flag, status = 0;

	/* In order: a word comes as flag 1. */
	while (status == 0 && (flag = getopt_long(argc, argv, "-h", flags, NULL)) != -1) {
		if (flag == 1 && words->n < WORDS_MAX)
			words->of[words->n++] = optarg;
		else if (flag == 1)
			status = ctl_fail(EX_USAGE, "more than %d words", WORDS_MAX);
		else if (flag == 'h')
			*help = true;
		else if (flag == 'V')
			*done = true;
		else
			status = take_flag(ctl, flag, words, runtime_dir);
	}
	for (; status == 0 && optind < argc && words->n < WORDS_MAX; optind++)
		words->of[words->n++] = argv[optind];
	for (size_t i = 0; i < ctl->n_expected; i++)
		if (!ctl->expected[i].argument && words->n > KNOB_WORDS)
			ctl->expected[i].argument = words->of[KNOB_WORDS];
	return status;
}

/* Whether it is of use without a service: the tables say which knobs there are. */
static bool works_alone(const struct command *c)
{
	return c->run == ctl_knob_list || c->run == ctl_knob_complete;
}

/* Where the service is; "" for a command that can do without. An exit status. */
static int find_service(struct ctl *ctl, const struct command *command, const char *runtime_dir)
{
	struct error err = {""};
	int code = peers_runtime_dir(
		runtime_dir, false, ctl->runtime_dir, sizeof ctl->runtime_dir, &err);

	if (code < 0)
		ctl->runtime_dir[0] = '\0';
	if (code == -ENOENT && !works_alone(command))
		return ctl_fail(EX_UNAVAILABLE, "no service: %s; " CTL_NO_SERVICE, err.text);
	if (code < 0 && code != -ENOENT)
		return ctl_fail(error_exit_status(code), "%s", err.text);
	code = bus_context(&ctl->zmq, &err);
	return code < 0 ? ctl_fail(error_exit_status(code), "%s", err.text) : 0;
}

int main(int argc, char **argv)
{
	static struct ctl ctl;
	static struct words words;
	const struct command *command;
	const char *runtime_dir = NULL;
	bool help = false, done = false;
	int n_words, status;

	setlocale(LC_ALL, "");
	setlocale(LC_NUMERIC, "C");
	status = parse(&ctl, argc, argv, &words, &runtime_dir, &help, &done);
	if (status == 0 && done)
		puts("outriderctl " OUTRIDER_VERSION);
	if (status || done)
		return status;
	/* `help knob set` is `knob set --help`. */
	if (words.n > 0 && strcmp(words.of[0], "help") == 0) {
		help = true;
		memmove(words.of, words.of + 1, (size_t)--words.n * sizeof words.of[0]);
	}
	if (words.n == 0) {
		usage(help ? stdout : stderr, NULL);
		return help ? EX_OK : EX_USAGE;
	}
	command = find(words.n, words.of, &n_words);
	if (help) {
		if (command)
			usage_of(command, stdout);
		else if (is_group(words.of[0]))
			usage(stdout, words.of[0]);
		else
			return unknown(words.n, words.of);
		return EX_OK;
	}
	if (!command)
		return unknown(words.n, words.of);
	if (ctl.layers && command->run != ctl_cache_stats)
		return ctl_fail(EX_USAGE, "--layers is for cache stats");
	if (words.n > n_words && !command->takes_arguments)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", words.of[n_words]);
	status = find_service(&ctl, command, runtime_dir);
	if (status)
		return status;
	status = command->run(&ctl, words.n - n_words, words.of + n_words);
	zmq_ctx_term(ctl.zmq);
	if (fflush(stdout) != 0)
		return ctl_fail(EX_IOERR, "stdout: %s", strerror(errno));
	return status;
}
