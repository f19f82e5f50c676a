/* outriderctl: look at the processes and change their knobs. */
#include "admin/ctl.h"

#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <getopt.h>
#include <locale.h>
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
		"the policy, its knobs with their ranges, its sessions", false, ""},
	{{"policy", "set"}, ctl_policy_set, "NAME | KNOB=VALUE ...",
		"change the policy (static:3, cascade, yield) or knobs, now", true,
		"Everything is checked before anything changes; what is refused is named with its "
		"range.\n"
		"`policy get` lists the knobs.\n\n"
		"  --session UID       for this session alone\n"},
	{{"policy", "watch"}, ctl_policy_watch, "", "each decision with the figures behind it",
		false, "  --once              print what there is and end\n"},
	{{"cache", "stats"}, ctl_cache_stats, "[--layers]", "the expert cache", false,
		"  --layers            each layer's hits, misses, loads and evictions\n"},
	{{"top"}, ctl_top, "", "a live screen; q leaves", false,
		"Without a terminal, one print of it. Ends with 69 when no process answers.\n\n"
		"  --once              print what there is and end\n"},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void usage(FILE *to)
{
	fputs("usage: outriderctl [options] COMMAND\n\n", to);
	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];
		char words[64];

		snprintf(words, sizeof words, "%s%s%s%s%s", c->words[0], c->words[1] ? " " : "",
			c->words[1] ? c->words[1] : "", c->arguments[0] ? " " : "", c->arguments);
		fprintf(to, "  %-34s %s\n", words, c->help);
	}
	fputs("\n"
	      "  --runtime-dir DIR   where the service is\n"
	      "  --format text|json  how to print\n"
	      "  --session UID       policy set: for this session alone\n"
	      "  --once              top, policy watch: print what there is and end\n",
		to);
}

static void usage_of(const struct command *c, FILE *to)
{
	fprintf(to, "usage: outriderctl %s%s%s%s%s [options]\n%c%s.\n%s", c->words[0],
		c->words[1] ? " " : "", c->words[1] ? c->words[1] : "", c->arguments[0] ? " " : "",
		c->arguments, c->help[0] - 'a' + 'A', c->help + 1, c->more);
	fputs("\n"
	      "  --runtime-dir DIR   where the service is\n"
	      "  --format text|json  how to print\n",
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

/* 0, or an exit status; *help: it was asked for; *done: nothing else is to be done. */
static int parse(
	struct ctl *ctl, int argc, char **argv, const char **runtime_dir, bool *help, bool *done)
{
	static const struct option flags[] = {
		{"runtime-dir", required_argument, NULL, 'r'},
		{"format", required_argument, NULL, 'f'},
		{"layers", no_argument, NULL, 'l'},
		{"session", required_argument, NULL, 's'},
		{"once", no_argument, NULL, '1'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	int flag;
	char *end;

	while ((flag = getopt_long(argc, argv, "h", flags, NULL)) != -1) {
		switch (flag) {
		case 'r':
			*runtime_dir = optarg;
			break;
		case 'f':
			if (strcmp(optarg, "json") != 0 && strcmp(optarg, "text") != 0)
				return ctl_fail(
					EX_USAGE, "--format \"%.32s\": text or json", optarg);
			ctl->json = optarg[0] == 'j';
			break;
		case 'l':
			ctl->layers = true;
			break;
		case 's':
			ctl->session = strtoull(optarg, &end, 0);
			if (end == optarg || *end)
				return ctl_fail(
					EX_USAGE, "--session \"%.32s\": not a number", optarg);
			break;
		case '1':
			ctl->once = true;
			break;
		case 'V':
			puts("outriderctl " OUTRIDER_VERSION);
			*done = true;
			return 0;
		case 'h':
			*help = true;
			break;
		default:
			usage(stderr);
			return EX_USAGE;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct ctl ctl;
	const struct command *command;
	const char *runtime_dir = NULL;
	struct error err = {""};
	bool help = false, done = false;
	int n_words, code, status;

	setlocale(LC_ALL, "");
	setlocale(LC_NUMERIC, "C");
	status = parse(&ctl, argc, argv, &runtime_dir, &help, &done);
	if (status || done)
		return status;
	argc -= optind;
	argv += optind;
	if (argc == 0) {
		usage(help ? stdout : stderr);
		return help ? EX_OK : EX_USAGE;
	}
	command = find(argc, argv, &n_words);
	if (help) {
		if (command)
			usage_of(command, stdout);
		else
			usage(stdout);
		return EX_OK;
	}
	if (!command)
		return ctl_fail(EX_USAGE, "no command \"%.64s%s%.64s\"; --help lists them", argv[0],
			argc > 1 ? " " : "", argc > 1 ? argv[1] : "");
	if (argc > n_words && !command->takes_arguments)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", argv[n_words]);
	code = peers_runtime_dir(runtime_dir, false, ctl.runtime_dir, sizeof ctl.runtime_dir, &err);
	if (code < 0)
		return ctl_fail(
			code == -ENOENT ? EX_UNAVAILABLE : error_exit_status(code), "%s", err.text);
	code = bus_context(&ctl.zmq, &err);
	if (code < 0)
		return ctl_fail(error_exit_status(code), "%s", err.text);
	status = command->run(&ctl, argc - n_words, argv + n_words);
	zmq_ctx_term(ctl.zmq);
	if (fflush(stdout) != 0)
		return ctl_fail(EX_IOERR, "stdout: %s", strerror(errno));
	return status;
}
