/* outrider: start the service and talk to it. */
#include "client/cli/cli.h"

#include <locale.h>
#include <signal.h>
#include <string.h>
#include <sysexits.h>

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} commands[] = {
	{"up", command_up, "start the four processes and keep them running"},
	{"down", command_down, "stop what `up` started"},
	{"run", command_run, "answer one prompt"},
	{"chat", command_chat, "talk, turn by turn"},
	{"status", command_status, "show how the processes are"},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void usage(FILE *to)
{
	fputs("usage: outrider COMMAND [options]\n\n", to);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].help);
	fputs("\noutrider COMMAND --help describes one. The service is found by --runtime-dir or "
	      "OUTRIDER_RUNTIME_DIR.\n",
		to);
}

int main(int argc, char **argv)
{
	setlocale(LC_ALL, "");
	/* Numbers are written and read the same way everywhere. */
	setlocale(LC_NUMERIC, "C");
	/* A reader that went away shows as a failed write. */
	signal(SIGPIPE, SIG_IGN);
	if (argc < 2) {
		usage(stderr);
		return EX_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
		strcmp(argv[1], "help") == 0) {
		usage(stdout);
		return EX_OK;
	}
	if (strcmp(argv[1], "--version") == 0) {
		puts("outrider " OUTRIDER_VERSION);
		return EX_OK;
	}
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (strcmp(commands[i].name, argv[1]) == 0)
			return commands[i].run(argc - 1, argv + 1);
	return cli_fail(EX_USAGE, "no command \"%.64s\"; outrider --help lists them", argv[1]);
}
