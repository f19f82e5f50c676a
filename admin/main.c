/* outriderctl: shows the state of the processes and changes their knobs. */
#include "admin/commands.h"

#include "shared/base/standard.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <locale.h>
#include <string.h>
#include <sysexits.h>
#include <zmq.h>

/* Whether the command is of use without a service: the tables list the knobs. */
static bool works_alone(const struct command *c)
{
	return c->run == ctl_knob_list || c->run == ctl_knob_complete;
}

/* Finds the service's directory; "" for a command that needs none. An exit status. */
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

/* `help`, `help knob`, `knob set --help`. */
static int help(const struct ctl *ctl, const struct line *line, const struct command *command)
{
	const char *group = line->n_words > 0 ? line->words[0] : NULL;

	if (group && !command && !commands_is_group(group))
		return commands_unknown(line->n_words, (char **)line->words);
	if (ctl->json)
		return ctl_print_json(command ? commands_json_of(command) : commands_json(group));
	if (command)
		commands_usage_of(command, stdout);
	else
		commands_usage(stdout, group);
	return EX_OK;
}

static int run(struct ctl *ctl, struct line *line, const struct command *command, int n_words)
{
	char name[64];
	int status;

	commands_name(command, name, sizeof name);
	status = line_check(line, name, command->options, commands_with);
	if (status)
		return status;
	if (line->n_words > n_words && !command->takes_arguments)
		return ctl_fail(
			EX_USAGE, "%s: unexpected argument \"%.64s\"", name, line->words[n_words]);
	status = find_service(ctl, command, line->runtime_dir);
	if (status)
		return status;
	if (ctl->session_text)
		status = ctl_session(ctl, ctl->session_text, &ctl->session);
	if (status == 0)
		status = command->run(ctl, line->n_words - n_words, line->words + n_words);
	zmq_ctx_term(ctl->zmq);
	return status;
}

static int dispatch(int argc, char **argv)
{
	static struct ctl ctl;
	static struct line line;
	const struct command *command;
	int n_words = 0, status;

	if (line_wants_json(argc, argv))
		ctl_errors_as_json();
	status = line_read(&ctl, argc, argv, &line);
	if (status)
		return status;
	if (line.version) {
		if (ctl.json)
			return ctl_print_json(json_pack("{s:s,s:s}", "program", "outriderctl",
				"version", OUTRIDER_VERSION));
		puts("outriderctl " OUTRIDER_VERSION);
		return EX_OK;
	}
	/* `help knob set` is `knob set --help`. */
	if (line.n_words > 0 && strcmp(line.words[0], "help") == 0) {
		line.help = true;
		memmove(line.words, line.words + 1, (size_t)--line.n_words * sizeof line.words[0]);
	}
	command = line.n_words > 0 ? commands_find(line.n_words, line.words, &n_words) : NULL;
	if (line.help)
		return help(&ctl, &line, command);
	if (line.n_words == 0 && ctl.json)
		return ctl_fail(EX_USAGE, "no command; outriderctl --help lists them");
	if (line.n_words == 0) {
		commands_usage(stderr, NULL);
		return EX_USAGE;
	}
	return command ? run(&ctl, &line, command, n_words)
		       : commands_unknown(line.n_words, line.words);
}

int main(int argc, char **argv)
{
	standard_begin();
	setlocale(LC_ALL, "");
	setlocale(LC_NUMERIC, "C");
	return standard_end_with(dispatch(argc, argv), ctl_fail);
}
