#include "client/model/engine.h"

#include "shared/base/utf8.h"

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

size_t engine_not_utf8(const char *text, size_t bytes)
{
	size_t i = 0, n;
	while ((n = utf8_sequence(text + i, bytes - i)) > 0)
		i += n;
	return i;
}

void engine_json_string(FILE *to, const char *text, size_t bytes)
{
	const char *at = text, *end = text + bytes;
	putc('"', to);
	while (at < end) {
		size_t n = utf8_sequence(at, (size_t)(end - at));
		if (n == 0) {
			fputs("\\ufffd", to);
			n = utf8_ill_formed(at, (size_t)(end - at));
		} else if (*at == '"' || *at == '\\') {
			fprintf(to, "\\%c", *at);
		} else if ((unsigned char)*at < 0x20) {
			fprintf(to, "\\u%04x", *at);
		} else {
			fwrite(at, 1, n, to);
		}
		at += n;
	}
	putc('"', to);
}
