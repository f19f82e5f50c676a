/* A template and the variables it reads, from one input: the template, a NUL, JSON. It renders or says why not, and what
 * it renders from data alone is never taken for the template's. */
#include "shared/model/text/template/template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Marked bytes are bytes that the template wrote: without any "~" in it, none in the output can be one of its. */
static void check(const char *source, size_t bytes, const struct template_text *out)
{
	if (out->data[out->bytes])
		abort();
	if (memchr(source, '~', bytes) || memchr(source, '\\', bytes) || memchr(source, '%', bytes))
		return;
	for (size_t i = 0; i < out->bytes; i++)
		if (out->data[i] == '~' && out->literal[i])
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const struct template_limits limits = {100000, 800, 1 << 18, 16 << 20};
	const char *source = (const char *)data;
	const char *end = bytes ? memchr(source, 0, bytes) : NULL;
	size_t source_bytes = end ? (size_t)(end - source) : bytes;
	struct error err = {""};
	struct template *template;
	if (template_parse(source, source_bytes, &template, &err)) {
		if (strncmp(err.text, "template ", 9) != 0 &&
			strncmp(err.text, "the template ", 13) != 0)
			abort();
		return 0;
	}
	json_t *json =
		end ? json_loadb(end + 1, bytes - source_bytes - 1, JSON_ALLOW_NUL, NULL) : NULL;
	json_t *trusted = json_pack("{s:s}", "bos_token", "<s>");
	struct tm now = {.tm_year = 126, .tm_mday = 15};
	struct template_input input = {json, trusted, &now};
	struct template_text out;
	if (template_render(template, &input, &limits, &out, &err) == 0)
		check(source, source_bytes, &out);
	else if (strncmp(err.text, "template line ", 14) != 0 || out.data)
		abort();
	template_text_free(&out);
	template_free(&template);
	json_decref(json);
	json_decref(trusted);
	return 0;
}
