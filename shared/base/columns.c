#include "shared/base/columns.h"

#include <stdio.h>
#include <string.h>

int columns_of(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
}

/* Number of bytes before the text's column n. */
static size_t bytes_before(const char *text, int n)
{
	size_t i = 0;

	for (; text[i]; i++)
		if (((unsigned char)text[i] & 0xc0) != 0x80 && n-- == 0)
			break;
	return i;
}

const char *columns_shorten(const char *text, int columns, char *out, size_t bytes)
{
	int all = columns_of(text), head = (columns - 3) / 3;

	if (all <= columns)
		snprintf(out, bytes, "%s", text);
	else
		snprintf(out, bytes, "%.*s...%s", (int)bytes_before(text, head), text,
			text + bytes_before(text, all - (columns - 3 - head)));
	return out;
}

size_t columns_fit(const char *text, int columns)
{
	size_t all = strlen(text), best = 0;

	if (columns_of(text) <= columns)
		return all;
	for (size_t i = 0; i < all; i++) {
		if (text[i] != ' ')
			continue;
		if (best > 0 && i > bytes_before(text, columns))
			break;
		best = i;
		if (i > bytes_before(text, columns))
			break;
	}
	return best > 0 ? best : all;
}

void columns_fold(FILE *to, const char *text, int at, int indent)
{
	for (;;) {
		size_t n = columns_fit(text, at < COLUMNS_LINE ? COLUMNS_LINE - at : 1);

		fprintf(to, "%.*s\n", (int)n, text);
		text += n;
		while (*text == ' ')
			text++;
		if (!*text)
			return;
		fprintf(to, "%*s", indent, "");
		at = indent;
	}
}
