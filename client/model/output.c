#include "client/model/engine.h"

#include <string.h>
#include <sysexits.h>

static void complain(const struct error *err)
{
	struct error shown = *err;
	error_tame(shown.text);
	fprintf(stderr, "outrider-model: %s\n", shown.text);
}

int engine_fail(int rc, const struct error *err)
{
	complain(err);
	return error_exit_status(rc);
}

int engine_usage(const struct error *err)
{
	complain(err);
	return EX_USAGE;
}

bool engine_json(const struct engine *e)
{
	return !e->options.format || strcmp(e->options.format, "json") == 0;
}

/* Bytes of the UTF-8 sequence at text (RFC 3629: no overlong forms, no surrogates), 0 when it is none. */
static size_t utf8_bytes(const unsigned char *text, size_t bytes)
{
	unsigned char first = text[0];
	size_t n = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
	if (n == 0 || n > bytes || first > 0xF4)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((text[i] & 0xC0) != 0x80)
			return 0;
	if ((first == 0xE0 && text[1] < 0xA0) || (first == 0xED && text[1] > 0x9F) ||
		(first == 0xF0 && text[1] < 0x90) || (first == 0xF4 && text[1] > 0x8F))
		return 0;
	return n;
}

size_t engine_not_utf8(const char *text, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)text;
	size_t i = 0, n;
	while (i < bytes && (n = utf8_bytes(at + i, bytes - i)) > 0)
		i += n;
	return i;
}

void engine_json_string(FILE *to, const char *text, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
	putc('"', to);
	while (at < end) {
		size_t n = utf8_bytes(at, (size_t)(end - at));
		if (n == 0) {
			fputs("\\ufffd", to);
			n = 1;
		} else if (*at == '"' || *at == '\\') {
			fprintf(to, "\\%c", *at);
		} else if (*at < 0x20) {
			fprintf(to, "\\u%04x", *at);
		} else {
			fwrite(at, 1, n, to);
		}
		at += n;
	}
	putc('"', to);
}
