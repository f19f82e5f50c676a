/* outrider: start the service and talk to it. */
#include "client/cli/cli.h"

#include "shared/base/nearest.h"
#include "shared/base/options.h"
#include "shared/base/standard.h"

#include <getopt.h>
#include <locale.h>
#include <string.h>
#include <sysexits.h>

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} commands[] = {
	{"up", command_up, "start the four processes and keep them running"},
	{"down", command_down, "stop the service that `up` started"},
	{"run", command_run, "answer one prompt"},
	{"chat", command_chat, "answer one message after another"},
	{"status", command_status, "show the state of the processes"},
	{"doctor", command_doctor, "check the machine and the model, and say what speed to expect"},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void usage(FILE *to)
{
	fputs("usage: outrider COMMAND [options]\n\n", to);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].help);
	fputs("\noutrider COMMAND --help describes a command; --version prints the version.\n"
	      "--runtime-dir or OUTRIDER_RUNTIME_DIR names the directory of the service.\n",
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
	return cli_help(usage);
}

/* `help`, or `help run`, wherever its options stand. */
static const char *word_after_help(int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		if (strcmp(argv[i], "--format") == 0)
			i++;
		else if (strcmp(argv[i], "--json") != 0 && strncmp(argv[i], "--format=", 9) != 0)
			return argv[i];
	}
	return NULL;
}

static int version(bool json)
{
	printf(json ? "{\"program\": \"outrider\", \"version\": \"%s\"}\n" : "outrider %s\n",
		OUTRIDER_VERSION);
	return EX_OK;
}

/* Whether the words that are no command's ask for JSON. */
static bool wants_json(int argc, char **argv)
{
	static const struct option flags[] = {{"json", no_argument, NULL, 'j'},
		{"format", required_argument, NULL, 'f'}, {"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'}, {0}};

	return options_want_json(argc, argv, ":h", flags);
}

static int dispatch(int argc, char **argv)
{
	const struct command *command;
	bool json = false;

	if (argc < 2) {
		usage(stderr);
		return EX_USAGE;
	}
	if (argv[1][0] == '-' || strcmp(argv[1], "help") == 0)
		json = wants_json(argc, argv);
	if (json)
		cli_errors_as_json();
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return help(NULL);
	if (strcmp(argv[1], "help") == 0)
		return help(word_after_help(argc, argv));
	if (strcmp(argv[1], "--version") == 0)
		return version(json);
	command = find(argv[1]);
	return command ? command->run(argc - 1, argv + 1) : unknown(argv[1]);
}

int main(int argc, char **argv)
{
	standard_begin();
	setlocale(LC_ALL, "");
	/* Numbers are written and read the same way everywhere. */
	setlocale(LC_NUMERIC, "C");
	return standard_end_with(dispatch(argc, argv), cli_fail);
}
