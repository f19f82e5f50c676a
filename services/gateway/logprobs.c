#include "services/gateway/logprobs.h"

#include "shared/base/utf8.h"

#include <stdlib.h>

static json_t *text_json(const struct outrider_logprob *of)
{
	size_t bytes;
	char *text = utf8_clean(of->text, of->text_bytes, &bytes);
	json_t *json = text ? json_stringn(text, bytes) : NULL;

	free(text);
	return json;
}

static json_t *bytes_json(const struct outrider_logprob *of)
{
	json_t *list = json_array();

	for (size_t i = 0; i < of->text_bytes; i++)
		json_array_append_new(list, json_integer((unsigned char)of->text[i]));
	return list;
}

static json_t *entry_json(const struct outrider_logprob *of)
{
	return json_pack("{s:o,s:f,s:o}", "token", text_json(of), "logprob", (double)of->logprob,
		"bytes", bytes_json(of));
}

/* Adds a token of a chat, with the n most likely tokens at its place. */
static bool add_to_chat(json_t *kept, const struct outrider_logprob *of, size_t n)
{
	json_t *entry = entry_json(of), *top = json_array();

	for (size_t i = 1; i <= n; i++)
		json_array_append_new(top, entry_json(&of[i]));
	json_object_set_new(entry, "top_logprobs", top);
	return json_array_append_new(json_object_get(kept, "content"), entry) == 0;
}

/* The number of characters that begin in a text. */
static json_int_t characters(const struct outrider_logprob *of)
{
	json_int_t n = 0;

	for (size_t i = 0; i < of->text_bytes; i++)
		n += ((unsigned char)of->text[i] & 0xC0) != 0x80;
	return n;
}

/* Sets a text's log probability, unless the object has a greater one: two tokens may have the same
 * text. */
static void set_greater(json_t *object, const struct outrider_logprob *of)
{
	json_t *key = text_json(of);
	const char *text = json_string_value(key);
	const json_t *there = text ? json_object_get(object, text) : NULL;

	if (text && (!there || json_real_value(there) < (double)of->logprob))
		json_object_set_new(object, text, json_real((double)of->logprob));
	json_decref(key);
}

/* The same for a completion. As OpenAI does, it lists the token itself among the most likely ones.
 */
static bool add_to_text(
	struct choice *choice, json_t *kept, const struct outrider_logprob *of, size_t n)
{
	json_t *top = n > 0 ? json_object() : json_null();

	for (size_t i = 0; n > 0 && i <= n; i++)
		set_greater(top, &of[i]);
	json_array_append_new(json_object_get(kept, "tokens"), text_json(of));
	json_array_append_new(
		json_object_get(kept, "token_logprobs"), json_real((double)of->logprob));
	json_array_append_new(json_object_get(kept, "top_logprobs"), top);
	int failed = json_array_append_new(
		json_object_get(kept, "text_offset"), json_integer(choice->n_characters));
	choice->n_characters += characters(of);
	return failed == 0;
}

static json_t *empty(bool chat)
{
	return chat ? json_pack("{s:[],s:n}", "content", "refusal")
		    : json_pack("{s:[],s:[],s:[],s:[]}", "tokens", "token_logprobs", "top_logprobs",
			      "text_offset");
}

bool logprobs_add(struct choice *choice, const struct outrider_event *event)
{
	bool chat = choice->exchange->params.chat;
	const struct outrider_logprob *of = event->logprobs;
	bool good = true;

	for (size_t i = 0; event->n_logprobs > 0 && i < event->n_tokens;
		i++, of += event->n_logprobs) {
		if (of->text_bytes == 0)
			continue;
		if (!choice->logprobs)
			choice->logprobs = empty(chat);
		good = good && choice->logprobs &&
		       (chat ? add_to_chat(choice->logprobs, of, event->n_logprobs - 1)
			     : add_to_text(choice, choice->logprobs, of, event->n_logprobs - 1));
	}
	return good;
}

json_t *logprobs_take(struct choice *choice)
{
	json_t *kept = choice->logprobs ? choice->logprobs : json_null();

	choice->logprobs = NULL;
	return kept;
}
