/* Message content that is a list of parts, for templates that expect strings. Any thread. */
#pragma once

#include "shared/model/text/template/template.h"

/* Calls template_render. If that fails, or writes a list of parts in Python's notation, and
 * input->data has messages whose content consists of text parts ({"type": "text", "text": ...}), it
 * renders once more with their texts joined by newlines, as llama.cpp and vLLM join them. The error
 * is then that of the second attempt. */
int chat_render_parts(const struct template *template, const struct template_input *input,
	struct template_text *out, struct error *err);
/* Content that consists of text parts as one text; any other content unchanged. A new reference;
 * NULL when memory is exhausted. */
json_t *chat_parts_text(const json_t *content);
