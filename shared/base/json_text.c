#include "shared/base/json_text.h"

#include "shared/base/utf8.h"

#include <stdlib.h>
#include <string.h>

json_t *json_text(const char *text)
{
	size_t bytes;
	char *clean = utf8_clean(text, strlen(text), &bytes);
	json_t *json = clean ? json_stringn(clean, bytes) : NULL;

	free(clean);
	return json;
}

bool json_tell(FILE *to, int status, const char *text)
{
	json_t *root = json_pack("{s:o}", status ? "error" : "notice", json_text(text));

	if (root && status)
		json_object_set_new(root, "status", json_integer(status));
	if (root) {
		json_dumpf(root, to, 0);
		fputc('\n', to);
	}
	json_decref(root);
	return root != NULL;
}
