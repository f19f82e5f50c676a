/* Conversation -> prompt, by the model's own chat template (shared/model/text/template). Special tokens come only from the
 * template: text of messages, tools and other data never becomes one, whatever it looks like. */
#pragma once

#include "shared/model/text/template/template.h"
#include "shared/model/text/tokenizer.h"

struct chat_message {
	const char *role; /* "system", "user", "assistant", "tool", "developer" or "function" */
	const char *text;
	size_t text_bytes;
	const char *
		json; /* the whole message as a JSON object, instead of role and text; NULL or "": none */
};

/* How to render; all zero is the usual way. */
struct chat_options {
	const char *
		name; /* of one of several templates (tokenizer.chat_template.NAME); NULL: the model's default, or
			   * "tool_use" when there is one and tools are given */
	const struct tm *now; /* what the template takes for the time; NULL: the local time */
};

/* variables: an object with messages, add_generation_prompt and what else the template reads; bos_token, eos_token,
 * unk_token and pad_token are added from the file. A file without a template is read as ChatML when its vocabulary has
 * <|im_start|>. Content in text parts that the template cannot take is joined (chat_parts.h). -ENOTSUP: no template; -EINVAL: it fails, with its line and column; -E2BIG: beyond a limit. */
int chat_render(const struct gguf *gguf, const json_t *variables,
	const struct chat_options *options, struct template_text *out, struct error *err);

/* chat_render, then the tokens of what it gives, appended to *ids as tokenizer_encode does. */
int chat_encode_variables(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const json_t *variables, const struct chat_options *options, int32_t **ids, size_t *n,
	size_t *capacity, struct error *err);

/* The same for a list of messages, ending with the opening of the assistant's turn. messages[].text may be NULL when
 * empty. variables: a JSON object with tools and what else the template reads, NULL or "": none. -EINVAL also for an unknown
 * role, for no messages and for what is no JSON object. */
int chat_encode_conversation(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, const char *variables,
	int32_t **ids, size_t *n, size_t *capacity, struct error *err);
/* The same, and the text that the tokens are of, which template_text_free frees; ids NULL: the text alone. */
int chat_conversation(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, const char *variables,
	struct template_text *text, int32_t **ids, size_t *n, size_t *capacity, struct error *err);
/* The template that conversations are rendered with, "" for none: borrowed, no NUL. */
struct gguf_string chat_template_source(const struct gguf *gguf);
int chat_encode(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, int32_t **ids, size_t *n,
	size_t *capacity, struct error *err);

/* "NAME=VALUE", as a person writes a variable of a template: VALUE is JSON, and what is no JSON is a string. Puts it into the
 * object. -EINVAL: not of that form, a name of 64 bytes or more, or not UTF-8. */
int chat_set_variable(json_t *variables, const char *text, struct error *err);

/* Adds the text of the file's bos, eos, unknown and padding tokens to an object, where it has them. 0 or -ENOMEM. */
int chat_add_special_tokens(const struct gguf *gguf, json_t *object, struct error *err);
