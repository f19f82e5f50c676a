/* Conversation -> token ids. ChatML, as the demo models and Qwen write it; a file whose chat_template is another
 * is refused by name (the general template interpreter is another issue). Only the template's own markers are
 * parsed as special tokens; message text never is. */
#pragma once

#include "shared/model/tokenizer.h"

struct chat_message {
	const char *role; /* "system", "user", "assistant" */
	const char *text;
	size_t text_bytes;
};

/* Appends to *ids as tokenizer_encode does; ends with the opening of the assistant's turn. A template's default system
 * message comes first where it has one and the conversation does not. messages[].text may be NULL when empty. -ENOTSUP:
 * no template, or one that is not ChatML. -EINVAL: an unknown role, no messages. */
int chat_encode(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, int32_t **ids, size_t *n,
	size_t *capacity, struct error *err);
