/* Describes what an answer with calls may be (calls.h), as parts of a grammar
 * (shared/model/grammar/grammar.h). */
#include "shared/model/calls/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_MOST = 16 }; /* in one answer */

struct making {
	const struct calls_rules *rules;
	char *why;
	bool failed; /* `why` has the reason */
};

/* Constructors of parts. They take over the references that they are given. They return NULL when
 * memory is exhausted, and json_pack passes a NULL on. */
static json_t *control(const char *text)
{
	return json_pack("{s:s}", "control", text);
}

static json_t *until(const char *text)
{
	return json_pack("{s:s}", "until", text);
}

static json_t *sequence(json_t *list)
{
	return json_pack("{s:o}", "sequence", list);
}

static json_t *choice(json_t *list)
{
	return json_pack("{s:o}", "choice", list);
}

static json_t *optional(json_t *part)
{
	return json_pack("{s:o,s:i}", "repeat", part, "max", 1);
}

static json_t *refuse(struct making *m, const char *name, const char *what)
{
	if (!m->failed)
		snprintf(m->why, 200, "%.60s: %.100s", name, what);
	m->failed = true;
	return NULL;
}

/* True when the arguments of this function must match its schema. */
static bool is_strict(const struct making *m, const json_t *function)
{
	return m->rules->required || json_is_true(json_object_get(function, "strict"));
}

static json_t *any_object(void)
{
	return json_pack("{s:{s:s}}", "schema", "type", "object");
}

static json_t *arguments(const struct making *m, const json_t *function, const char *name)
{
	json_t *schema = json_object_get(function, "parameters");

	if (!is_strict(m, function))
		return any_object();
	if (schema == NULL || json_is_null(schema))
		return json_string("{}");
	return json_pack("{s:O,s:s}", "schema", schema, "name", name);
}

/* A string without quotes: one of the values if the schema enumerates them, otherwise any text up
 * to `end`. */
static json_t *bare_string(
	struct making *m, const json_t *schema, const char *name, const char *end)
{
	const json_t *list = json_object_get(schema, "enum"),
		     *one = json_object_get(schema, "const");
	const json_t *pattern = json_object_get(schema, "pattern");
	const json_t *least = json_object_get(schema, "minLength"),
		     *most = json_object_get(schema, "maxLength");
	char text[80];
	size_t i;

	if (json_is_string(one))
		return json_string(json_string_value(one));
	if (json_is_array(list)) {
		json_t *all = json_array();

		json_array_foreach(list, i, one)
		{
			char *spelled =
				json_is_string(one) ? NULL : json_dumps(one, JSON_ENCODE_ANY);

			json_array_append_new(
				all, json_string(spelled ? spelled : json_string_value(one)));
			free(spelled);
		}
		return choice(all);
	}
	if (json_is_string(pattern)) {
		const char *regex = json_string_value(pattern);
		size_t n = strlen(regex);

		if (n > 1 && regex[0] == '^' && regex[n - 1] == '$' && least == NULL &&
			most == NULL)
			return json_pack("{s:s,s:s}", "regex", regex, "name", name);
		return refuse(m, name,
			"the pattern of a string must be all of it, ^...$, for this model");
	}
	if (json_object_get(schema, "format") != NULL)
		return refuse(
			m, name, "the format of a string cannot be guaranteed with this model");
	if (least == NULL && most == NULL)
		return until(end);
	long long from = json_integer_value(least), to = json_integer_value(most);
	if (most != NULL)
		snprintf(text, sizeof text, "[^<]{%lld,%lld}", from, to);
	else
		snprintf(text, sizeof text, "[^<]{%lld,}", from);
	return json_pack("{s:s,s:s}", "regex", text, "name", name);
}

/* A value between tags: strings stand without quotes. */
static json_t *bare_value(
	struct making *m, const json_t *root, json_t *schema, const char *name, const char *end)
{
	const json_t *resolved = calls_resolve(root, schema);

	if (calls_types(root, schema, 0) & CALLS_STRING)
		return bare_string(m, resolved, name, end);
	json_t *whole = json_copy(schema);
	json_t *defs = json_object_get(root, "$defs"), *old = json_object_get(root, "definitions");
	if (defs != NULL)
		json_object_set(whole, "$defs", defs);
	if (old != NULL)
		json_object_set(whole, "definitions", old);
	return json_pack("{s:o,s:s}", "schema", whole, "name", name);
}

/* What stands around the parameters of a function: before and behind each name, and behind each
 * value. */
struct tags {
	const char *before_name, *behind_name, *behind_value, *end; /* no value contains `end` */
};

static json_t *tagged(
	struct making *m, const json_t *function, const char *name, const struct tags *tags)
{
	json_t *root = json_object_get(function, "parameters"), *schema;
	json_t *properties = json_object_get(root, "properties"), *list = json_array();
	const char *key;

	if (root != NULL && !json_is_null(root) && !json_is_object(properties)) {
		if (!is_strict(m, function) || json_object_size(root) == 0) {
			properties = NULL;
		} else {
			json_decref(list);
			return refuse(
				m, name, "it must be an object with properties for this model");
		}
	}
	json_object_foreach(properties, key, schema)
	{
		const json_t *required = json_object_get(root, "required"), *one;
		bool must = false;
		size_t i;
		char where[160];

		json_array_foreach(required, i, one) must |=
			strcmp(json_string_value(one) ? json_string_value(one) : "", key) == 0;
		snprintf(where, sizeof where, "%.60s.properties.%.60s", name, key);
		json_t *value = is_strict(m, function)
					? bare_value(m, root, schema, where, tags->end)
					: until(tags->end);
		json_t *part = value ? sequence(json_pack("[s,s,s,o,s]", tags->before_name, key,
					       tags->behind_name, value, tags->behind_value))
				     : NULL;
		json_array_append_new(list, must ? part : optional(part));
	}
	return sequence(list);
}

/* One call, with what stands around each call, but without what stands around all calls. */
static json_t *one_call(struct making *m, const json_t *function, size_t i)
{
	static const struct tags qwen = {"<parameter=", ">\n", "\n</parameter>\n", "</parameter>"};
	static const struct tags glm = {
		"<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</arg_value>"};
	const char *f = json_string_value(json_object_get(function, "name"));
	const struct calls_format *format = m->rules->format;
	json_t *quoted = json_string(f);
	char *spelled = quoted ? json_dumps(quoted, JSON_ENCODE_ANY) : NULL;
	char name[64];
	json_t *part = NULL, *parameters;

	snprintf(name, sizeof name, "tools[%zu].function.parameters", i);
	switch (spelled ? format->notation : CALLS_NONE) {
	case CALLS_HERMES:
		part = sequence(json_pack("[o,s++,o,s,o]", control("<tool_call>"),
			"\n{\"name\": ", spelled, ", \"arguments\": ", arguments(m, function, name),
			"}\n", control("</tool_call>")));
		break;
	case CALLS_QWEN:
		parameters = tagged(m, function, name, &qwen);
		part = parameters ? sequence(json_pack("[o,s++,o,s,o]", control("<tool_call>"),
					    "\n<function=", f, ">\n", parameters, "</function>\n",
					    control("</tool_call>")))
				  : NULL;
		break;
	case CALLS_GLM:
		parameters = tagged(m, function, name, &glm);
		part = parameters ? sequence(json_pack("[o,s+,o,o]", control("<tool_call>"), f,
					    "\n", parameters, control("</tool_call>")))
				  : NULL;
		break;
	case CALLS_HARMONY:
		part = sequence(json_pack("[o,s+,o,s,o,o]", control("<|channel|>"),
			"commentary to=functions.", f,
			sequence(json_pack("[s,o]", " ", control("<|constrain|>"))), "json",
			control("<|message|>"), arguments(m, function, name)));
		break;
	case CALLS_DEEPSEEK:
		part = format->old ? sequence(json_pack("[o,s,o,s+,o,s,o]", control(DEEPSEEK_CALL),
					     "function", control(DEEPSEEK_SEP), f, "\n```json\n",
					     arguments(m, function, name), "\n```",
					     control(DEEPSEEK_CALL_END)))
				   : sequence(json_pack("[o,s,o,o,o]", control(DEEPSEEK_CALL), f,
					     control(DEEPSEEK_SEP), arguments(m, function, name),
					     control(DEEPSEEK_CALL_END)));
		break;
	case CALLS_MISTRAL:
		part = format->old
			       ? sequence(json_pack("[s++,o,s]", "{\"name\": ", spelled,
					 ", \"arguments\": ", arguments(m, function, name), "}"))
			       : sequence(json_pack("[o,s,o,o]", control("[TOOL_CALLS]"), f,
					 control("[ARGS]"), arguments(m, function, name)));
		break;
	case CALLS_LLAMA:
		part = sequence(json_pack("[s++,o,s]", "{\"name\": ", spelled,
			", \"parameters\": ", arguments(m, function, name), "}"));
		break;
	case CALLS_NONE:
		break;
	}
	json_decref(quoted);
	free(spelled);
	return part;
}

/* A call of any function that is allowed. */
static json_t *any_call(struct making *m)
{
	json_t *list = json_array(), *tool;
	size_t i;

	json_array_foreach(m->rules->tools, i, tool)
	{
		const json_t *function = json_object_get(tool, "function");
		const char *name = json_string_value(json_object_get(function, "name"));

		if (m->rules->only == NULL || (name && strcmp(name, m->rules->only) == 0))
			json_array_append_new(list, one_call(m, function, i));
	}
	return choice(list);
}

/* One call, or as many as are allowed, with what stands around all. */
static json_t *calls(struct making *m)
{
	const struct calls_format *format = m->rules->format;
	json_t *first = any_call(m), *more = NULL, *part;
	bool one = !m->rules->parallel || m->rules->only != NULL ||
		   format->notation == CALLS_HARMONY || format->notation == CALLS_LLAMA;
	const char *between = format->notation == CALLS_MISTRAL	   ? (format->old ? ", " : "")
			      : format->notation == CALLS_DEEPSEEK ? (format->old ? "\n" : "")
								   : "\n";

	if (!one)
		more = json_pack("{s:o,s:i}", "repeat",
			sequence(json_pack("[s,O]", between, first)), "max", CALLS_MOST - 1);
	part = more ? sequence(json_pack("[o,o]", first, more)) : first;
	if (format->notation == CALLS_DEEPSEEK)
		return sequence(json_pack(
			"[o,o,o]", control(DEEPSEEK_CALLS), part, control(DEEPSEEK_CALLS_END)));
	if (format->notation == CALLS_MISTRAL && format->old)
		return sequence(json_pack("[o,s,o,s]", control("[TOOL_CALLS]"), "[", part, "]"));
	return part;
}

static json_t *thought(const struct calls_rules *rules)
{
	const struct calls_format *format = rules->format;

	if (format->notation == CALLS_HARMONY)
		return optional(sequence(json_pack("[o,s,o,o,o,o,s]", control("<|channel|>"),
			"analysis", control("<|message|>"), until("<|"), control("<|end|>"),
			control("<|start|>"), "assistant")));
	if (format->think == NULL)
		return json_string("");
	json_t *inner = sequence(json_pack("[o,o,{s:s}]", until(format->think_end),
		control(format->think_end), "regex", "\\s{0,2}"));
	return rules->thinking
		       ? inner
		       : optional(sequence(json_pack("[o,o]", control(format->think), inner)));
}

static json_t *plain(const struct calls_rules *rules)
{
	static const char *const openings[] = {[CALLS_HERMES] = "<tool_call>",
		[CALLS_QWEN] = "<tool_call>",
		[CALLS_GLM] = "<tool_call>",
		[CALLS_DEEPSEEK] = DEEPSEEK_CALLS,
		[CALLS_MISTRAL] = "[TOOL_CALLS]",
		[CALLS_HARMONY] = "<|",
		[CALLS_LLAMA] = NULL};
	const char *opening = openings[rules->format->notation];

	if (rules->format->notation == CALLS_LLAMA)
		return json_pack("{s:s}", "regex", "([^{\\s][\\s\\S]*)?");
	return opening ? until(opening) : json_pack("{s:s}", "regex", "[\\s\\S]*");
}

/* The whole answer behind its thoughts: with calls, or without any. */
static json_t *answer(struct making *m)
{
	const struct calls_rules *rules = m->rules;
	enum calls_notation notation = rules->format->notation;
	bool none = json_array_size(rules->tools) == 0;
	json_t *content = rules->content ? json_deep_copy(rules->content) : plain(rules);

	if (notation == CALLS_HARMONY)
		content = sequence(json_pack("[o,s,o,o]", control("<|channel|>"), "final",
			control("<|message|>"), content));
	if (none)
		return content;
	if (rules->required) {
		json_decref(content);
		return calls(m);
	}
	/* Free text may stand in front of calls, except in notations where an answer is either text
	 * or calls. */
	if (rules->content == NULL && notation != CALLS_HARMONY && notation != CALLS_LLAMA)
		return sequence(
			json_pack("[o,o]", content, choice(json_pack("[s,o]", "", calls(m)))));
	return choice(json_pack("[o,o]", content, calls(m)));
}

json_t *calls_grammar(const struct calls_rules *rules, char why[static 200])
{
	struct making m = {.rules = rules, .why = why};
	json_t *whole;

	why[0] = '\0';
	whole = sequence(json_pack("[o,o]", thought(rules), answer(&m)));
	if (!m.failed)
		return whole;
	json_decref(whole);
	return NULL;
}
