/*
 * Tools in conversations: what clients send, in the form that a template takes. OpenAI's clients send the arguments of a call as a
 * string; most templates want the object, some the string. Some write None where a call has no text beside it. What a template
 * takes is tried. A template that knows nothing of tools gets them in messages, in Hermes' notation. The role developer becomes
 * system where the template does not know it.
 */
#pragma once

#include "shared/model/text/template/template.h"

/* Whether a template reads tools at all. */
bool chat_takes_tools(const char *source, size_t bytes);

/* chat_render_parts with input->data in the form that the template, which has this source, takes. */
int chat_render_tools(const struct template *template, const char *source, size_t bytes,
	const struct template_input *input, struct template_text *out, struct error *err);
