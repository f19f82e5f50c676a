#include "client/cli/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Length of the valid sequence at s (Unicode 15, table 3-7), 0 when there is none. */
static size_t sequence(const unsigned char *s, size_t left)
{
	unsigned char low = 0x80, high = 0xbf;
	size_t n;

	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		n = 2;
	else if (s[0] >= 0xe0 && s[0] <= 0xef)
		n = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		n = 4;
	else
		return 0;
	/* No overlong forms, surrogates, or values beyond U+10FFFF. */
	if (s[0] == 0xe0)
		low = 0xa0;
	else if (s[0] == 0xed)
		high = 0x9f;
	else if (s[0] == 0xf0)
		low = 0x90;
	else if (s[0] == 0xf4)
		high = 0x8f;
	if (left < n || s[1] < low || s[1] > high)
		return 0;
	for (size_t i = 2; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

char *utf8_clean(const char *text, size_t bytes, size_t *out_bytes)
{
	const unsigned char *s = (const unsigned char *)text;
	char *out = malloc(3 * bytes + 1);
	size_t used = 0;

	if (!out)
		return NULL;
	for (size_t i = 0; i < bytes;) {
		size_t n = sequence(s + i, bytes - i);

		if (n)
			memcpy(out + used, s + i, n);
		else
			memcpy(out + used, "\xef\xbf\xbd", 3);
		used += n ? n : 3;
		i += n ? n : 1;
	}
	out[used] = '\0';
	*out_bytes = used;
	return out;
}
