#include "client/cli/utf8.h"

#include "shared/base/utf8.h"

#include <stdlib.h>
#include <string.h>

char *utf8_clean(const char *text, size_t bytes, size_t *out_bytes)
{
	char *out = malloc(3 * bytes + 1);
	size_t used = 0;

	if (!out)
		return NULL;
	for (size_t i = 0; i < bytes;) {
		size_t n = utf8_sequence(text + i, bytes - i);

		if (n)
			memcpy(out + used, text + i, n);
		else
			memcpy(out + used, "\xef\xbf\xbd", 3);
		used += n ? n : 3;
		i += n ? n : 1;
	}
	out[used] = '\0';
	*out_bytes = used;
	return out;
}
