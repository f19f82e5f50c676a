#include "services/gateway/tools.h"

#include "shared/model/calls/calls.h"

#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 64 };

static bool is_name(const json_t *name)
{
	const char *text = json_string_value(name);
	size_t n = text ? strlen(text) : 0;

	return n > 0 && n <= NAME_MAX_BYTES &&
	       strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
		       n;
}

static bool wrong(
	struct fault *fault, const char *param, size_t i, const char *field, const char *expected)
{
	char name[64];

	snprintf(name, sizeof name, "%s[%zu]%s", param, i, field);
	return fault_set(fault, 400, name, "invalid_value", "%s: expected %s", name, expected);
}

bool tools_check(const json_t *tools, struct fault *fault)
{
	size_t i;
	const json_t *tool;

	if (!json_is_array(tools))
		return fault_set(fault, 400, "tools", "invalid_type", "tools: expected an array");
	json_array_foreach(tools, i, tool)
	{
		const char *type = json_string_value(json_object_get(tool, "type"));
		const json_t *function = json_object_get(tool, "function");
		const json_t *parameters = json_object_get(function, "parameters");
		const json_t *strict = json_object_get(function, "strict");

		if (!type || strcmp(type, "function") != 0)
			return wrong(fault, "tools", i, ".type",
				"\"function\": no other tools are supported");
		if (!is_name(json_object_get(function, "name")))
			return wrong(fault, "tools", i, ".function.name",
				"1 to 64 letters, digits, underscores, dashes or dots");
		if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
			return wrong(fault, "tools", i, ".function.parameters", "a JSON schema");
		if (strict && !json_is_boolean(strict) && !json_is_null(strict))
			return wrong(fault, "tools", i, ".function.strict", "true or false");
		if (calls_function(tools, json_string_value(json_object_get(function, "name"))) !=
			function)
			return wrong(fault, "tools", i, ".function.name",
				"a name that no other tool has");
	}
	return true;
}

bool tools_choose(struct params *params, const json_t *value, struct fault *fault)
{
	const char *word = json_string_value(value);
	const json_t *name = json_object_get(json_object_get(value, "function"), "name");
	const char *type = json_string_value(json_object_get(value, "type"));

	if (word && strcmp(word, "auto") == 0)
		params->choice = CHOICE_AUTO;
	else if (word && strcmp(word, "none") == 0)
		params->choice = CHOICE_NONE;
	else if ((word && strcmp(word, "required") == 0) ||
		 (type && strcmp(type, "function") == 0 && is_name(name)))
		params->choice = CHOICE_REQUIRED;
	else
		return fault_set(fault, 400, "tool_choice", "invalid_value",
			"tool_choice: expected none, auto, required or {\"type\": \"function\", "
			"\"function\": "
			"{\"name\": ...}}");
	snprintf(params->only, sizeof params->only, "%s", name ? json_string_value(name) : "");
	return true;
}

bool tools_finish(const struct params *params, struct fault *fault)
{
	if (params->choice == CHOICE_AUTO || params->choice == CHOICE_NONE)
		return true;
	if (json_array_size(params->tools) == 0)
		return fault_set(fault, 400, "tool_choice", "invalid_value",
			"tool_choice: it is only allowed when tools are given");
	if (params->only[0] && !calls_function(params->tools, params->only))
		return fault_set(fault, 400, "tool_choice", "invalid_value",
			"tool_choice: there is no tool with the name \"%.64s\"", params->only);
	return true;
}

bool tools_check_message(const json_t *message, size_t i, struct fault *fault)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	const json_t *calls = json_object_get(message, "tool_calls"), *call;
	size_t k;

	if (role && strcmp(role, "tool") == 0 &&
		!json_is_string(json_object_get(message, "tool_call_id")))
		return wrong(fault, "messages", i, ".tool_call_id",
			"the id of the call that it answers");
	if (calls && !json_is_null(calls) && !json_is_array(calls))
		return wrong(fault, "messages", i, ".tool_calls", "an array");
	json_array_foreach(calls, k, call)
	{
		const json_t *function = json_object_get(call, "function");

		if (!json_is_string(json_object_get(function, "name")))
			return wrong(fault, "messages", i, ".tool_calls",
				"calls of functions with a name");
		if (!json_is_string(json_object_get(function, "arguments")))
			return wrong(fault, "messages", i, ".tool_calls", "arguments as a string");
	}
	return true;
}
