/* outrider run: one prompt, one answer. */
#include "client/cli/answer.h"
#include "client/cli/cli.h"
#include "client/cli/request_flags.h"

#include "shared/base/options.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum { STATUS_INTERRUPTED = 130 };

enum {
	FLAG_FILE = FLAG_OWN,
	FLAG_TOKENS,
	FLAG_MESSAGES,
	FLAG_CHAT,
	FLAG_REPLAY,
	FLAG_REPLAY_ERROR,
	FLAG_LOGITS_HASH,
	FLAG_AUDIT,
	FLAG_LOGPROBS,
	FLAG_FORMAT,
	FLAG_JSON,
};

struct run {
	struct request_flags flags;
	struct outrider_request *request;
	const char *file, *tokens, *messages, *replay, *prompt;
	double replay_error;
	bool chat, json, audit, logits_hash, logprobs, has_replay_error;
};

static void usage(FILE *to)
{
	fputs("usage: outrider run [options] [PROMPT]\n\n"
	      "Answers PROMPT, or the prompt in a file or on standard input (also as -).\n"
	      "The prompt is used byte for byte; --chat makes it a message, for chat models.\n\n"
	      "  --file FILE           read the prompt from FILE\n"
	      "  --tokens 1,2,3        the prompt as token ids\n"
	      "  --messages FILE.json  a conversation: [{\"role\": \"user\", \"content\": "
	      "\"...\"}, ...]\n"
	      "  --chat                treat the prompt as a user's message\n"
	      "  --replay FILE|1,2,3   the tokens that --draft-method replay proposes\n"
	      "  --replay-error P      replace each of those tokens by a wrong one with "
	      "probability P\n"
	      "  --audit               compute the answer again without an expert budget, and say "
	      "which\n"
	      "                        tokens that changes\n"
	      "  --logits-hash         with --json: a hash of the logits behind each token\n"
	      "  --logprobs N          with --json: the log probability of each token, and of the "
	      "N most\n"
	      "                        likely ones at its place (0 to 20)\n"
	      "  --format text|json    output format; --json is --format json\n",
		to);
	fputs(request_flags_help, to);
}

static int own_flag(struct run *run, int flag)
{
	int64_t n;

	switch (flag) {
	case FLAG_FILE:
		run->file = optarg;
		return 0;
	case FLAG_TOKENS:
		run->tokens = optarg;
		return 0;
	case FLAG_MESSAGES:
		run->messages = optarg;
		return 0;
	case FLAG_CHAT:
		run->chat = true;
		return 0;
	case FLAG_REPLAY:
		run->replay = optarg;
		return 0;
	case FLAG_REPLAY_ERROR:
		run->has_replay_error = true;
		return cli_sampling(
			"--replay-error", optarg, SAMPLING_REPLAY_ERROR, &run->replay_error);
	case FLAG_AUDIT:
		run->audit = true;
		return 0;
	case FLAG_LOGITS_HASH:
		run->logits_hash = true;
		outrider_request_set_logits_hash(run->request, true);
		return 0;
	case FLAG_LOGPROBS:
		run->logprobs = true;
		if (cli_integer("--logprobs", optarg, 0, LIMIT_TOP_LOGPROBS, &n))
			return EX_USAGE;
		outrider_request_set_logprobs(run->request, (int)n);
		return 0;
	case FLAG_FORMAT:
		if (strcmp(optarg, "json") != 0 && strcmp(optarg, "text") != 0)
			return cli_fail(
				EX_USAGE, "--format \"%.32s\": allowed are text and json", optarg);
		run->json = optarg[0] == 'j';
		return 0;
	case FLAG_JSON:
		run->json = true;
		return 0;
	default:
		return INT32_MAX;
	}
}

/* Refuses flags that have no effect without another. */
static int check_idle_flags(const struct run *run)
{
	const char *method = run->flags.draft_method;

	if (run->flags.variables && !run->chat && !run->flags.system && !run->messages)
		return cli_fail(EX_USAGE,
			"run: --set needs a chat template: give --chat, --system or --messages");
	if (run->logits_hash && !run->json)
		return cli_fail(EX_USAGE, "run: --logits-hash needs --json");
	if (run->logprobs && !run->json)
		return cli_fail(EX_USAGE, "run: --logprobs needs --json");
	if (run->audit && run->flags.grammar)
		return cli_fail(
			EX_USAGE, "run: --audit cannot be combined with %s", run->flags.grammar);
	if (run->has_replay_error && !run->replay)
		return cli_fail(EX_USAGE, "run: --replay-error needs --replay");
	if (run->replay && method && strcmp(method, "replay") != 0)
		return cli_fail(
			EX_USAGE, "run: --replay needs --draft-method replay, not %.32s", method);
	return request_flags_check(&run->flags, "run", run->replay != NULL);
}

/* *help: only help was asked for. */
static int parse(struct run *run, int argc, char **argv, bool *help)
{
	static const struct option flags[] = {
		REQUEST_FLAGS,
		{"file", required_argument, NULL, FLAG_FILE},
		{"tokens", required_argument, NULL, FLAG_TOKENS},
		{"messages", required_argument, NULL, FLAG_MESSAGES},
		{"chat", no_argument, NULL, FLAG_CHAT},
		{"replay", required_argument, NULL, FLAG_REPLAY},
		{"replay-error", required_argument, NULL, FLAG_REPLAY_ERROR},
		{"audit", no_argument, NULL, FLAG_AUDIT},
		{"logits-hash", no_argument, NULL, FLAG_LOGITS_HASH},
		{"logprobs", required_argument, NULL, FLAG_LOGPROBS},
		{"format", required_argument, NULL, FLAG_FORMAT},
		{"json", no_argument, NULL, FLAG_JSON},
		{0},
	};
	int flag, status = 0;

	*help = false;
	if (options_want_json(argc, argv, ":h", flags))
		cli_errors_as_json();
	opterr = 0;
	while (status == 0 && (flag = getopt_long(argc, argv, ":h", flags, NULL)) != -1) {
		if (flag == 'h') {
			cli_help(usage);
			*help = true;
			return 0;
		}
		status = request_flag(&run->flags, flag, optarg, run->request);
		if (status < 0)
			status = own_flag(run, flag);
		if (status == INT32_MAX)
			status = cli_bad_option("run", flag, ":h", argv);
	}
	if (status)
		return status;
	bool on_stdin = optind < argc && strcmp(argv[optind], "-") == 0;
	if (on_stdin && run->file)
		return cli_fail(EX_USAGE, "run: the prompt can come from stdin (-) or from --file, "
					  "but not from both");
	if (on_stdin)
		run->file = argv[optind];
	else if (optind < argc)
		run->prompt = argv[optind];
	if (++optind < argc)
		return cli_fail(EX_USAGE,
			"run: expected one prompt, but \"%.64s\" follows it; put a prompt of "
			"several words in quotes",
			argv[optind]);
	if (!!run->prompt + !!run->file + !!run->tokens + !!run->messages > 1)
		return cli_fail(EX_USAGE,
			"run: only one of a prompt, --file, --tokens and --messages can be given");
	if (run->tokens && (run->chat || run->flags.system))
		return cli_fail(EX_USAGE,
			"run: --tokens is the whole prompt: %s needs a prompt of text",
			run->chat ? "--chat" : "--system");
	return check_idle_flags(run);
}

static int refused(void)
{
	return cli_fail(EX_DATAERR, "%s", outrider_error());
}

/* As `outrider-model render` does: a message with more than a role and a text goes to the template
 * unchanged. */
static int use_message(struct run *run, const json_t *message, size_t i)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	const json_t *content = json_object_get(message, "content");
	const char *text = json_string_value(content);
	char *whole;
	int code;

	if (!json_is_object(message) || !role)
		return cli_fail(EX_DATAERR,
			"%s: message %zu: expected an object with a \"role\", a string",
			run->messages, i);
	if (content && !text && !json_is_null(content) && !json_is_array(content))
		return cli_fail(EX_DATAERR,
			"%s: message %zu: \"content\" must be a string, null or a list of parts",
			run->messages, i);
	if (text && json_object_size(message) == 2) {
		code = outrider_request_add_message(run->request, role, text);
	} else {
		whole = json_dumps(message, JSON_COMPACT);
		if (!whole)
			return cli_fail(EX_OSERR, "no memory for message %zu", i);
		code = outrider_request_add_message_json(run->request, whole);
		free(whole);
	}
	return code < 0 ? refused() : 0;
}

static int use_messages(struct run *run, const json_t *list)
{
	size_t i;
	json_t *message;
	int status = 0;

	json_array_foreach(list, i, message)
	{
		status = use_message(run, message, i);
		if (status)
			break;
	}
	return status;
}

static int load_messages(struct run *run)
{
	json_error_t error;
	json_t *root, *list;
	char *text;
	size_t bytes;
	int status = cli_read_file(run->messages, &text, &bytes);

	if (status)
		return status;
	root = json_loadb(text, bytes, 0, &error);
	free(text);
	if (!root)
		return cli_fail(
			EX_DATAERR, "%s: line %d: %s", run->messages, error.line, error.text);
	list = json_is_object(root) ? json_object_get(root, "messages") : root;
	if (!json_is_array(list) || json_array_size(list) == 0)
		status = cli_fail(EX_DATAERR, "%s: expected a list of messages", run->messages);
	else
		status = use_messages(run, list);
	/* Tools, documents and whatever else comes with the messages. */
	if (json_is_object(root))
		json_object_del(root, "messages");
	if (status == 0)
		status = request_flags_variables(
			&run->flags, json_is_object(root) ? root : NULL, run->request);
	json_decref(root);
	return status;
}

static int use_text(struct run *run, const char *text)
{
	if (!run->chat && !run->flags.system)
		return outrider_request_set_prompt(run->request, text) < 0 ? refused() : 0;
	if (outrider_request_add_message(run->request, "user", text) < 0)
		return refused();
	return request_flags_variables(&run->flags, NULL, run->request);
}

static int load_text(struct run *run)
{
	const char *path = run->file ? run->file : "-";
	char *text;
	size_t bytes;
	int status;

	if (strcmp(path, "-") == 0 && isatty(STDIN_FILENO))
		fputs("outrider: type the prompt; Ctrl-D ends it\n", stderr);
	status = cli_read_file(path, &text, &bytes);
	if (status)
		return status;
	if (strlen(text) != bytes)
		status = cli_fail(EX_DATAERR, "%s: byte %zu is NUL: not text", path, strlen(text));
	else
		status = use_text(run, text);
	free(text);
	return status;
}

static int use_tokens(struct run *run)
{
	int32_t *tokens;
	size_t n;
	int status = cli_tokens("--tokens", run->tokens, &tokens, &n);

	if (status)
		return status;
	if (outrider_request_set_tokens(run->request, tokens, n) < 0)
		status = refused();
	free(tokens);
	return status;
}

static int use_replay(struct run *run)
{
	char *text = NULL;
	int32_t *tokens;
	size_t n, bytes;
	int status;

	/* Ids, or a file of ids. */
	if (strspn(run->replay, "0123456789, ") != strlen(run->replay)) {
		status = cli_read_file(run->replay, &text, &bytes);
		if (status)
			return status;
	}
	status = cli_tokens("--replay", text ? text : run->replay, &tokens, &n);
	free(text);
	if (status)
		return status;
	if (outrider_request_set_replay(run->request, tokens, n, (float)run->replay_error) < 0)
		status = refused();
	free(tokens);
	return status;
}

static int load(struct run *run)
{
	int status = 0;

	if (run->flags.system &&
		outrider_request_add_message(run->request, "system", run->flags.system) < 0)
		return refused();
	if (run->replay && outrider_request_set_draft_method(run->request, "replay") < 0)
		return refused();
	if (run->replay)
		status = use_replay(run);
	if (status)
		return status;
	if (run->tokens)
		return use_tokens(run);
	if (run->messages)
		return load_messages(run);
	return run->prompt ? use_text(run, run->prompt) : load_text(run);
}

static int end_status(const struct answer *answer)
{
	if (answer->out_of_memory)
		return cli_fail(EX_OSERR, "no memory for the answer");
	if (answer->write_error)
		return cli_fail(EX_IOERR, "standard output: %s", strerror(answer->write_error));
	switch (answer->end) {
	case OUTRIDER_END_ERROR:
		return cli_fail(EX_SOFTWARE, "%s",
			answer->message[0] ? answer->message : "the service failed");
	case OUTRIDER_END_DEADLINE:
		return cli_fail(EX_TEMPFAIL, "the time limit was reached after %zu tokens",
			answer->n_tokens);
	case OUTRIDER_END_CANCELLED:
		return STATUS_INTERRUPTED;
	default:
		return EX_OK;
	}
}

/* Has the answer's tokens checked without an expert budget. */
static int audit(struct run *run, struct outrider *client, const struct answer *answer,
	struct answer *audited, struct outrider_stream **stream)
{
	int code = outrider_request_set_audit(run->request, answer->tokens, answer->n_tokens);

	if (code == 0)
		code = outrider_request_set_budget(run->request, "all", NULL, NULL);
	if (code == 0)
		code = outrider_request_set_uid(run->request, 0);
	if (code == 0)
		code = outrider_start(client, run->request, stream);
	return code == 0 ? answer_read(audited, *stream) : code;
}

/* Prints what is not the answer's text itself. */
static void print_rest(struct run *run, struct outrider *client, struct answer *answer,
	const struct answer *audited)
{
	if (run->json)
		answer_print_json(answer, audited, stdout);
	if (fflush(stdout) != 0 && !answer->write_error)
		answer->write_error = errno;
	bool says = run->flags.stats || (audited && !run->json);
	/* If the answer does not end its last line, what follows still gets a line of its own when
	 * both go to the same place. */
	if (says && !run->json && answer->text_bytes && !isatty(STDOUT_FILENO) &&
		answer->text[answer->text_bytes - 1] != '\n')
		fputc('\n', stderr);
	if (run->flags.stats)
		answer_print_stats(answer, stderr);
	if (audited && !run->json)
		answer_print_audit(audited, client, stderr);
	answer_say_full(answer, run->flags.max_tokens);
}

static int generate(struct run *run, struct outrider *client)
{
	struct answer answer = {.show = !run->json, .live = run->flags.stats && !run->json};
	struct answer audited = {0};
	struct outrider_stream *stream, *second = NULL;
	int status, code = outrider_start(client, run->request, &stream);

	if (code == 0)
		code = answer_read(&answer, stream);
	/* On a terminal the prompt should not follow the answer on its line; a pipe gets the text
	 * alone. */
	if (!run->json && answer.text_bytes && isatty(STDOUT_FILENO))
		putchar('\n');
	bool whole = answer.end != OUTRIDER_END_ERROR && answer.end != OUTRIDER_END_CANCELLED &&
		     !answer.out_of_memory;
	bool again = run->audit && whole && answer.n_tokens > 0;
	if (code == 0 && again)
		code = audit(run, client, &answer, &audited, &second);
	if (code < 0) {
		status = cli_fail(request_exit_status(code), "%s", outrider_error());
	} else {
		print_rest(run, client, &answer, again ? &audited : NULL);
		status = end_status(&answer);
		if (status == EX_OK && again)
			status = end_status(&audited);
	}
	answer_free(&answer);
	answer_free(&audited);
	outrider_stream_free(&second);
	outrider_stream_free(&stream);
	return status;
}

int command_run(int argc, char **argv)
{
	struct run run = {.flags = REQUEST_FLAGS_INIT};
	struct outrider *client = NULL;
	bool help;
	int status;

	if (outrider_request_new(&run.request) < 0)
		return cli_fail(EX_OSERR, "%s", outrider_error());
	status = parse(&run, argc, argv, &help);
	if (status == 0 && !help)
		status = load(&run);
	if (status == 0 && !help)
		status = request_flags_connect(&run.flags, &client);
	if (status == 0 && !help)
		status = generate(&run, client);
	outrider_close(&client);
	request_flags_free(&run.flags);
	outrider_request_free(&run.request);
	return status;
}
