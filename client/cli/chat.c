/* outrider chat: turns typed on a terminal, or lines from a pipe. */
#include "client/cli/answer.h"
#include "client/cli/cli.h"
#include "client/cli/request_flags.h"

#include "shared/base/file.h"
#include "shared/base/standard.h"

#include <histedit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000, TURNS_MAX = 4096 };

struct turn {
	const char *role;
	char *text;
};

struct chat {
	struct request_flags flags;
	int argc;
	char **argv;
	struct turn turns[TURNS_MAX];
	size_t n_turns;
	struct outrider *client;
	char stats[512];
	EditLine *edit;
	History *history;
	char history_path[4096];
	char *line;
	size_t line_room;
};

static void usage(FILE *to)
{
	fputs("usage: outrider chat [options]\n\n"
	      "Answers one message after another. Ctrl-C ends an answer, Ctrl-D ends the program.\n"
	      "/reset forgets the conversation, /stats prints statistics about the last answer,\n"
	      "/quit ends the program, /help lists these commands.\n\n",
		to);
	fputs(request_flags_help, to);
}

static const char *prompt(EditLine *edit)
{
	(void)edit;
	return "> ";
}

/* $XDG_STATE_HOME/outrider/history, made as needed; "" when there is no home. */
static void find_history(char *out, size_t bytes)
{
	struct error err = {""};
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	int n = 0;

	out[0] = '\0';
	if (state && *state)
		n = snprintf(out, bytes, "%s/outrider/history", state);
	else if (home && *home)
		n = snprintf(out, bytes, "%s/.local/state/outrider/history", home);
	if (n <= 0 || (size_t)n >= bytes) {
		out[0] = '\0';
		return;
	}
	for (char *slash = strchr(out + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(out, 0700);
		*slash = '/';
	}
	/* A pipe in its place would make the editor wait for another process. */
	FILE *file;
	int code = file_open(out, &file, &err);
	if (code == 0)
		fclose(file);
	else if (code != -ENOENT) {
		cli_fail(0, "%s: no line is remembered", err.text);
		out[0] = '\0';
	}
}

/* Ctrl-C as in a shell: the line stays on the screen, and the prompt is printed again below it. */
static unsigned char drop_line(EditLine *edit, wint_t key)
{
	(void)edit;
	(void)key;
	fputs("^C\r\n", stdout);
	fflush(stdout);
	/* The editor's reset: it drops line and display, and prints the prompt again. */
	return CC_FATAL;
}

static void open_editor(struct chat *chat)
{
	HistEvent event;

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
		return;
	chat->edit = el_init("outrider", stdin, stdout, stderr);
	chat->history = history_init();
	if (!chat->edit || !chat->history)
		return;
	find_history(chat->history_path, sizeof chat->history_path);
	history(chat->history, &event, H_SETSIZE, HISTORY_LINES);
	history(chat->history, &event, H_SETUNIQUE, 1);
	if (chat->history_path[0])
		history(chat->history, &event, H_LOAD, chat->history_path);
	el_set(chat->edit, EL_PROMPT, prompt);
	el_set(chat->edit, EL_EDITOR, "emacs");
	el_set(chat->edit, EL_SIGNAL, 1);
	el_set(chat->edit, EL_HIST, history, chat->history);
	el_source(chat->edit, NULL);
	/* el_set makes wide copies of both texts and never frees them. */
	el_wset(chat->edit, EL_ADDFN, L"drop-line", L"Drop the line that is being typed",
		drop_line);
	el_set(chat->edit, EL_BIND, "^C", "drop-line", NULL);
	answer_catch_interrupts();
}

static void close_editor(struct chat *chat)
{
	if (chat->history)
		history_end(chat->history);
	if (chat->edit)
		el_end(chat->edit);
	free(chat->line);
}

/*
 * While a line is edited, Ctrl-C is an ordinary character: the editor would pass a signal on, which
 * would end the program. (The editor's own setting for this key, EL_SETTY "intr=", does not last.)
 */
static void interrupt_key(bool is_signal)
{
	static cc_t key;
	struct termios tty;

	if (tcgetattr(STDIN_FILENO, &tty) < 0)
		return;
	if (!is_signal)
		key = tty.c_cc[VINTR];
	tty.c_cc[VINTR] = is_signal ? key : _POSIX_VDISABLE;
	tcsetattr(STDIN_FILENO, TCSADRAIN, &tty);
}

/* The next line without its newline, valid until the next call; NULL at the end. */
static const char *read_line(struct chat *chat)
{
	ssize_t n;

	if (chat->edit) {
		HistEvent event;
		int count = 0;
		const char *line;

		interrupt_key(false);
		/* A Ctrl-C before this point came too late for the last answer. From here until the
		 * line ends it is no signal, and the next one ends the next answer. */
		answer_forget_interrupts();
		line = el_gets(chat->edit, &count);
		interrupt_key(true);
		if (!line || count <= 0)
			return NULL;
		if (count > 1)
			history(chat->history, &event, H_ENTER, line);
		/* Saved now, because a signal may end the program. */
		if (count > 1 && chat->history_path[0])
			history(chat->history, &event, H_SAVE, chat->history_path);
		free(chat->line);
		chat->line = strdup(line);
	} else {
		n = getline(&chat->line, &chat->line_room, stdin);
		answer_forget_interrupts();
		if (n < 0)
			return NULL;
	}
	if (chat->line)
		chat->line[strcspn(chat->line, "\n")] = '\0';
	return chat->line;
}

static void forget(struct chat *chat, size_t keep)
{
	while (chat->n_turns > keep)
		free(chat->turns[--chat->n_turns].text);
}

static bool remember(struct chat *chat, const char *role, const char *text, size_t bytes)
{
	char *copy = chat->n_turns < TURNS_MAX ? strndup(text, bytes) : NULL;

	if (!copy)
		return false;
	chat->turns[chat->n_turns++] = (struct turn){role, copy};
	return true;
}

/* Makes a request with the flags of the command line and the conversation so far. *help: it was
 * asked for. */
static int make_request(struct chat *chat, struct outrider_request **request, bool *help)
{
	static const struct option flags[] = {REQUEST_FLAGS, {0}};
	int flag, status = 0;

	*help = false;
	if (outrider_request_new(request) < 0)
		return cli_fail(EX_OSERR, "%s", outrider_error());
	optind = opterr = 0;
	while (status == 0 &&
		(flag = getopt_long(chat->argc, chat->argv, ":h", flags, NULL)) != -1) {
		if (flag == 'h') {
			usage(stdout);
			*help = true;
			return 0;
		}
		status = request_flag(&chat->flags, flag, optarg, *request);
		if (status < 0)
			return cli_bad_option("chat", flag, ":h", chat->argv);
	}
	if (status == 0 && optind < chat->argc)
		return cli_fail(
			EX_USAGE, "chat: unexpected argument \"%.64s\"", chat->argv[optind]);
	if (status == 0)
		status = request_flags_check(&chat->flags, "chat", false);
	if (status == 0 && chat->flags.system)
		outrider_request_add_message(*request, "system", chat->flags.system);
	for (size_t i = 0; i < chat->n_turns && status == 0; i++)
		if (outrider_request_add_message(
			    *request, chat->turns[i].role, chat->turns[i].text) < 0)
			status = cli_fail(EX_OSERR, "%s", outrider_error());
	return status ? status : request_flags_variables(&chat->flags, NULL, *request);
}

static void keep_stats(struct chat *chat, const struct answer *answer)
{
	FILE *to = fmemopen(chat->stats, sizeof chat->stats, "w");

	if (!to)
		return;
	answer_print_stats(answer, to);
	fclose(to);
}

static int reply(struct chat *chat)
{
	struct answer answer = {.show = true, .live = chat->flags.stats};
	struct outrider_request *request = NULL;
	struct outrider_stream *stream = NULL;
	bool help;
	int code, status = make_request(chat, &request, &help);

	if (status == 0) {
		code = outrider_start(chat->client, request, &stream);
		if (code == 0)
			code = answer_read(&answer, stream);
		putchar('\n');
		if (code == 0 && fflush(stdout) != 0 && !answer.write_error)
			answer.write_error = errno;
		/* The answer cannot be written, so more answers would be wasted work. */
		if (code == 0 && answer.write_error)
			status = cli_fail(
				EX_IOERR, "standard output: %s", strerror(answer.write_error));
		else if (code < 0)
			status = cli_fail(request_exit_status(code), "%s%s", outrider_error(),
				code == -E2BIG ? " (/reset begins a new conversation)" : "");
		else if (answer.end == OUTRIDER_END_ERROR)
			status = cli_fail(EX_SOFTWARE, "%s", answer.message);
		else
			keep_stats(chat, &answer);
		if (status == 0 && chat->flags.stats)
			fputs(chat->stats, stderr);
		if (code == 0)
			answer_say_full(&answer, chat->flags.max_tokens);
	}
	/* An answer that was cut short is part of the conversation. */
	if (status == 0 &&
		!remember(chat, "assistant", answer.text ? answer.text : "", answer.text_bytes))
		status = cli_fail(EX_OSERR, "no memory for the conversation");
	answer_free(&answer);
	outrider_stream_free(&stream);
	outrider_request_free(&request);
	return status;
}

/* False: the program should end. */
static bool command(struct chat *chat, const char *line)
{
	if (strcmp(line, "/quit") == 0)
		return false;
	if (strcmp(line, "/reset") == 0)
		forget(chat, 0);
	else if (strcmp(line, "/stats") == 0)
		fputs(chat->stats[0] ? chat->stats : "nothing was answered yet\n", stdout);
	else if (strcmp(line, "/help") == 0)
		puts("/reset  forget the conversation\n"
		     "/stats  how the last answer went\n"
		     "/quit   leave, as Ctrl-D does\n"
		     "Ctrl-C ends an answer, or drops the line being typed.");
	else
		printf("no command \"%.64s\"; /help lists them\n", line);
	return true;
}

static int converse(struct chat *chat)
{
	const char *line;
	int status = 0;

	while ((line = read_line(chat)) != NULL) {
		size_t before = chat->n_turns;

		if (line[0] == '\0')
			continue;
		if (line[0] == '/') {
			if (!command(chat, line) || !standard_flush())
				break;
			continue;
		}
		if (!remember(chat, "user", line, strlen(line)))
			return cli_fail(
				EX_OSERR, "the conversation is too long; /reset forgets it");
		status = reply(chat);
		/* A message without an answer is not part of the conversation; on a terminal the
		 * person may try again. */
		if (status) {
			forget(chat, before);
			if (!chat->edit || ferror(stdout))
				return status;
		}
	}
	return 0;
}

int command_chat(int argc, char **argv)
{
	static struct chat chat = {.flags = REQUEST_FLAGS_INIT};
	struct outrider_request *request = NULL;
	bool help;
	int status;

	chat.argc = argc;
	chat.argv = argv;
	/* The flags are checked before anything is asked. */
	status = make_request(&chat, &request, &help);
	outrider_request_free(&request);
	if (status == 0 && !help)
		status = request_flags_connect(&chat.flags, &chat.client);
	if (status || help) {
		request_flags_free(&chat.flags);
		return status;
	}
	open_editor(&chat);
	status = converse(&chat);
	if (chat.edit)
		putchar('\n');
	close_editor(&chat);
	forget(&chat, 0);
	outrider_close(&chat.client);
	request_flags_free(&chat.flags);
	return status;
}
