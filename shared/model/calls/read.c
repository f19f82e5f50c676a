/* Reads text that may not have arrived completely, and the notations of calls (private.h). */
#include "shared/model/calls/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void calls_text_add(struct calls_text *text, const char *data, size_t n)
{
	if (text->failed || n == 0)
		return;
	if (text->n + n > text->capacity) {
		size_t capacity = 2 * (text->n + n);
		char *more = realloc(text->data, capacity);

		if (more == NULL) {
			text->failed = true;
			return;
		}
		text->data = more;
		text->capacity = capacity;
	}
	memcpy(text->data + text->n, data, n);
	text->n += n;
}

void calls_text_free(struct calls_text *text)
{
	free(text->data);
	*text = (struct calls_text){0};
}

static bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The result depends on text that has not arrived. need: as in struct calls_reader. */
static bool wait_for(struct calls_reader *r, const char *need)
{
	r->more = !r->final;
	r->need = need;
	return false;
}

void calls_space(struct calls_reader *r)
{
	while (r->at < r->n && is_space(r->text[r->at]))
		r->at++;
}

bool calls_take(struct calls_reader *r, const char *word)
{
	size_t bytes = strlen(word), left = r->n - r->at;

	if (left < bytes)
		return memcmp(r->text + r->at, word, left) == 0 && wait_for(r, NULL);
	if (memcmp(r->text + r->at, word, bytes) != 0)
		return false;
	r->at += bytes;
	return true;
}

bool calls_upto(struct calls_reader *r, const char *word, const char **text, size_t *n)
{
	const char *from = r->text + r->at, *end = memmem(from, r->n - r->at, word, strlen(word));

	if (end == NULL)
		return wait_for(r, word);
	*text = from;
	*n = (size_t)(end - from);
	r->at += *n + strlen(word);
	return true;
}

size_t calls_brackets_scan(struct calls_brackets *b, const char *text, size_t n)
{
	size_t i;

	for (i = 0; i < n && !b->closed; i++) {
		char c = text[i];

		if (b->string) {
			b->string = b->escape || c != '"';
			b->escape = !b->escape && c == '\\';
			continue;
		}
		/* Outside strings only these characters occur in JSON. */
		b->bad = c == '\0' ||
			 (strchr("{}[]:,\"+-. \n\t\r", c) == NULL && !(c >= '0' && c <= '9') &&
				 !(c >= 'a' && c <= 'z') && c != 'E');
		if (b->bad)
			return i;
		b->string = c == '"';
		b->depth += c == '{' || c == '[';
		b->depth -= c == '}' || c == ']';
		b->closed = b->depth == 0;
	}
	return i;
}

/* The offset behind the bracket that closes the one at the beginning. 0: it has not arrived, or
 * (*bad) the text cannot be JSON. */
static size_t brackets(const char *text, size_t n, bool *bad)
{
	struct calls_brackets b = {0};
	size_t end = calls_brackets_scan(&b, text, n);

	*bad = b.bad;
	return b.closed ? end : 0;
}

bool calls_value(struct calls_reader *r, const char **text, size_t *n)
{
	bool bad;

	if (r->at == r->n)
		return wait_for(r, NULL);
	if (r->text[r->at] != '{' && r->text[r->at] != '[')
		return false;
	*text = r->text + r->at;
	*n = brackets(*text, r->n - r->at, &bad);
	if (*n == 0)
		return !bad && wait_for(r, *text[0] == '{' ? "}" : "]");
	r->at += *n;
	return true;
}

const json_t *calls_function(const json_t *tools, const char *name)
{
	size_t i;
	json_t *tool;

	json_array_foreach(tools, i, tool)
	{
		const json_t *function = json_object_get(tool, "function");
		const char *its = json_string_value(json_object_get(function, "name"));

		if (its != NULL && strcmp(its, name) == 0)
			return function;
	}
	return NULL;
}

bool calls_add(
	struct calls_found *found, const char *name, size_t n, const char *arguments, size_t bytes)
{
	json_t *object = json_loadb(arguments, bytes, 0, NULL);
	bool good = json_is_object(object);
	char *copy = strndup(name, n);

	json_decref(object);
	good = good && copy != NULL && strlen(copy) == n &&
	       calls_function(found->tools, copy) != NULL;
	free(copy);
	if (!good)
		return false;
	calls_text_add(&found->names, name, n);
	calls_text_add(&found->names, "", 1);
	calls_text_add(&found->arguments, arguments, bytes);
	calls_text_add(&found->arguments, "", 1);
	found->n++;
	return true;
}

/* The offset behind the string that begins at `at`. The text is JSON. */
static size_t behind_string(const char *text, size_t at)
{
	for (at++; text[at] != '"'; at++)
		at += text[at] == '\\';
	return at + 1;
}

/* Finds the value of a key in the text of a JSON object, if that value is an object. */
static bool find_object(
	const char *text, size_t n, const char *key, const char **value, size_t *bytes)
{
	size_t at = 1, name = strlen(key);
	bool bad;

	while (at < n) {
		if (text[at] == '{' || text[at] == '[') {
			at += brackets(text + at, n - at, &bad);
		} else if (text[at] == '"') {
			size_t from = at + 1, end = behind_string(text, at);

			for (at = end; at < n && is_space(text[at]);)
				at++;
			if (at >= n || text[at] != ':')
				continue;
			for (at++; at < n && is_space(text[at]);)
				at++;
			if (end - 1 - from == name && memcmp(text + from, key, name) == 0 &&
				text[at] == '{') {
				*value = text + at;
				*bytes = brackets(text + at, n - at, &bad);
				return true;
			}
		} else {
			at++;
		}
	}
	return false;
}

bool calls_add_object(struct calls_found *found, const char *text, size_t n)
{
	json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
	const json_t *name = json_object_get(object, "name");
	const char *key = json_object_get(object, "arguments") ? "arguments" : "parameters", *value;
	const json_t *given = json_object_get(object, key);
	size_t bytes;
	bool good = false;

	if (json_is_string(name) && given == NULL)
		good = calls_add(found, json_string_value(name), json_string_length(name), "{}", 2);
	else if (json_is_string(name) && json_is_string(given))
		good = calls_add(found, json_string_value(name), json_string_length(name),
			json_string_value(given), json_string_length(given));
	else if (json_is_string(name) && find_object(text, n, key, &value, &bytes))
		good = calls_add(
			found, json_string_value(name), json_string_length(name), value, bytes);
	json_decref(object);
	return good;
}

bool calls_read_json(struct calls_reader *r, struct calls_found *found)
{
	const char *text;
	size_t n;

	calls_space(r);
	if (!calls_value(r, &text, &n))
		return false;
	size_t behind = r->at;
	bool more = r->more;
	calls_space(r);
	/* The end may be missing if a stop string has ended the answer. */
	if (!calls_take(r, "</tool_call>")) {
		if (r->more)
			return false;
		r->at = behind;
		r->more = more;
	}
	return text[0] == '{' && calls_add_object(found, text, n);
}

static bool add_string(struct calls_text *out, const char *text, size_t n)
{
	json_t *string = json_stringn(text, n);
	char *spelled = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;

	if (spelled != NULL)
		calls_text_add(out, spelled, strlen(spelled));
	json_decref(string);
	free(spelled);
	return spelled != NULL;
}

void calls_add_escaped(struct calls_text *out, const char *text, size_t n)
{
	static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";

	for (size_t i = 0; i < n; i++) {
		const char *known = text[i] ? strchr(escaped, text[i]) : NULL;
		char spelled[8];

		if (known != NULL) {
			calls_text_add(out, (char[]){'\\', letters[known - escaped]}, 2);
		} else if ((unsigned char)text[i] < 0x20) {
			snprintf(spelled, sizeof spelled, "\\u%04X", (unsigned)text[i]);
			calls_text_add(out, spelled, strlen(spelled));
		} else {
			calls_text_add(out, text + i, 1);
		}
	}
}

bool calls_add_key(struct calls_text *out, const char *key, size_t n)
{
	bool good = add_string(out, key, n);

	calls_text_add(out, ": ", 2);
	return good;
}

/* What the schema of an argument allows. */
static unsigned types_of(const json_t *function, const char *key, size_t n)
{
	const json_t *root = json_object_get(function, "parameters");
	const json_t *properties = json_object_get(root, "properties");

	return calls_types(root, json_object_getn(properties, key, n), 0);
}

bool calls_is_string(const json_t *function, const char *key, size_t n)
{
	return types_of(function, key, n) == CALLS_STRING;
}

bool calls_add_value(struct calls_text *out, const json_t *function, const char *key, size_t n_key,
	const char *text, size_t n)
{
	unsigned types = types_of(function, key, n_key);
	json_t *value = types == CALLS_STRING ? NULL : json_loadb(text, n, JSON_DECODE_ANY, NULL);
	/* A text that is not JSON of an allowed type is a string. */
	bool json = value != NULL && ((types >> json_typeof(value) & 1) || !(types & CALLS_STRING));

	json_decref(value);
	if (!json)
		return add_string(out, text, n);
	calls_text_add(out, text, n);
	return true;
}

/* Adds, as JSON, an argument that was written without quotes; its schema decides its type. */
static bool add_argument(struct calls_text *out, const json_t *function, const char *key,
	size_t n_key, const char *text, size_t n)
{
	calls_text_add(out, ", ", out->n > 1 ? 2 : 0);
	return calls_add_key(out, key, n_key) &&
	       calls_add_value(out, function, key, n_key, text, n);
}

/* The function of that name among the tools; NULL: there is none. */
static const json_t *function_of(const struct calls_found *found, const char *name, size_t n)
{
	char *copy = strndup(name, n);
	const json_t *function = copy != NULL ? calls_function(found->tools, copy) : NULL;

	free(copy);
	return function;
}

bool calls_is_name(const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (is_space(text[i]) || strchr("<>{}[]\"", text[i]) != NULL)
			return false;
	return n > 0;
}

/* Removes the line ends around a value: values stand on lines of their own. */
static void strip_line(const char **text, size_t *n)
{
	if (*n > 0 && **text == '\n') {
		++*text;
		--*n;
	}
	if (*n > 0 && (*text)[*n - 1] == '\n')
		--*n;
}

bool calls_read_qwen(struct calls_reader *r, struct calls_found *found)
{
	struct calls_text arguments = {0};
	const char *name, *key, *value;
	size_t n_name, n_key, n_value;
	bool good = false;

	calls_space(r);
	if (r->at < r->n && r->text[r->at] == '{')
		return calls_read_json(r, found);
	if (!calls_take(r, "<function=") || !calls_upto(r, ">", &name, &n_name) ||
		!calls_is_name(name, n_name))
		return false;
	const json_t *function = function_of(found, name, n_name);
	calls_text_add(&arguments, "{", 1);
	for (;;) {
		calls_space(r);
		if (calls_take(r, "</function>")) {
			good = true;
			break;
		}
		if (r->more || !calls_take(r, "<parameter=") || !calls_upto(r, ">", &key, &n_key) ||
			!calls_upto(r, "</parameter>", &value, &n_value))
			break;
		strip_line(&value, &n_value);
		if (!add_argument(&arguments, function, key, n_key, value, n_value))
			break;
	}
	calls_text_add(&arguments, "}", 1);
	size_t behind = r->at;
	calls_space(r);
	if (good && !calls_take(r, "</tool_call>") && !r->more)
		r->at = behind;
	good = good && !r->more && !arguments.failed &&
	       calls_add(found, name, n_name, arguments.data, arguments.n);
	free(arguments.data);
	return good;
}

bool calls_head_glm(struct calls_reader *r, const char **name, size_t *n)
{
	calls_space(r);
	*name = r->text + r->at;
	for (*n = 0; r->at < r->n && r->text[r->at] != '<' && r->text[r->at] != '\n'; r->at++)
		++*n;
	if (r->at == r->n)
		return wait_for(r, NULL);
	while (*n > 0 && is_space((*name)[*n - 1]))
		--*n;
	return calls_is_name(*name, *n);
}

bool calls_read_glm(struct calls_reader *r, struct calls_found *found)
{
	struct calls_text arguments = {0};
	const char *name, *key, *value;
	size_t n_name, n_key, n_value;
	bool good = false;

	if (!calls_head_glm(r, &name, &n_name))
		return false;
	const json_t *function = function_of(found, name, n_name);
	calls_text_add(&arguments, "{", 1);
	for (;;) {
		calls_space(r);
		if (calls_take(r, "</tool_call>")) {
			good = true;
			break;
		}
		if (r->more || !calls_take(r, "<arg_key>") ||
			!calls_upto(r, "</arg_key>", &key, &n_key))
			break;
		calls_space(r);
		if (!calls_take(r, "<arg_value>") ||
			!calls_upto(r, "</arg_value>", &value, &n_value) ||
			!add_argument(&arguments, function, key, n_key, value, n_value))
			break;
	}
	calls_text_add(&arguments, "}", 1);
	good = good && !arguments.failed &&
	       calls_add(found, name, n_name, arguments.data, arguments.n);
	free(arguments.data);
	return good;
}

/* V3.1: NAME, sep, JSON. V3 and R1: "function", sep, NAME, JSON in a fence. Behind the opening of the list, or of a call. */
bool calls_head_deepseek(struct calls_reader *r, const char **name, size_t *n)
{
	calls_space(r);
	if (!calls_take(r, DEEPSEEK_CALL) && r->more)
		return false;
	if (!calls_upto(r, DEEPSEEK_SEP, name, n) || !calls_is_name(*name, *n))
		return false;
	if (*n == strlen("function") && memcmp(*name, "function", *n) == 0) {
		if (!calls_upto(r, "\n", name, n) || !calls_is_name(*name, *n))
			return false;
		calls_space(r);
		if (!calls_take(r, "```json"))
			return false;
	}
	calls_space(r);
	return true;
}

static bool one_deepseek(struct calls_reader *r, struct calls_found *found)
{
	const char *name, *text;
	size_t n_name, n;

	if (!calls_head_deepseek(r, &name, &n_name) || !calls_value(r, &text, &n))
		return false;
	calls_space(r);
	(void)calls_take(r, "```");
	if (!r->more)
		calls_space(r);
	return !r->more && (calls_take(r, DEEPSEEK_CALL_END) || (r->final && r->at == r->n)) &&
	       calls_add(found, name, n_name, text, n);
}

bool calls_read_deepseek(struct calls_reader *r, struct calls_found *found)
{
	if (!one_deepseek(r, found))
		return false;
	size_t behind = r->at;
	calls_space(r);
	if (!calls_take(r, DEEPSEEK_CALLS_END) && !r->more)
		r->at = behind;
	return !r->more;
}

static bool mistral_list(struct calls_reader *r, struct calls_found *found)
{
	const char *text;
	size_t n, at, bytes;
	bool bad, good = true;

	if (!calls_value(r, &text, &n))
		return false;
	for (at = 1; good && at < n; at++) {
		if (text[at] != '{')
			continue;
		bytes = brackets(text + at, n - at, &bad);
		good = bytes > 0 && calls_add_object(found, text + at, bytes);
		at += bytes;
	}
	return good && found->n > 0;
}

bool calls_head_mistral(struct calls_reader *r, const char **name, size_t *n)
{
	const char *id;
	size_t n_id;

	*name = r->text + r->at;
	for (*n = 0; r->at < r->n && !is_space(r->text[r->at]) && r->text[r->at] != '[' &&
		     r->text[r->at] != '{';
		r->at++)
		++*n;
	if (r->at == r->n)
		return wait_for(r, NULL);
	if (calls_take(r, "[CALL_ID]") && !calls_upto(r, "[", &id, &n_id))
		return false;
	if (r->more)
		return false;
	if (r->at > 0 && r->text[r->at - 1] == '[')
		r->at--;
	(void)calls_take(r, "[ARGS]");
	if (r->more)
		return false;
	calls_space(r);
	return calls_is_name(*name, *n);
}

bool calls_read_mistral(struct calls_reader *r, struct calls_found *found)
{
	const char *name, *text;
	size_t n_name, n;

	calls_space(r);
	if (r->at == r->n)
		return wait_for(r, NULL);
	if (r->text[r->at] == '[')
		return mistral_list(r, found);
	if (r->text[r->at] == '{')
		return calls_value(r, &text, &n) && calls_add_object(found, text, n);
	return calls_head_mistral(r, &name, &n_name) && calls_value(r, &text, &n) &&
	       calls_add(found, name, n_name, text, n);
}
