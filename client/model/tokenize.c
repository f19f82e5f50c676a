/* outrider-model tokenize: from standard input (or --text) to token ids, and with --tokens back to
 * text. */
#include "client/model/args.h"
#include "client/model/engine.h"
#include "client/model/file_commands.h"
#include "shared/base/file.h"
#include "shared/model/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { INPUT_BYTES_MAX = 256 << 20 };

struct options {
	const char *model, *format, *text, *prompt, *tokens;
	bool special, chat, help;
};

static void print_ids(const struct options *o, const int32_t *ids, size_t n)
{
	bool json = strcmp(o->format, "json") == 0;
	fputs(json ? "{\"tokens\": [" : "", stdout);
	for (size_t i = 0; i < n; i++)
		printf("%s%d", i ? (json ? ", " : " ") : "", ids[i]);
	puts(json ? "]}" : "");
}

static int encode(const struct tokenizer *t, const struct options *o, const char *text,
	size_t bytes, struct error *err)
{
	int32_t *ids = NULL;
	size_t n = 0, capacity = 0;
	int rc = tokenizer_encode(t, text, bytes, o->special, &ids, &n, &capacity, err);
	if (rc == 0)
		print_ids(o, ids, n);
	free(ids);
	return rc;
}

/* The tokens that generate runs for the same prompt. */
static int encode_prompt(const struct gguf *gguf, const struct tokenizer *t,
	const struct options *o, struct error *err)
{
	int32_t *ids;
	size_t n;
	int rc = engine_encode(gguf, t, o->prompt, o->chat, &ids, &n, err);
	if (rc == 0)
		print_ids(o, ids, n);
	free(ids);
	return rc;
}

static bool is_control(const struct tokenizer *t, int32_t id)
{
	return tokenizer_piece(t, id, false).bytes < tokenizer_piece(t, id, true).bytes;
}

/* The text of ids; control tokens are shown with --special. */
static int print_text(const struct tokenizer *t, const struct options *o, struct error *err)
{
	int32_t *ids = NULL;
	uint32_t n = 0;
	size_t bytes = 0, at = 0;
	int rc = args_tokens(o->tokens, &ids, &n, err);
	for (uint32_t i = 0; !rc && i < n; i++) {
		if (ids[i] < 0 || (uint32_t)ids[i] >= tokenizer_n_vocab(t))
			rc = error_set(err, EINVAL, "token %d is not in the vocabulary of 0 to %u",
				ids[i], tokenizer_n_vocab(t) - 1);
		bytes += tokenizer_piece(t, ids[i], o->special).bytes;
	}
	char *text = rc ? NULL : malloc(bytes + 1);
	if (!text) {
		free(ids);
		return rc ? rc : error_set(err, ENOMEM, "no memory for %zu bytes of text", bytes);
	}
	bool begins = tokenizer_adds_space(t);
	for (uint32_t i = 0; i < n; i++) {
		struct gguf_string piece = tokenizer_piece(t, ids[i], o->special);
		/* The space that the tokenizer added before the text is not part of it. */
		size_t skip = begins && piece.bytes && piece.data[0] == ' ';
		memcpy(text + at, piece.data + skip, piece.bytes - skip);
		at += piece.bytes - skip;
		begins = tokenizer_adds_space(t) && is_control(t, ids[i]);
	}
	bytes = at;
	if (strcmp(o->format, "json") == 0) {
		fputs("{\"text\": ", stdout);
		engine_json_string(stdout, text, bytes);
		puts("}");
	} else {
		fwrite(text, 1, bytes, stdout);
	}
	free(text);
	free(ids);
	return 0;
}

static int run(const struct options *o, struct error *err)
{
	struct gguf *gguf;
	struct tokenizer *t;
	int rc = gguf_open(o->model, &gguf, err);
	if (rc)
		return rc;
	rc = tokenizer_load(gguf, &t, err);
	if (rc) {
		gguf_close(&gguf);
		return gguf_error_prefix(err, rc, o->model);
	}
	if (o->tokens) {
		rc = print_text(t, o, err);
	} else if (o->prompt) {
		rc = encode_prompt(gguf, t, o, err);
	} else if (o->text) {
		rc = encode(t, o, o->text, strlen(o->text), err);
	} else {
		char *text;
		size_t n;
		rc = file_read("-", INPUT_BYTES_MAX, &text, &n, err);
		if (!rc)
			rc = encode(t, o, text, n, err);
		free(text);
	}
	tokenizer_free(&t);
	gguf_close(&gguf);
	return rc;
}

int command_tokenize(int argc, char **argv)
{
	struct options o = {.format = "json"};
	struct error err = {""};
	const struct arg args[] = {
		{"model", ARG_STRING, &o.model, 0, 0, "FILE",
			"the GGUF file whose vocabulary is used"},
		{"text", ARG_STRING, &o.text, 0, 0, "TEXT", "the text; default: standard input"},
		{"prompt", ARG_STRING, &o.prompt, 0, 0, "TEXT",
			"a prompt, with the beginning token that generate gives it"},
		{"chat", ARG_FLAG, &o.chat, 0, 0, NULL, "the prompt is a user's message"},
		{"tokens", ARG_STRING, &o.tokens, 0, 0, "IDS",
			"print the text of these ids, as 1,2,3"},
		{"special", ARG_FLAG, &o.special, 0, 0, NULL,
			"recognise control tokens written in the text"},
		{"format", ARG_FORMAT, &o.format, 0, 0, "json|text", "output format, default json"},
		{"help", ARG_FLAG, &o.help, 0, 0, NULL, "print this text"},
		{0},
	};
	if (args_parse(argc, argv, args, &err))
		return engine_usage(&err);
	if (o.help) {
		puts("usage: outrider-model tokenize --model FILE [--special] < TEXT\n"
		     "       outrider-model tokenize --model FILE --prompt TEXT [--chat]\n"
		     "       outrider-model tokenize --model FILE --tokens 1,2,3\n");
		args_help(args, stdout);
		return EX_OK;
	}
	if (!o.model)
		error_set(&err, EINVAL, "tokenize needs --model FILE");
	else if (strcmp(o.format, "json") != 0 && strcmp(o.format, "text") != 0)
		error_set(&err, EINVAL, "--format: \"%s\", allowed are json and text", o.format);
	else if (!!o.text + !!o.prompt + !!o.tokens > 1)
		error_set(&err, EINVAL, "only one of --text, --prompt and --tokens can be given");
	else if (o.chat && !o.prompt)
		error_set(&err, EINVAL, "--chat needs --prompt");
	else if (o.special && o.prompt)
		error_set(&err, EINVAL, "--special is for text and --tokens, not for --prompt");
	if (err.text[0])
		return engine_usage(&err);
	int rc = run(&o, &err);
	return rc ? engine_fail(rc, &err) : EX_OK;
}
