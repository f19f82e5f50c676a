#include "shared/base/utf8.h"

#include <stdlib.h>
#include <string.h>

size_t utf8_sequence(const char *text, size_t bytes)
{
	const unsigned char *p = (const unsigned char *)text;
	if (!bytes || p[0] >= 0xf5 || (p[0] >= 0x80 && p[0] < 0xc2))
		return 0;
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	if (bytes < n)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	}
	/* Overlong forms, surrogates, beyond U+10FFFF. */
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
		(p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

size_t utf8_ill_formed(const char *text, size_t bytes)
{
	const unsigned char *p = (const unsigned char *)text;
	if (!bytes)
		return 0;
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return 1;
	size_t n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4, i = 1;
	unsigned low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
	unsigned high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
	for (; i < n && i < bytes && p[i] >= low && p[i] <= high; i++) {
		low = 0x80;
		high = 0xbf;
	}
	return i;
}

char *utf8_clean(const char *text, size_t bytes, size_t *out_bytes)
{
	/* A single byte becomes at most three. */
	char *out = malloc(3 * bytes + 1);
	size_t used = 0;

	if (out == NULL)
		return NULL;
	for (size_t i = 0; i < bytes;) {
		size_t n = utf8_sequence(text + i, bytes - i);

		if (n) {
			memcpy(out + used, text + i, n);
			used += n;
			i += n;
		} else {
			memcpy(out + used, "\xef\xbf\xbd", 3);
			used += 3;
			i += utf8_ill_formed(text + i, bytes - i);
		}
	}
	out[used] = '\0';
	*out_bytes = used;
	return out;
}
