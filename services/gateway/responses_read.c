#include "services/gateway/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reading {
	struct fault *fault;
	json_t *messages; /* of the chat, so far */
	json_t *thought; /* from an item in front of the assistant's next message; NULL: none */
	size_t i; /* index of the item */
};

static const char *word(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static bool wrong(struct reading *r, const char *what)
{
	char name[64];

	snprintf(name, sizeof name, "input[%zu]", r->i);
	return fault_set(r->fault, 400, name, "invalid_value", "%s: %s", name, what);
}

static bool no_memory(struct fault *fault)
{
	return fault_set(fault, 500, NULL, "internal_error", "no memory for the request");
}

static bool append(struct reading *r, json_t *message)
{
	return json_array_append_new(r->messages, message) == 0 || no_memory(r->fault);
}

/* Content in the form of chats: a string, or a list of texts. A new reference; NULL when it is
 * neither. */
static json_t *content_of(const json_t *content)
{
	json_t *list, *part;
	size_t i;

	if (json_is_string(content))
		return json_incref((json_t *)content);
	if (!json_is_array(content))
		return NULL;
	list = json_array();
	json_array_foreach(content, i, part)
	{
		const char *type = word(part, "type");
		bool text = type &&
			    (strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0 ||
				    strcmp(type, "text") == 0);
		const char *key = type && strcmp(type, "refusal") == 0 ? "refusal" : "text";
		const char *said = text || strcmp(key, "refusal") == 0 ? word(part, key) : NULL;

		if (!said || json_array_append_new(
				     list, json_pack("{s:s,s:s}", "type", "text", "text", said))) {
			json_decref(list);
			return NULL;
		}
	}
	/* A list of one text becomes that text. */
	if (json_array_size(list) != 1)
		return list;
	part = json_incref(json_object_get(json_array_get(list, 0), "text"));
	json_decref(list);
	return part;
}

/* The assistant's message that calls and thoughts are added to: the last message, or a new one if
 * the last is not the assistant's. */
static json_t *assistant(struct reading *r)
{
	json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
	const char *role = word(last, "role");

	if (!role || strcmp(role, "assistant") != 0) {
		last = json_pack("{s:s,s:n}", "role", "assistant", "content");
		if (!append(r, last))
			return NULL;
	}
	if (r->thought) {
		json_object_set_new(last, "reasoning_content", r->thought);
		r->thought = NULL;
	}
	return last;
}

static bool read_message(struct reading *r, const json_t *item)
{
	const char *role = word(item, "role");
	json_t *content = content_of(json_object_get(item, "content"));

	if (!role || !content) {
		json_decref(content);
		return wrong(r,
			"expected a message with a role and texts; other content is not supported");
	}
	if (strcmp(role, "assistant") == 0 && r->thought) {
		json_t *message = json_pack("{s:s,s:o,s:o}", "role", role, "content", content,
			"reasoning_content", r->thought);

		r->thought = NULL;
		return append(r, message);
	}
	return append(r, json_pack("{s:s,s:o}", "role", role, "content", content));
}

static bool read_call(struct reading *r, const json_t *item)
{
	const char *id = word(item, "call_id"), *name = word(item, "name"),
		   *arguments = word(item, "arguments");
	json_t *message, *calls;

	if (!id || !name || !arguments)
		return wrong(r, "expected call_id, name and arguments, as strings");
	message = assistant(r);
	if (!message)
		return false;
	calls = json_object_get(message, "tool_calls");
	if (!calls) {
		calls = json_array();
		if (json_object_set_new(message, "tool_calls", calls))
			return no_memory(r->fault);
	}
	return json_array_append_new(
		       calls, json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", id, "type", "function",
				      "function", "name", name, "arguments", arguments)) == 0 ||
	       no_memory(r->fault);
}

static bool read_output(struct reading *r, const json_t *item)
{
	const char *id = word(item, "call_id");
	json_t *output = content_of(json_object_get(item, "output"));

	if (!id || !output) {
		json_decref(output);
		return wrong(r, "expected call_id and output, as strings");
	}
	return append(r,
		json_pack("{s:s,s:s,s:o}", "role", "tool", "tool_call_id", id, "content", output));
}

/* Thoughts of earlier answers. */
static bool read_thought(struct reading *r, const json_t *item)
{
	const json_t *content = json_object_get(item, "content"), *part;
	char *all = strdup("");
	size_t i;

	json_array_foreach(content, i, part)
	{
		const char *text = word(part, "text");
		size_t n = all ? strlen(all) : 0;
		char *more = all && text ? realloc(all, n + strlen(text) + 1) : NULL;

		if (more)
			memcpy(more + n, text, strlen(text) + 1);
		all = more ? more : all;
	}
	json_decref(r->thought);
	r->thought = all && *all ? json_string(all) : NULL;
	free(all);
	return true;
}

static bool read_item(struct reading *r, const json_t *item)
{
	const char *type = word(item, "type");

	if (!type || strcmp(type, "message") == 0)
		return read_message(r, item);
	if (strcmp(type, "function_call") == 0)
		return read_call(r, item);
	if (strcmp(type, "function_call_output") == 0)
		return read_output(r, item);
	if (strcmp(type, "reasoning") == 0)
		return read_thought(r, item);
	return wrong(r, strcmp(type, "item_reference") == 0
				? "nothing is stored here: items are sent again, not named"
				: "this type of item is not supported");
}

static bool read_input(struct reading *r, const json_t *body)
{
	const json_t *input = json_object_get(body, "input"), *item;
	const char *instructions = word(body, "instructions");

	if (instructions &&
		!append(r, json_pack("{s:s,s:s}", "role", "system", "content", instructions)))
		return false;
	if (json_is_string(input))
		return append(
			r, json_pack("{s:s,s:O}", "role", "user", "content", (json_t *)input));
	if (!json_is_array(input) || json_array_size(input) == 0)
		return fault_set(r->fault, 400, "input", "invalid_type",
			"input: expected a string or an array of items that is not empty");
	json_array_foreach(input, r->i, item)
	{
		if (!read_item(r, item))
			return false;
	}
	return true;
}

/* In responses a tool has its fields next to its type, not below "function". */
static bool read_tools(json_t *chat, const json_t *tools, struct fault *fault)
{
	json_t *list = json_array(), *tool;
	size_t i;

	if (!json_is_array(tools)) {
		json_decref(list);
		return fault_set(fault, 400, "tools", "invalid_type", "tools: expected an array");
	}
	json_array_foreach(tools, i, tool)
	{
		json_t *function = json_copy(tool);

		json_object_del(function, "type");
		if (json_is_null(json_object_get(function, "strict")))
			json_object_del(function, "strict");
		json_array_append_new(
			list, json_pack("{s:O?,s:o}", "type", json_object_get(tool, "type"),
				      "function", function));
	}
	return json_object_set_new(chat, "tools", list) == 0 || no_memory(fault);
}

static bool read_choice(json_t *chat, const json_t *choice, struct fault *fault)
{
	json_t *of = json_is_object(choice)
			     ? json_pack("{s:O?,s:{s:O?}}", "type", json_object_get(choice, "type"),
				       "function", "name", json_object_get(choice, "name"))
			     : json_incref((json_t *)choice);

	return json_object_set_new(chat, "tool_choice", of) == 0 || no_memory(fault);
}

static bool read_format(json_t *chat, const json_t *text, struct fault *fault)
{
	const json_t *format = json_object_get(text, "format");
	const char *type = word(format, "type");
	json_t *of;

	if (!json_is_object(text))
		return fault_set(fault, 400, "text", "invalid_type", "text: expected an object");
	if (!format || json_is_null(format))
		return true;
	if (type && strcmp(type, "json_schema") == 0)
		of = json_pack("{s:s,s:{s:O?}}", "type", type, "json_schema", "schema",
			json_object_get(format, "schema"));
	else
		of = json_incref((json_t *)format);
	return json_object_set_new(chat, "response_format", of) == 0 || no_memory(fault);
}

static bool read_reasoning(json_t *chat, const json_t *reasoning, struct fault *fault)
{
	json_t *effort = json_object_get(reasoning, "effort");

	if (!json_is_object(reasoning))
		return fault_set(
			fault, 400, "reasoning", "invalid_type", "reasoning: expected an object");
	if (effort && !json_is_null(effort))
		json_object_set(chat, "reasoning_effort", effort);
	return true;
}

static bool none(json_t *chat, const json_t *value, struct fault *fault)
{
	(void)chat;
	(void)value;
	(void)fault;
	return true;
}

/* Accepts the field only with a value that asks for nothing. */
static bool refuse_named(const char *name, const json_t *value, struct fault *fault)
{
	if (json_is_null(value) || json_is_false(value) ||
		(json_is_string(value) && strcmp(json_string_value(value), "disabled") == 0))
		return true;
	return fault_set(fault, 400, name, "unsupported_parameter",
		strcmp(name, "previous_response_id") == 0 || strcmp(name, "conversation") == 0
			? "%s is not supported: nothing is stored here, so send the items of the "
			  "conversation as input"
			: "%s is not supported",
		name);
}

static const struct {
	const char *name;
	const char
		/* the name under which a chat has the same value; NULL: `read` is called, or the
		 * field is refused */
		*chat;
	bool (*read)(json_t *chat, const json_t *value, struct fault *fault);
} fields[] = {
	{"model", "model", NULL},
	{"stream", "stream", NULL},
	{"temperature", "temperature", NULL},
	{"top_p", "top_p", NULL},
	{"seed", "seed", NULL},
	{"max_output_tokens", "max_completion_tokens", NULL},
	{"parallel_tool_calls", "parallel_tool_calls", NULL},
	{"chat_template_kwargs", "chat_template_kwargs", NULL},
	{"outrider", "outrider", NULL},
	{"input", NULL, none},
	{"instructions", NULL, none},
	{"tools", NULL, read_tools},
	{"tool_choice", NULL, read_choice},
	{"text", NULL, read_format},
	{"reasoning", NULL, read_reasoning},
	/* These say who asks, or how the answer is billed, kept or told. */
	{"store", NULL, none},
	{"metadata", NULL, none},
	{"user", NULL, none},
	{"service_tier", NULL, none},
	{"safety_identifier", NULL, none},
	{"prompt_cache_key", NULL, none},
	{"prompt_cache_retention", NULL, none},
	{"include", NULL, none},
	{"stream_options", NULL, none},
	{"max_tool_calls", NULL, none},
	{"previous_response_id", NULL, NULL},
	{"conversation", NULL, NULL},
	{"background", NULL, NULL},
	{"truncation", NULL, NULL},
	{"prompt", NULL, NULL},
	{"top_logprobs", NULL, NULL},
};

static bool read_field(json_t *chat, const char *name, json_t *value, struct fault *fault)
{
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
		if (strcmp(fields[i].name, name) != 0)
			continue;
		if (fields[i].chat)
			return json_object_set(chat, fields[i].chat, value) == 0 ||
			       no_memory(fault);
		if (!fields[i].read)
			return refuse_named(name, value, fault);
		return json_is_null(value) || fields[i].read(chat, value, fault);
	}
	return fault_set(fault, 400, name, "unknown_parameter",
		"Unrecognized request argument supplied: %.64s", name);
}

json_t *responses_read(const json_t *body, struct fault *fault)
{
	struct reading r = {.fault = fault, .messages = json_array()};
	json_t *object = (json_t *)body, *value, *chat = json_object();
	const char *name;
	bool good = json_is_object(body) ||
		    fault_set(fault, 400, NULL, "invalid_type", "the body is not a JSON object");

	json_object_foreach(object, name, value) good =
		good && read_field(chat, name, value, fault);
	good = good && read_input(&r, body);
	json_decref(r.thought);
	if (good && json_object_set(chat, "messages", r.messages))
		good = no_memory(fault);
	json_decref(r.messages);
	if (good)
		return chat;
	json_decref(chat);
	return NULL;
}

void responses_rename(struct fault *fault)
{
	static const char *const names[][2] = {{"messages", "input"},
		{"max_completion_tokens", "max_output_tokens"}, {"response_format", "text.format"},
		{"reasoning_effort", "reasoning.effort"}};
	char text[sizeof fault->message];

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		size_t n = strlen(names[i][0]);

		if (strncmp(fault->param, names[i][0], n) == 0) {
			snprintf(text, sizeof fault->param, "%s%s", names[i][1], fault->param + n);
			memcpy(fault->param, text, sizeof fault->param);
		}
		if (strncmp(fault->message, names[i][0], n) == 0) {
			snprintf(text, sizeof text, "%s%s", names[i][1], fault->message + n);
			memcpy(fault->message, text, sizeof text);
		}
	}
}
