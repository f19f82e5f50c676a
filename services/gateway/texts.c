#include "services/gateway/texts.h"

#include "services/gateway/exchange.h"
#include "services/gateway/generate.h"
#include "shared/base/json_text.h"
#include "shared/base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool no_memory(struct exchange *exchange)
{
	return fault_set(&exchange->fault, 500, NULL, "internal_error", "no memory for the answer");
}

static bool answer(struct exchange *exchange, json_t *value)
{
	exchange->complete = true;
	return text_add_json(&exchange->out, value, "", "\n") || no_memory(exchange);
}

static bool wrong(struct exchange *exchange, const char *field, const char *expected)
{
	return fault_set(
		&exchange->fault, 400, field, "invalid_type", "%s: expected %s", field, expected);
}

/* Reads a flag that may be left out. */
static bool read_flag(struct exchange *exchange, const json_t *body, const char *field, bool *value)
{
	const json_t *given = json_object_get(body, field);

	if (!given)
		return true;
	*value = json_is_true(given);
	return json_is_boolean(given) || wrong(exchange, field, "true or false");
}

static bool only(struct exchange *exchange, const json_t *body, const char *const *names)
{
	json_t *object = (json_t *)body, *value;
	const char *name;

	json_object_foreach(object, name, value)
	{
		size_t i = 0;

		while (names[i] && strcmp(names[i], name) != 0)
			i++;
		if (!names[i])
			return fault_set(&exchange->fault, 400, name, "unknown_parameter",
				"Unrecognized request argument supplied: %.64s", name);
	}
	return true;
}

/* The text of a token as JSON. A token may be part of a character, which a JSON string cannot hold:
 * it is then a list of its bytes. */
static json_t *piece(const char *text, size_t bytes)
{
	json_t *string = json_stringn(text, bytes); /* NULL when they are not UTF-8 */
	json_t *list;

	if (string)
		return string;
	list = json_array();
	for (size_t i = 0; i < bytes; i++)
		json_array_append_new(list, json_integer((uint8_t)text[i]));
	return list;
}

enum { WITH_PIECES = 1 << 16 };

static int ask_tokens(struct ask *ask, struct outrider *client)
{
	char *text = NULL;
	size_t bytes;
	int code = outrider_tokenize(client, ask->text, ask->flags & ~(unsigned)WITH_PIECES,
		ASKS_TIMEOUT_MS, &ask->tokens, &ask->n_tokens);

	if (code < 0 || !(ask->flags & WITH_PIECES))
		return code;
	code = outrider_detokenize(client, ask->tokens, ask->n_tokens, true, ASKS_TIMEOUT_MS, &text,
		&bytes, &ask->ends);
	outrider_free(ask->text);
	ask->text = text;
	return code;
}

static bool tell_tokens(struct exchange *exchange, struct ask *ask)
{
	json_t *list = json_array();
	uint32_t from = 0;

	for (size_t i = 0; i < ask->n_tokens; i++) {
		if (!ask->ends) {
			json_array_append_new(list, json_integer(ask->tokens[i]));
			continue;
		}
		json_array_append_new(list, json_pack("{s:i,s:o}", "id", ask->tokens[i], "piece",
						    piece(ask->text + from, ask->ends[i] - from)));
		from = ask->ends[i];
	}
	return answer(exchange, json_pack("{s:o}", "tokens", list));
}

static bool read_text(struct exchange *exchange, const json_t *body, struct ask *ask)
{
	static const char *const names[] = {
		"content", "add_special", "parse_special", "with_pieces", "model", NULL};
	const json_t *content = json_object_get(body, "content");
	bool first = false, special = true, pieces = false;

	if (!only(exchange, body, names) || !read_flag(exchange, body, "add_special", &first) ||
		!read_flag(exchange, body, "parse_special", &special) ||
		!read_flag(exchange, body, "with_pieces", &pieces))
		return false;
	if (!json_is_string(content))
		return wrong(exchange, "content", "a string");
	ask->run = ask_tokens;
	ask->done = tell_tokens;
	ask->flags = (first ? OUTRIDER_TOKENIZE_BOS : 0) |
		     (special ? OUTRIDER_TOKENIZE_SPECIAL : 0) | (pieces ? WITH_PIECES : 0);
	ask->text = strdup(json_string_value(content));
	return ask->text || no_memory(exchange);
}

static int ask_text(struct ask *ask, struct outrider *client)
{
	return outrider_detokenize(client, ask->tokens, ask->n_tokens, true, ASKS_TIMEOUT_MS,
		&ask->text, &ask->bytes, NULL);
}

/* Bytes that are no whole character become U+FFFD. */
static bool tell_text(struct exchange *exchange, struct ask *ask)
{
	size_t bytes;
	char *clean = utf8_clean(ask->text, ask->bytes, &bytes);
	json_t *text = clean ? json_stringn(clean, bytes) : NULL;

	free(clean);
	return answer(exchange, json_pack("{s:o}", "content", text));
}

static bool read_tokens(struct exchange *exchange, const json_t *body, struct ask *ask)
{
	static const char *const names[] = {"tokens", "model", NULL};
	const json_t *list = json_object_get(body, "tokens"), *id;
	size_t i;

	if (!only(exchange, body, names))
		return false;
	if (!json_is_array(list))
		return wrong(exchange, "tokens", "an array of token numbers");
	ask->run = ask_text;
	ask->done = tell_text;
	ask->n_tokens = json_array_size(list);
	ask->tokens = calloc(ask->n_tokens + 1, sizeof *ask->tokens);
	if (!ask->tokens)
		return no_memory(exchange);
	json_array_foreach(list, i, id)
	{
		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
			json_integer_value(id) > INT32_MAX)
			return wrong(exchange, "tokens", "an array of token numbers");
		ask->tokens[i] = (int32_t)json_integer_value(id);
	}
	return true;
}

/* Reads the body with `read`, and puts the question to the service. */
static bool begin(struct exchange *exchange,
	bool (*read)(struct exchange *exchange, const json_t *body, struct ask *ask))
{
	json_t *body = generate_json(exchange);
	struct ask *ask = body ? ask_new() : NULL;
	bool good = ask != NULL;

	if (body && !ask)
		no_memory(exchange);
	good = good && read(exchange, body, ask);
	json_decref(body);
	if (good)
		return ask_put(exchange, ask);
	ask_free(ask);
	return false;
}

bool texts_tokenize(struct exchange *exchange)
{
	return begin(exchange, read_text);
}

bool texts_detokenize(struct exchange *exchange)
{
	return begin(exchange, read_tokens);
}

static int ask_prompt(struct ask *ask, struct outrider *client)
{
	return outrider_apply_template(
		client, ask->request, ASKS_TIMEOUT_MS, &ask->text, &ask->bytes, NULL, NULL);
}

static bool tell_prompt(struct exchange *exchange, struct ask *ask)
{
	size_t bytes;
	char *clean = utf8_clean(ask->text, ask->bytes, &bytes);
	json_t *text = clean ? json_stringn(clean, bytes) : NULL;

	free(clean);
	return answer(exchange, json_pack("{s:o}", "prompt", text));
}

bool texts_template(struct exchange *exchange)
{
	struct ask *ask;

	exchange->params.chat = true;
	if (!generate_read(exchange))
		return false;
	exchange->params.stream = false;
	ask = ask_new();
	if (!ask)
		return no_memory(exchange);
	ask->run = ask_prompt;
	ask->done = tell_prompt;
	ask->request = exchange->params.request;
	exchange->params.request = NULL;
	return ask_put(exchange, ask);
}

static int ask_model(struct ask *ask, struct outrider *client)
{
	int32_t ids[2];
	int code = outrider_model_info(client, ASKS_TIMEOUT_MS, &ask->info);

	if (code < 0)
		return code;
	/* The texts of bos and eos; a model without one has -1, and the text is empty. */
	for (int i = 0; i < 2; i++) {
		int32_t id = i ? ask->info->eos : ask->info->bos;

		if (id >= 0)
			ids[ask->n_tokens++] = id;
	}
	return ask->n_tokens ? outrider_detokenize(client, ids, ask->n_tokens, true,
				       ASKS_TIMEOUT_MS, &ask->text, &ask->bytes, &ask->ends)
			     : 0;
}

static json_t *token_text(const struct ask *ask, int32_t id, size_t i)
{
	uint32_t from = i ? ask->ends[i - 1] : 0;

	return id < 0 ? json_string("") : piece(ask->text + from, ask->ends[i] - from);
}

static bool tell_model(struct exchange *exchange, struct ask *ask)
{
	const struct outrider_model_info *info = ask->info;
	json_t *body = json_pack("{s:{s:I},s:o,s:o,s:o,s:o,s:o,s:s+}",
		"default_generation_settings", "n_ctx", (json_int_t)info->context, "model_alias",
		json_text(info->name), "model_path", json_text(info->file), "chat_template",
		json_text(info->chat_template), "bos_token", token_text(ask, info->bos, 0),
		"eos_token", token_text(ask, info->eos, info->bos >= 0), "build_info", "outrider ",
		outrider_version());

	json_object_set_new(body, "meta",
		json_pack("{s:o,s:I,s:I}", "architecture", json_text(info->architecture), "n_vocab",
			(json_int_t)info->vocabulary, "size", (json_int_t)info->bytes));
	return answer(exchange, body);
}

bool texts_props(struct exchange *exchange)
{
	struct ask *ask = ask_new();

	if (!ask)
		return no_memory(exchange);
	ask->run = ask_model;
	ask->done = tell_model;
	return ask_put(exchange, ask);
}
