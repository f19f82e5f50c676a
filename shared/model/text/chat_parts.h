/* Content as a list of parts, for templates that know strings alone. */
#pragma once

#include "shared/model/text/template/template.h"

/* template_render; where that fails, or writes a list of parts as Python writes a list, and messages of input->data have
 * content of text parts alone ({"type": "text", "text": ...}), once more with their texts joined by newlines, as llama.cpp
 * and vLLM join them. The error is the second one's. */
int chat_render_parts(const struct template *template, const struct template_input *input,
	struct template_text *out, struct error *err);
