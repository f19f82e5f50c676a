/* An answer in pieces: the first byte says the notation, the second where it is cut. The same is found in it as a whole, and nothing
 * of its content is lost where there is no call. */
#include "shared/model/calls/calls.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct found {
	char *text;
	size_t n;
	unsigned calls, thoughts;
	bool open; /* a call */
};

static void add(struct found *f, const char *text, size_t bytes)
{
	f->text = realloc(f->text, f->n + bytes + 1);
	if (f->text == NULL)
		abort();
	memcpy(f->text + f->n, text, bytes);
	f->n += bytes;
}

static void on_content(void *arg, const char *text, size_t bytes)
{
	add(arg, text, bytes);
}

/* Thoughts and contents do not mix: a mark is put where one begins behind the other. */
static void on_thought(void *arg, const char *text, size_t bytes)
{
	((struct found *)arg)->thoughts += (unsigned)bytes;
	(void)text;
}

static void on_call(void *arg, const char *name)
{
	struct found *f = arg;

	if (f->open || (strcmp(name, "f") != 0 && strcmp(name, "g") != 0))
		abort();
	f->open = true;
	f->calls++;
	add(f, name, strlen(name));
}

static void on_arguments(void *arg, const char *text, size_t bytes)
{
	struct found *f = arg;

	if (!f->open || bytes == 0)
		abort();
	add(f, text, bytes);
}

static void on_call_end(void *arg)
{
	struct found *f = arg;

	if (!f->open)
		abort();
	f->open = false;
}

static void parse(const struct calls_format *format, const json_t *tools, bool thinking,
	const uint8_t *data, size_t bytes, size_t step, struct found *out)
{
	struct calls_sink sink = {out, on_content, on_thought, on_call, on_arguments, on_call_end};
	struct calls_parser *parser = calls_new(format, tools, thinking, &sink);

	if (parser == NULL)
		abort();
	for (size_t at = 0, n; at < bytes; at += n) {
		n = step < bytes - at ? step : bytes - at;
		if (!calls_feed(parser, (const char *)data + at, n))
			abort();
	}
	if (!calls_finish(parser) || out->open)
		abort();
	calls_free(&parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static json_t *tools;
	struct calls_format format = {.think = "<think>", .think_end = "</think>"};
	struct found whole = {0}, cut = {0};

	if (bytes < 2 || bytes > 65536)
		return 0;
	if (tools == NULL)
		tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\","
				   "\"parameters\":{\"properties\":{\"s\":{\"type\":"
				   "\"string\"}}}}},{\"function\":{\"name\":\"g\"}}]",
			0, NULL);
	format.notation = data[0] % (CALLS_LLAMA + 1);
	if (data[0] & 64)
		format.think = format.think_end = NULL;
	bool thinking = data[0] & 128;
	parse(&format, tools, thinking, data + 2, bytes - 2, bytes, &whole);
	parse(&format, tools, thinking, data + 2, bytes - 2, data[1] % 16 + 1u, &cut);
	if (whole.n != cut.n || whole.calls != cut.calls || whole.thoughts != cut.thoughts ||
		(whole.n > 0 && memcmp(whole.text, cut.text, whole.n) != 0))
		abort();
	/* Without calls, thoughts and what is markup in harmony, all of it is content. */
	if (whole.calls == 0 && format.think == NULL && format.notation != CALLS_HARMONY &&
		whole.n != bytes - 2)
		abort();
	free(whole.text);
	free(cut.text);
	return 0;
}
