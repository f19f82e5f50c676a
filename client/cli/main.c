/* outrider: start the service and talk to it. */
#include "client/cli/cli.h"

#include "shared/base/nearest.h"

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
	fputs("\noutrider COMMAND --help describes one; --version says which this is.\n"
	      "The service is found by --runtime-dir or OUTRIDER_RUNTIME_DIR.\n",
		to);
}

static const char *name_at(size_t i)
{
	return i < N_COMMANDS ? commands[i].name : NULL;
}

static int unknown(const char *name)
{
	const char *nearest = nearest_of(name, name_at);

	return cli_fail(EX_USAGE, "no command \"%.64s\"; %s%s%soutrider --help lists them", name,
		nearest ? "did you mean " : "", nearest ? nearest : "", nearest ? "? " : "");
}

static const struct command *find(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

/* `help`, or `help COMMAND`, which is COMMAND --help. */
static int help(const char *name)
{
	static char flag[] = "--help";
	const struct command *command = name ? find(name) : NULL;
	char *arguments[] = {(char *)name, flag, NULL};

	if (name && !command)
		return unknown(name);
	if (command)
		return command->run(2, arguments);
	usage(stdout);
	return EX_OK;
}

int main(int argc, char **argv)
{
	const struct command *command;

	setlocale(LC_ALL, "");
	/* Numbers are written and read the same way everywhere. */
	setlocale(LC_NUMERIC, "C");
	/* A reader that went away shows as a failed write. */
	signal(SIGPIPE, SIG_IGN);
	if (argc < 2) {
		usage(stderr);
		return EX_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return help(NULL);
	if (strcmp(argv[1], "help") == 0)
		return help(argc > 2 ? argv[2] : NULL);
	if (strcmp(argv[1], "--version") == 0) {
		puts("outrider " OUTRIDER_VERSION);
		return EX_OK;
	}
	command = find(argv[1]);
	return command ? command->run(argc - 1, argv + 1) : unknown(argv[1]);
}
