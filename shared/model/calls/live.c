/* A call that is told while it is written. Once its function is known and its arguments begin, it is a call, whatever follows. */
#include "shared/model/calls/private.h"

#include "shared/base/utf8.h"

#include <string.h>

enum {
	LIVE_HEAD_MAX = 1024
}; /* bytes in front of the arguments, beyond which a call is not reported early */

void calls_live_reset(struct calls_live *live)
{
	live->began = live->hopeless = live->ended = false;
	live->at = live->name.n = live->key.n = live->out.n = 0;
	live->brackets = (struct calls_brackets){0};
	live->value = VALUE_NONE;
	live->first = true;
}

void calls_live_free(struct calls_live *live)
{
	calls_text_free(&live->name);
	calls_text_free(&live->key);
	calls_text_free(&live->out);
}

static void set_text(struct calls_text *text, const char *data, size_t n)
{
	text->n = 0;
	calls_text_add(text, data, n);
	calls_text_add(text, "", 1);
}

/* A JSON string without escapes. */
static bool take_word(struct calls_reader *r, const char **text, size_t *n)
{
	return calls_take(r, "\"") && calls_upto(r, "\"", text, n) &&
	       memchr(*text, '\\', *n) == NULL;
}

static bool is_word(const char *text, size_t n, const char *word)
{
	return n == strlen(word) && memcmp(text, word, n) == 0;
}

/* {"name": NAME, "arguments": and what has strings in front of that. */
static bool head_json(struct calls_reader *r, const char **name, size_t *n_name)
{
	const char *key, *value;
	size_t n_key, n_value;

	*name = NULL;
	calls_space(r);
	if (!calls_take(r, "{"))
		return false;
	for (;;) {
		calls_space(r);
		if (!take_word(r, &key, &n_key))
			return false;
		calls_space(r);
		if (!calls_take(r, ":"))
			return false;
		calls_space(r);
		if (is_word(key, n_key, "arguments") || is_word(key, n_key, "parameters"))
			return *name != NULL;
		if (!take_word(r, &value, &n_value))
			return false;
		if (is_word(key, n_key, "name")) {
			if (*name != NULL)
				return false;
			*name = value;
			*n_name = n_value;
		}
		calls_space(r);
		if (!calls_take(r, ","))
			return false;
	}
}

static bool head_mistral(struct calls_reader *r, const char **name, size_t *n)
{
	calls_space(r);
	if (r->at < r->n && (r->text[r->at] == '[' || r->text[r->at] == '{')) {
		(void)calls_take(r, "[");
		return head_json(r, name, n);
	}
	return calls_head_mistral(r, name, n);
}

/* Up to the first argument's beginning. */
static bool head_qwen(struct calls_reader *r, const char **name, size_t *n)
{
	struct calls_reader behind;

	calls_space(r);
	if (r->at < r->n && r->text[r->at] == '{')
		return head_json(r, name, n);
	if (!calls_take(r, "<function=") || !calls_upto(r, ">", name, n) ||
		!calls_is_name(*name, *n))
		return false;
	calls_space(r);
	behind = *r;
	bool good = calls_take(&behind, "<parameter=");
	r->more = behind.more;
	return good;
}

static bool head_glm(struct calls_reader *r, const char **name, size_t *n)
{
	struct calls_reader behind;

	if (!calls_head_glm(r, name, n))
		return false;
	calls_space(r);
	behind = *r;
	bool good = calls_take(&behind, "<arg_key>");
	r->more = behind.more;
	return good;
}

/* True: the arguments begin at r->at. */
static bool read_head(
	const struct calls_live *live, struct calls_reader *r, const char **name, size_t *n)
{
	switch (live->notation) {
	case CALLS_QWEN:
		return head_qwen(r, name, n);
	case CALLS_GLM:
		return head_glm(r, name, n);
	case CALLS_DEEPSEEK:
		return calls_head_deepseek(r, name, n);
	case CALLS_MISTRAL:
		return head_mistral(r, name, n);
	case CALLS_HARMONY: /* its name stands in the message's head */
		*name = live->function;
		*n = strlen(live->function);
		calls_space(r);
		return true;
	default:
		return head_json(r, name, n);
	}
}

static bool is_tagged(const struct calls_live *live, const struct calls_reader *r)
{
	return (live->notation == CALLS_QWEN || live->notation == CALLS_GLM) && r->at < r->n &&
	       r->text[r->at] == '<';
}

static void begin(struct calls_live *live, struct calls_reader *r, const json_t *tools)
{
	size_t from = r->at, n = 0;
	const char *name = NULL;
	bool good = read_head(live, r, &name, &n);

	if (good && r->at == r->n)
		r->more = true;
	if (r->more) {
		live->hopeless = r->n - from > LIVE_HEAD_MAX;
		return;
	}
	live->hopeless = !good || r->at - from > LIVE_HEAD_MAX;
	if (live->hopeless)
		return;
	set_text(&live->name, name, n);
	live->tagged = is_tagged(live, r);
	live->described = live->name.failed ? NULL : calls_function(tools, live->name.data);
	live->hopeless = live->described == NULL || strlen(live->name.data) != n ||
			 (!live->tagged && r->text[r->at] != '{');
	live->began = !live->hopeless;
	live->at = r->at;
	if (live->began && live->tagged)
		calls_text_add(&live->out, "{", 1);
}

/* The name of an argument. False: the arguments end here, or it depends on what comes. */
static bool next_argument(struct calls_live *live, struct calls_reader *r)
{
	bool qwen = live->notation == CALLS_QWEN;
	const char *key;
	size_t n;

	calls_space(r);
	if (!calls_take(r, qwen ? "<parameter=" : "<arg_key>") ||
		!calls_upto(r, qwen ? ">" : "</arg_key>", &key, &n))
		return false;
	if (!qwen) {
		calls_space(r);
		if (!calls_take(r, "<arg_value>"))
			return false;
	}
	/* A line's end in front of the value belongs to the notation. */
	if (qwen && r->at == r->n) {
		r->more = !r->final;
		return false;
	}
	r->at += qwen && r->text[r->at] == '\n';
	set_text(&live->key, key, n);
	calls_text_add(&live->out, ", ", live->first ? 0 : 2);
	if (!calls_add_key(&live->out, key, n))
		return false;
	live->first = false;
	live->value = calls_is_string(live->described, key, n) ? VALUE_STRING : VALUE_OTHER;
	if (live->value == VALUE_STRING)
		calls_text_add(&live->out, "\"", 1);
	live->at = r->at;
	return true;
}

/* How many bytes at the end may be the beginning of the word. */
static size_t held_back(const char *text, size_t n, const char *word)
{
	for (size_t k = strlen(word) - 1 < n ? strlen(word) - 1 : n; k > 0; k--)
		if (memcmp(text + n - k, word, k) == 0)
			return k;
	return 0;
}

/* How many bytes are whole characters. *bad: what follows them cannot become one. */
static size_t whole_characters(const char *text, size_t n, bool last, bool *bad)
{
	size_t at = 0, one;

	while ((one = utf8_sequence(text + at, n - at)) > 0)
		at += one;
	unsigned char lead = at < n ? (unsigned char)text[at] : 0;
	bool begun = lead >= 0xC2 && lead <= 0xF4 && utf8_ill_formed(text + at, n - at) == n - at;
	*bad = at < n && (last || !begun);
	return at;
}

/* What is there of a value. False: it is not all there, or none. */
static bool take_value(struct calls_live *live, struct calls_reader *r)
{
	bool qwen = live->notation == CALLS_QWEN;
	const char *word = qwen ? "</parameter>" : "</arg_value>", *from = r->text + live->at;
	size_t left = r->n - live->at, n;
	const char *end = memmem(from, left, word, strlen(word));

	n = end ? (size_t)(end - from) : left - held_back(from, left, word);
	if (live->value == VALUE_OTHER && end == NULL) {
		r->more = !r->final;
		return false;
	}
	/* And so does one behind it. */
	size_t line = qwen && n > 0 && from[n - 1] == '\n', given = n - line;
	bool bad = false;
	if (live->value == VALUE_STRING) {
		given = whole_characters(from, n - line, end != NULL, &bad);
		calls_add_escaped(&live->out, from, given);
	} else if (!calls_add_value(&live->out, live->described, live->key.data, live->key.n - 1,
			   from, n - line))
		return false;
	live->at += end && !bad ? n + strlen(word) : given;
	if (bad)
		return false;
	if (end == NULL) {
		r->more = !r->final;
		return false;
	}
	calls_text_add(&live->out, "\"", live->value == VALUE_STRING);
	live->value = VALUE_NONE;
	return true;
}

static void take_tagged(struct calls_live *live, struct calls_reader *r)
{
	bool good = true;

	/* Arguments that are cut off by the end of the answer have not ended. */
	r->final = false;
	while (good) {
		r->at = live->at;
		good = live->value == VALUE_NONE ? next_argument(live, r) : take_value(live, r);
	}
	live->ended = !r->more;
}

bool calls_live_read(struct calls_live *live, struct calls_reader *r, const json_t *tools)
{
	if (!live->began && !live->hopeless)
		begin(live, r, tools);
	if (!live->began || live->ended)
		return live->began;
	r->more = false;
	if (live->tagged) {
		take_tagged(live, r);
	} else {
		size_t n =
			calls_brackets_scan(&live->brackets, r->text + live->at, r->n - live->at);

		calls_text_add(&live->out, r->text + live->at, n);
		live->at += n;
		live->ended = live->brackets.bad || live->brackets.closed;
	}
	return true;
}
