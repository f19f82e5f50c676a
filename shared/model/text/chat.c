#include "shared/model/text/chat.h"

#include "shared/base/limits.h"
#include "shared/model/text/chat_tools.h"

#include <stdio.h>
#include <string.h>

#define KEY "tokenizer.chat_template"
#define TOKENS "tokenizer.ggml.tokens"
#define CHATML_START "<|im_start|>"

/* The format that models with ChatML's markers but no template expect. */
static const char chatml[] = "{% for message in messages %}" CHATML_START "{{ message.role }}\n"
			     "{{ message.content }}<|im_end|>\n"
			     "{% endfor %}"
			     "{% if add_generation_prompt %}" CHATML_START "assistant\n{% endif %}";

static bool has_token(const struct gguf *gguf, const char *text)
{
	enum gguf_value_type type;
	uint64_t n;
	if (gguf_get_array(gguf, TOKENS, &type, &n, NULL) || type != GGUF_STRING)
		return false;
	for (uint64_t i = 0; i < n; i++) {
		struct gguf_string s = gguf_array_string(gguf, TOKENS, i);
		if (s.bytes == strlen(text) && memcmp(s.data, text, s.bytes) == 0)
			return true;
	}
	return false;
}

/* tokenizer.chat_template.NAME; -ENOENT when the file has none. */
static int find_named(const struct gguf *gguf, const char *name, struct gguf_string *out,
	char key[128], struct error *err)
{
	snprintf(key, 128, KEY ".%.64s", name);
	return gguf_get_string(gguf, key, out, err);
}

static int find_template(const struct gguf *gguf, const struct chat_options *options,
	bool with_tools, struct gguf_string *out, char key[128], struct error *err)
{
	int rc;
	if (options->name) {
		rc = find_named(gguf, options->name, out, key, err);
		return rc == -ENOENT ? error_set(err, ENOTSUP, "key %s is missing", key) : rc;
	}
	rc = with_tools ? find_named(gguf, "tool_use", out, key, err) : -ENOENT;
	if (rc != -ENOENT)
		return rc;
	snprintf(key, 128, "%s", KEY);
	rc = gguf_get_string(gguf, KEY, out, err);
	if (rc != -ENOENT)
		return rc;
	if (!has_token(gguf, CHATML_START))
		return error_set(err, ENOTSUP,
			"key " KEY " is missing: the model has no chat template, and its "
			"vocabulary has no " CHATML_START "; give it a plain prompt");
	*out = (struct gguf_string){chatml, sizeof(chatml) - 1};
	return 0;
}

struct gguf_string chat_template_source(const struct gguf *gguf)
{
	static const struct chat_options usual;
	struct gguf_string source = {"", 0};
	struct error err;
	char key[128];
	return find_template(gguf, &usual, false, &source, key, &err) == 0
		       ? source
		       : (struct gguf_string){"", 0};
}

int chat_add_special_tokens(const struct gguf *gguf, json_t *object, struct error *err)
{
	static const char *const tokens[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
		{"tokenizer.ggml.eos_token_id", "eos_token"},
		{"tokenizer.ggml.unknown_token_id", "unk_token"},
		{"tokenizer.ggml.padding_token_id", "pad_token"}};
	enum gguf_value_type type;
	uint64_t n, id;
	if (gguf_get_array(gguf, TOKENS, &type, &n, NULL) || type != GGUF_STRING || !n)
		return 0;
	for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
		if (gguf_get_u64(gguf, tokens[i][0], 0, n - 1, &id, NULL))
			continue;
		struct gguf_string s = gguf_array_string(gguf, TOKENS, id);
		if (json_object_set_new_nocheck(
			    object, tokens[i][1], json_stringn_nocheck(s.data, s.bytes)))
			return error_set(err, ENOMEM, "no memory for a prompt");
	}
	return 0;
}

int chat_render(const struct gguf *gguf, const json_t *variables,
	const struct chat_options *options, struct template_text *out, struct error *err)
{
	static const struct chat_options usual;
	struct gguf_string source;
	struct template *template = NULL;
	char key[128];
	memset(out, 0, sizeof(*out));
	if (!options)
		options = &usual;
	json_t *tools = json_object_get(variables, "tools"), *special = json_object();
	if (!special)
		return error_set(err, ENOMEM, "no memory for a prompt");
	int rc = find_template(gguf, options, tools && !json_is_null(tools), &source, key, err);
	if (!rc)
		rc = chat_add_special_tokens(gguf, special, err);
	if (!rc) {
		rc = template_parse(source.data, source.bytes, &template, err);
		struct template_input input = {variables, special, options->now};
		if (!rc)
			rc = chat_render_tools(
				template, source.data, source.bytes, &input, out, err);
		if (rc)
			error_prefix(err, rc, "%s", key);
	}
	template_free(&template);
	json_decref(special);
	return rc;
}

/* Appends the tokens of a prompt. */
static int encode_rendered(const struct tokenizer *tokenizer, const struct template_text *text,
	int32_t **ids, size_t *n, size_t *capacity, struct error *err)
{
	if (text->bytes > LIMIT_RENDERED_BYTES)
		return error_set(err, E2BIG,
			"the chat template makes a prompt of %zu bytes: at most %d are allowed",
			text->bytes, LIMIT_RENDERED_BYTES);
	return tokenizer_encode_rendered(
		tokenizer, text->data, text->bytes, text->literal, ids, n, capacity, err);
}

int chat_encode_variables(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const json_t *variables, const struct chat_options *options, int32_t **ids, size_t *n,
	size_t *capacity, struct error *err)
{
	struct template_text text;
	int rc = chat_render(gguf, variables, options, &text, err);
	if (rc)
		return rc;
	rc = encode_rendered(tokenizer, &text, ids, n, capacity, err);
	template_text_free(&text);
	return rc;
}

int chat_set_variable(json_t *variables, const char *text, struct error *err)
{
	const char *equals = strchr(text, '=');
	char name[64];
	if (!equals || equals == text || (size_t)(equals - text) >= sizeof(name))
		return error_set(err, EINVAL, "\"%.80s\" is not NAME=VALUE", text);
	memcpy(name, text, (size_t)(equals - text));
	name[equals - text] = '\0';
	json_t *value = json_loads(equals + 1, JSON_DECODE_ANY, NULL);
	if (!value)
		value = json_string(equals + 1);
	if (!value || json_object_set_new(variables, name, value))
		return error_set(err, EINVAL, "\"%.80s\" is not UTF-8", text);
	return 0;
}

/* Where an error is, such as "message 2". */
struct place {
	char text[32];
};

static struct place place_of(size_t i)
{
	struct place place;
	snprintf(place.text, sizeof(place.text), "message %zu", i);
	return place;
}

static int check_role(const char *role, const char *where, struct error *err)
{
	static const char *const roles[] = {
		"system", "user", "assistant", "tool", "developer", "function"};
	for (size_t k = 0; role && k < sizeof(roles) / sizeof(roles[0]); k++)
		if (strcmp(role, roles[k]) == 0)
			return 0;
	if (!role)
		return error_set(err, EINVAL, "%s has no role", where);
	return error_set(err, EINVAL,
		"%s has the role \"%.32s\"; system, user, assistant, tool, developer and "
		"function are known",
		where, role);
}

/* Bytes that are not UTF-8 are kept, because nothing here writes JSON. */
static json_t *plain_message(const struct chat_message *m)
{
	json_t *message = json_object();
	int rc = json_object_set_new(
		message, "role", json_stringn_nocheck(m->role, strlen(m->role)));
	rc |= json_object_set_new(
		message, "content", json_stringn_nocheck(m->text ? m->text : "", m->text_bytes));
	if (!rc)
		return message;
	json_decref(message);
	return NULL;
}

static int read_object(const char *text, const char *what, json_t **out, struct error *err)
{
	json_error_t where;
	*out = json_loads(text, JSON_ALLOW_NUL, &where);
	if (!*out)
		return error_set(err, EINVAL, "%s: JSON, line %d, column %d: %.200s", what,
			where.line, where.column, where.text);
	if (json_is_object(*out))
		return 0;
	json_decref(*out);
	*out = NULL;
	return error_set(err, EINVAL, "%s: not a JSON object", what);
}

static int add_message(json_t *list, const struct chat_message *m, size_t i, struct error *err)
{
	struct place place = place_of(i);
	bool whole = m->json && *m->json;
	json_t *message = NULL;
	int rc = whole ? read_object(m->json, place.text, &message, err) : 0;
	if (!rc)
		rc = check_role(
			whole ? json_string_value(json_object_get(message, "role")) : m->role,
			place.text, err);
	if (!rc && !whole)
		message = plain_message(m);
	if (!rc && json_array_append(list, message))
		rc = error_set(err, ENOMEM, "no memory for %s", place.text);
	json_decref(message);
	return rc;
}

/* The input of the template: the messages, the variables, and that it should open the assistant's
 * turn. */
static int conversation_object(const struct chat_message *messages, size_t n_messages,
	const char *variables, json_t **out, struct error *err)
{
	json_t *list = json_array();
	int rc = list ? read_object(
				variables && *variables ? variables : "{}", "variables", out, err)
		      : -ENOMEM;
	for (size_t i = 0; !rc && i < n_messages; i++)
		rc = add_message(list, &messages[i], i, err);
	if (!rc && (json_object_set(*out, "messages", list) ||
			   json_object_set_new(*out, "add_generation_prompt", json_true())))
		rc = -ENOMEM;
	if (rc == -ENOMEM)
		error_set(err, ENOMEM, "no memory for %zu messages", n_messages);
	json_decref(list);
	return rc;
}

int chat_conversation(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, const char *variables,
	struct template_text *text, int32_t **ids, size_t *n, size_t *capacity, struct error *err)
{
	json_t *object = NULL;
	memset(text, 0, sizeof(*text));
	if (!n_messages)
		return error_set(err, EINVAL, "a conversation needs at least one message");
	int rc = conversation_object(messages, n_messages, variables, &object, err);
	if (!rc)
		rc = chat_render(gguf, object, NULL, text, err);
	if (!rc && ids)
		rc = encode_rendered(tokenizer, text, ids, n, capacity, err);
	if (rc)
		template_text_free(text);
	json_decref(object);
	return rc;
}

int chat_encode_conversation(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, const char *variables,
	int32_t **ids, size_t *n, size_t *capacity, struct error *err)
{
	struct template_text text;
	int rc = chat_conversation(
		gguf, tokenizer, messages, n_messages, variables, &text, ids, n, capacity, err);
	template_text_free(&text);
	return rc;
}

int chat_encode(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, int32_t **ids, size_t *n,
	size_t *capacity, struct error *err)
{
	return chat_encode_conversation(
		gguf, tokenizer, messages, n_messages, NULL, ids, n, capacity, err);
}
