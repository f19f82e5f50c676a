/* From a conversation to a prompt, by the model's own chat template (shared/model/text/template).
 * Only the template can write special tokens: text of messages, tools and other data never becomes
 * one, whatever it looks like. Any thread. */
#pragma once

#include "shared/model/text/template/template.h"
#include "shared/model/text/tokenizer.h"

struct chat_message {
	const char *role; /* "system", "user", "assistant", "tool", "developer" or "function" */
	const char *text;
	size_t text_bytes;
	/* the whole message as a JSON object, instead of role and text; NULL or "": none */
	const char *json;
};

/* How to render; all zeros give the defaults. */
struct chat_options {
	/* which of several templates (tokenizer.chat_template.NAME); NULL: the model's default, or
	 * "tool_use" when there is one and tools are given */
	const char *name;
	const struct tm *now; /* the template's current time; NULL: the local time */
};

/* variables: an object with messages, add_generation_prompt and whatever else the template reads;
 * bos_token, eos_token, unk_token and pad_token are added from the file. For a file without a
 * template ChatML is used when its vocabulary has <|im_start|>. Content that consists of text parts
 * is joined when the template cannot use parts (chat_parts.h), and tools have the form that it
 * takes (chat_tools.h). *out: for the caller to free with template_text_free. -ENOTSUP: no
 * template; -EINVAL: the template failed, with line and column; -E2BIG: a limit. */
int chat_render(const struct gguf *gguf, const json_t *variables,
	const struct chat_options *options, struct template_text *out, struct error *err);

/* Renders, and appends the tokens of the result to *ids as tokenizer_encode does. Fails like
 * chat_render. */
int chat_encode_variables(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const json_t *variables, const struct chat_options *options, int32_t **ids, size_t *n,
	size_t *capacity, struct error *err);

/* The same for a list of messages, with the opening of the assistant's turn at the end.
 * messages[].text may be NULL when it is empty. variables: a JSON object with tools and whatever
 * else the template reads; NULL or "": none. -EINVAL also for an unknown role, for no messages, and
 * when variables is no JSON object. */
int chat_encode_conversation(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, const char *variables,
	int32_t **ids, size_t *n, size_t *capacity, struct error *err);
/* The same, and also returns the text, which the caller frees with template_text_free. ids NULL:
 * returns only the text. */
int chat_conversation(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, const char *variables,
	struct template_text *text, int32_t **ids, size_t *n, size_t *capacity, struct error *err);
/* The source of the template that renders conversations; "" if there is none. Borrowed, without a
 * NUL. */
struct gguf_string chat_template_source(const struct gguf *gguf);
/* chat_encode_conversation without variables. */
int chat_encode(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, int32_t **ids, size_t *n,
	size_t *capacity, struct error *err);

/* Puts a variable, as a person writes it, into the object: "NAME=VALUE", where VALUE is JSON or, if
 * it is not, a string. -EINVAL: not of that form, a name of 64 bytes or more, or not UTF-8. */
int chat_set_variable(json_t *variables, const char *text, struct error *err);

/* Adds the texts of the bos, eos, unknown and padding tokens that the file has to the object. 0 or
 * -ENOMEM. */
int chat_add_special_tokens(const struct gguf *gguf, json_t *object, struct error *err);
