#include "shared/model/text/chat_tools.h"

#include "shared/model/text/chat_parts.h"

#include <stdlib.h>
#include <string.h>

static bool has(const char *source, size_t bytes, const char *word)
{
	return memmem(source, bytes, word, strlen(word)) != NULL;
}

bool chat_takes_tools(const char *source, size_t bytes)
{
	return has(source, bytes, "tools");
}

static bool is_role(const json_t *message, const char *role)
{
	const char *its = json_string_value(json_object_get(message, "role"));
	return its && strcmp(its, role) == 0;
}

/* A copy of data with its own list of messages; the messages themselves are still shared. NULL when
 * memory is exhausted. */
static json_t *copy_data(const json_t *data)
{
	json_t *copy = json_copy((json_t *)data);
	if (copy && !json_object_set_new(
			    copy, "messages", json_copy(json_object_get(data, "messages"))))
		return copy;
	json_decref(copy);
	return NULL;
}

/* Replaces the role "developer" by "system". */
static int rename_roles(json_t *list)
{
	size_t i;
	json_t *message;
	json_array_foreach(list, i, message)
	{
		if (!is_role(message, "developer"))
			continue;
		json_t *copy = json_copy(message);
		if (!copy || json_object_set_new(copy, "role", json_string("system")) ||
			json_array_set_new(list, i, copy))
			return -ENOMEM;
	}
	return 0;
}

/* A form in which calls are given to a template. */
struct form {
	bool strings; /* arguments as strings, else as objects */
	bool empty; /* missing content is "", else none */
};

/* The call with its arguments in that form; a new reference. */
static json_t *shape_call(const json_t *call, const struct form *form)
{
	json_t *copy = json_copy((json_t *)call);
	json_t *function = json_copy(json_object_get(call, "function")), *value = NULL;
	const json_t *arguments = json_object_get(function, "arguments");
	if (!function)
		return copy;
	if (json_is_string(arguments) && !form->strings) {
		value = json_loads(json_string_value(arguments), JSON_ALLOW_NUL, NULL);
	} else if (json_is_object(arguments) && form->strings) {
		char *text = json_dumps(arguments, JSON_PRESERVE_ORDER);
		value = text ? json_string(text) : NULL;
		free(text);
	}
	/* A string that is no JSON stays one. */
	if (value)
		json_object_set_new(function, "arguments", value);
	if (copy && !json_object_set_new(copy, "function", function))
		return copy;
	json_decref(copy);
	return NULL;
}

static int shape_message(json_t *list, size_t i, const struct form *form)
{
	const json_t *message = json_array_get(list, i);
	const json_t *calls = json_object_get(message, "tool_calls");
	const json_t *content = json_object_get(message, "content");
	if (json_array_size(calls) == 0)
		return 0;
	json_t *copy = json_copy((json_t *)message), *shaped = json_array(), *call;
	size_t k;
	int rc = copy && shaped ? 0 : -ENOMEM;
	json_array_foreach(calls, k, call) if (!rc && json_array_append_new(shaped,
							      shape_call(call, form))) rc = -ENOMEM;
	if (!rc && json_object_set(copy, "tool_calls", shaped))
		rc = -ENOMEM;
	if (!rc && (!content || json_is_null(content) ||
			   (json_is_string(content) && !json_string_length(content))))
		rc = json_object_set_new(
			copy, "content", form->empty ? json_string("") : json_null());
	json_decref(shaped);
	if (!rc)
		return json_array_set_new(list, i, copy) ? -ENOMEM : 0;
	json_decref(copy);
	return -ENOMEM;
}

static int render_form(const struct template *template, const struct template_input *input,
	const struct form *form, struct template_text *out, struct error *err)
{
	json_t *data = copy_data(input->data), *list = json_object_get(data, "messages");
	int rc = data ? 0 : -ENOMEM;
	for (size_t i = 0; !rc && i < json_array_size(list); i++)
		rc = shape_message(list, i, form);
	struct template_input shaped = *input;
	shaped.data = data;
	rc = rc ? error_set(err, ENOMEM, "no memory for the messages")
		: chat_render_parts(template, &shaped, out, err);
	json_decref(data);
	return rc;
}

/* Renders in the first form that the template takes without writing Python's notation, or else in
 * the first form that it renders at all. */
static int render_forms(const struct template *template, const struct template_input *input,
	struct template_text *out, struct error *err)
{
	static const struct form forms[] = {
		{false, false}, {false, true}, {true, false}, {true, true}};
	struct template_text best = {0};
	int rc = -EINVAL;
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		struct error why = {""};
		int now = render_form(template, input, &forms[i], out, i ? &why : err);
		if (now == 0 && !out->wrote_values) {
			template_text_free(&best);
			return 0;
		}
		if (now == 0 && rc != 0)
			best = *out;
		else
			template_text_free(out);
		rc = now == 0 ? 0 : rc;
		if (now && now != -EINVAL)
			break;
	}
	*out = best;
	return rc;
}

/* Appends to a text that grows; NULL when memory is exhausted. */
static char *append(char *text, const char *more)
{
	size_t n = text ? strlen(text) : 0, m = more ? strlen(more) : 0;
	char *longer = text && more ? realloc(text, n + m + 1) : NULL;
	if (longer)
		memcpy(longer + n, more, m + 1);
	else
		free(text);
	return longer;
}

static char *append_json(char *text, const json_t *value)
{
	char *line = json_dumps(value, JSON_ENCODE_ANY);
	text = append(text, line);
	free(line);
	return text;
}

static char *text_of(const json_t *content)
{
	json_t *joined = chat_parts_text(content);
	char *text = strdup(json_is_string(joined) ? json_string_value(joined) : "");
	json_decref(joined);
	return text;
}

/* Appends the words that describe the tools to a model whose template does not. */
static char *describe(char *text, const json_t *tools)
{
	size_t i;
	json_t *tool;
	text = append(text, "You may call these functions:\n");
	json_array_foreach(tools, i, tool)
	{
		const json_t *function = json_object_get(tool, "function");
		text = append(append_json(text, function ? function : tool), "\n");
	}
	return append(text, "To call one, write its name and arguments:\n<tool_call>\n{\"name\": "
			    "..., \"arguments\": {...}}\n</tool_call>");
}

static char *write_calls(char *text, const json_t *calls)
{
	static const struct form objects = {false, false};
	size_t i;
	json_t *call;
	json_array_foreach(calls, i, call)
	{
		json_t *shaped = shape_call(call, &objects),
		       *function = json_object_get(shaped, "function");
		json_t *name = json_object_get(function, "name"),
		       *arguments = json_object_get(function, "arguments");
		if (text && *text)
			text = append(text, "\n");
		text = append(text, "<tool_call>\n{\"name\": ");
		text = append_json(text, name ? name : json_null());
		text = append(text, ", \"arguments\": ");
		text = append(
			append_json(text, arguments ? arguments : json_null()), "}\n</tool_call>");
		json_decref(shaped);
	}
	return text;
}

/* Adds a message with this role and text; takes over the text. */
static int add(json_t *list, const char *role, char *text)
{
	json_t *message = text ? json_pack("{s:s,s:s}", "role", role, "content", text) : NULL;
	free(text);
	return json_array_append_new(list, message) ? -ENOMEM : 0;
}

static int add_in_words(json_t *list, json_t *message, char **system)
{
	const json_t *content = json_object_get(message, "content");
	if (is_role(message, "tool") || is_role(message, "function")) {
		char *inner = text_of(content), *text = append(strdup("<tool_response>\n"), inner);
		free(inner);
		return add(list, "user", append(text, "\n</tool_response>"));
	}
	if (json_array_size(json_object_get(message, "tool_calls")))
		return add(list, "assistant",
			write_calls(text_of(content), json_object_get(message, "tool_calls")));
	if (*system && is_role(message, "system")) {
		char *text = append(append(text_of(content), "\n\n"), *system);
		free(*system);
		*system = NULL;
		return add(list, "system", text);
	}
	return json_array_append(list, message) ? -ENOMEM : 0;
}

/* A new list of messages that describes the tools in words. */
static json_t *in_words(const json_t *data)
{
	const json_t *tools = json_object_get(data, "tools"),
		     *messages = json_object_get(data, "messages");
	char *system = json_array_size(tools) ? describe(strdup(""), tools) : NULL;
	json_t *list = json_array(), *message;
	size_t i;
	int rc = list && (system || !json_array_size(tools)) ? 0 : -ENOMEM;
	if (!rc && system && !is_role(json_array_get(messages, 0), "system")) {
		rc = add(list, "system", system);
		system = NULL;
	}
	json_array_foreach(messages, i, message) if (!rc) rc = add_in_words(list, message, &system);
	free(system);
	if (!rc)
		return list;
	json_decref(list);
	return NULL;
}

/* True when data has tools, or messages with calls or results. */
static bool has_tools(const json_t *data)
{
	size_t i;
	json_t *message;
	json_array_foreach(json_object_get(data, "messages"), i, message)
	{
		if (json_array_size(json_object_get(message, "tool_calls")))
			return true;
	}
	return json_array_size(json_object_get(data, "tools")) > 0;
}

static bool has_developer(const json_t *data)
{
	size_t i;
	json_t *message;
	json_array_foreach(json_object_get(data, "messages"), i,
		message) if (is_role(message, "developer")) return true;
	return false;
}

int chat_render_tools(const struct template *template, const char *source, size_t bytes,
	const struct template_input *input, struct template_text *out, struct error *err)
{
	bool rename = has_developer(input->data) && !has(source, bytes, "developer");
	bool tools = has_tools(input->data);
	if ((!rename && !tools) || !json_is_array(json_object_get(input->data, "messages")))
		return chat_render_parts(template, input, out, err);
	struct template_input shaped = *input;
	json_t *data = copy_data(input->data);
	int rc = data ? 0 : -ENOMEM;
	if (!rc && rename)
		rc = rename_roles(json_object_get(data, "messages"));
	if (!rc && tools && !chat_takes_tools(source, bytes))
		rc = json_object_set_new(data, "messages", in_words(data)) ? -ENOMEM : 0;
	shaped.data = data;
	if (rc)
		rc = error_set(err, ENOMEM, "no memory for the messages");
	else if (tools)
		rc = render_forms(template, &shaped, out, err);
	else
		rc = chat_render_parts(template, &shaped, out, err);
	json_decref(data);
	return rc;
}
