/* outrider-model render: renders a conversation with a chat template of a model or a file. */
#include "client/model/args.h"
#include "client/model/engine.h"
#include "client/model/file_commands.h"
#include "shared/base/file.h"
#include "shared/model/text/chat.h"
#include "shared/model/text/chat_tools.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { FILE_BYTES_MAX = 64 << 20 };

struct options {
	const char *model, *template, *name, *messages, *now, *bos, *eos, *format;
	struct arg_strings set;
	bool no_generation_prompt, help;
};

/* Reads a list of messages, or an object with messages, tools and whatever else the template reads.
 */
static int read_messages(const char *path, json_t **variables, struct error *err)
{
	char *text;
	size_t n;
	json_error_t where;
	int rc = file_read(path, FILE_BYTES_MAX, &text, &n, err);
	if (rc)
		return rc;
	json_t *json = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &where);
	free(text);
	if (!json)
		return error_set(err, EINVAL, "%s: line %d, column %d: %.200s", path, where.line,
			where.column, where.text);
	if (json_is_array(json))
		json = json_pack("{s:o}", "messages", json);
	if (!json)
		return error_set(err, ENOMEM, "no memory for the messages");
	*variables = json;
	if (!json_is_array(json_object_get(json, "messages")))
		return error_set(err, EINVAL,
			"%s is neither a list of messages nor an object with \"messages\"", path);
	return 0;
}

static int read_now(const char *text, struct tm *now, struct error *err)
{
	struct tm read = {0};
	const char *end = strptime(text, "%Y-%m-%d", &read);
	if (end && (*end == ' ' || *end == 'T'))
		end = strptime(end + 1, "%H:%M:%S", &read);
	if (!end || *end)
		return error_set(err, EINVAL,
			"--now: \"%s\", expected a time such as 2026-01-15 12:00:00", text);
	/* Fills in the days of the week and the year. */
	time_t seconds = timegm(&read);
	gmtime_r(&seconds, now);
	return 0;
}

static int render_file(const struct options *o, const json_t *variables, const json_t *special,
	const struct tm *now, struct template_text *out, struct error *err)
{
	struct template *template;
	struct template_input input = {variables, special, now};
	char *source;
	size_t n;
	assert(o->template); /* command_render has checked that there is one of the two */
	int rc = file_read(o->template, FILE_BYTES_MAX, &source, &n, err);
	if (rc)
		return rc;
	/* Jinja reads text; in a template that was saved as Latin-1, each character beyond ASCII
	 * would be broken. */
	size_t bad = engine_not_utf8(source, n);
	if (bad < n) {
		free(source);
		return error_set(err, EILSEQ, "%s: byte %zu is not UTF-8", o->template, bad);
	}
	rc = template_parse(source, n, &template, err);
	if (!rc)
		rc = chat_render_tools(template, source, n, &input, out, err);
	template_free(&template);
	free(source);
	return rc ? error_prefix(err, rc, "%s", o->template) : 0;
}

static int render_model(const struct options *o, json_t *variables, const struct tm *now,
	struct template_text *out, struct error *err)
{
	struct gguf *gguf;
	struct chat_options options = {.name = o->name, .now = now};
	int rc = gguf_open(o->model, &gguf, err);
	if (rc)
		return rc;
	rc = chat_render(gguf, variables, &options, out, err);
	gguf_close(&gguf);
	return rc ? gguf_error_prefix(err, rc, o->model) : 0;
}

static void print(const struct options *o, const struct template_text *text)
{
	if (strcmp(o->format, "json") == 0) {
		fputs("{\"text\": ", stdout);
		engine_json_string(stdout, text->data, text->bytes);
		puts("}");
	} else {
		fwrite(text->data, 1, text->bytes, stdout);
	}
}

static int run(const struct options *o, struct error *err)
{
	struct template_text text = {0};
	struct tm now;
	json_t *variables = NULL, *special = json_object();
	assert(o->messages);
	int rc = special ? 0 : error_set(err, ENOMEM, "no memory for the messages");
	if (!rc && o->now)
		rc = read_now(o->now, &now, err);
	if (!rc)
		rc = read_messages(o->messages, &variables, err);
	if (!rc)
		json_object_set_new(
			variables, "add_generation_prompt", json_boolean(!o->no_generation_prompt));
	for (size_t i = 0; !rc && i < o->set.n; i++) {
		rc = chat_set_variable(variables, o->set.items[i], err);
		if (rc)
			error_prefix(err, rc, "--set");
	}
	if (!rc &&
		((o->bos && json_object_set_new(special, "bos_token", json_string(o->bos))) ||
			(o->eos && json_object_set_new(special, "eos_token", json_string(o->eos)))))
		rc = error_set(err, EINVAL, "--bos and --eos must be UTF-8");
	if (!rc)
		rc = o->model
			     ? render_model(o, variables, o->now ? &now : NULL, &text, err)
			     : render_file(o, variables, special, o->now ? &now : NULL, &text, err);
	if (!rc)
		print(o, &text);
	template_text_free(&text);
	json_decref(variables);
	json_decref(special);
	return rc;
}

int command_render(int argc, char **argv)
{
	struct options o = {.format = "json"};
	struct error err = {""};
	const struct arg args[] = {
		{"model", ARG_STRING, &o.model, 0, 0, "FILE",
			"the GGUF file whose template is used"},
		{"template", ARG_STRING, &o.template, 0, 0, "FILE", "or a template alone"},
		{"template-name", ARG_STRING, &o.name, 0, 0, "NAME",
			"one of several templates of the model"},
		{"messages", ARG_STRING, &o.messages, 0, 0, "FILE",
			"JSON: messages, or an object with messages and tools; - is standard "
			"input"},
		{"no-generation-prompt", ARG_FLAG, &o.no_generation_prompt, 0, 0, NULL,
			"do not open the assistant's turn"},
		{"set", ARG_STRINGS, &o.set, 0, 0, "NAME=VALUE",
			"a variable of the template: JSON, else a string"},
		{"now", ARG_STRING, &o.now, 0, 0, "TIME",
			"the local time, such as 2026-01-15 12:00:00"},
		{"bos", ARG_STRING, &o.bos, 0, 0, "TEXT", "bos_token of --template"},
		{"eos", ARG_STRING, &o.eos, 0, 0, "TEXT", "eos_token of --template"},
		{"format", ARG_FORMAT, &o.format, 0, 0, "json|text", "output format, default json"},
		{"help", ARG_FLAG, &o.help, 0, 0, NULL, "print this text"},
		{0},
	};
	if (args_parse(argc, argv, args, &err))
		return engine_usage(&err);
	if (o.help) {
		puts("usage: outrider-model render --model FILE --messages FILE.json\n"
		     "       outrider-model render --template FILE --messages FILE.json\n");
		args_help(args, stdout);
		return EX_OK;
	}
	if (!o.model == !o.template)
		error_set(&err, EINVAL, "render needs one of --model FILE and --template FILE");
	else if (!o.messages)
		error_set(&err, EINVAL, "render needs --messages FILE");
	else if (strcmp(o.format, "json") != 0 && strcmp(o.format, "text") != 0)
		error_set(&err, EINVAL, "--format: \"%s\", allowed are json and text", o.format);
	else if (o.model && (o.bos || o.eos))
		error_set(&err, EINVAL, "--bos and --eos need --template; a model has its own");
	else if (o.template && o.name)
		error_set(&err, EINVAL, "--template-name needs --model");
	if (err.text[0])
		return engine_usage(&err);
	int rc = run(&o, &err);
	return rc ? engine_fail(rc, &err) : EX_OK;
}
