/*
 * Tools in conversations: brings what clients send into the form that a template takes. chat.c
 * calls this. Any thread.
 *
 * OpenAI's clients send the arguments of a call as a string. Most templates expect an object, some
 * the string. For a call without text, some templates write None. There is no key that tells which
 * form a template takes, so the forms are tried in turn. A template that knows nothing of tools
 * gets them in messages, in Hermes' notation. The role developer becomes system if the template
 * does not know it.
 */
#pragma once

#include "shared/model/text/template/template.h"

/* True when a template with this source reads tools at all. */
bool chat_takes_tools(const char *source, size_t bytes);

/* Calls chat_render_parts with input->data in the form that the template takes, and fails like it.
 * source: the template's, of `bytes` bytes. */
int chat_render_tools(const struct template *template, const char *source, size_t bytes,
	const struct template_input *input, struct template_text *out, struct error *err);
