#include "shared/model/text/template/lexer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NESTING_MAX = 256 };

struct lexer {
	struct arena *arena;
	const struct source *source;
	struct tokens *tokens;
	size_t at;
	char closing[NESTING_MAX]; /* brackets that are open in this tag */
	size_t n_closing;
};

void source_position(const struct source *source, size_t at, size_t *line, size_t *column)
{
	uint32_t ignored;
	*line = *column = 1;
	for (size_t i = 0; i < at && i < source->bytes;) {
		bool newline = source->text[i] == '\n';
		*line += newline;
		*column = newline ? 1 : *column + 1;
		i += text_char(source->text + i, source->bytes - i, &ignored);
	}
}

int source_error(struct arena *arena, const struct source *source, size_t at, int code,
	const char *format, va_list args)
{
	char text[400];
	size_t line, column;
	vsnprintf(text, sizeof(text), format, args);
	/* The message stays one sentence without a newline, whatever the template contains. */
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7F)
			*c = ' ';
	source_position(source, at, &line, &column);
	return error_set(arena->err, code, "template line %zu, column %zu: %s", line, column, text);
}

void source_fail(
	struct arena *arena, const struct source *source, size_t at, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int rc = source_error(arena, source, at, EINVAL, format, args);
	va_end(args);
	arena_fail(arena, rc);
}

#define FAIL(l, at, ...) source_fail((l)->arena, (l)->source, at, __VA_ARGS__)

static struct token *add(struct lexer *l, enum token_type type, size_t at, size_t bytes)
{
	struct tokens *t = l->tokens;
	if (t->n == t->capacity) {
		size_t capacity = t->capacity ? 2 * t->capacity : 256;
		t->items = arena_grow(l->arena, t->items, t->n, capacity, sizeof(*t->items));
		t->capacity = capacity;
	}
	struct token *token = &t->items[t->n++];
	*token = (struct token){.type = type, .at = (uint32_t)at, .bytes = (uint32_t)bytes};
	return token;
}

static bool looking_at(const struct lexer *l, size_t at, const char *text)
{
	size_t n = strlen(text);
	return n <= l->source->bytes - at && memcmp(l->source->text + at, text, n) == 0;
}

static size_t skip_spaces(const struct lexer *l, size_t at)
{
	uint32_t code;
	while (at < l->source->bytes) {
		size_t n = text_char(l->source->text + at, l->source->bytes - at, &code);
		if (!text_is_space(code))
			break;
		at += n;
	}
	return at;
}

/* Adds text from..to-1, which stands before a tag with this sign. strippable: lstrip_blocks
 * applies. */
static void add_data(struct lexer *l, size_t from, size_t to, char sign, bool strippable)
{
	struct string *s = text_borrow(l->arena, l->source->text + from, to - from, true);
	if (sign == '-') {
		s = text_strip(l->arena, s, NULL, false, true);
	} else if (sign != '+' && strippable) {
		size_t line = s->bytes;
		while (line > 0 && s->data[line - 1] != '\n')
			line--;
		bool starts_line = line > 0 || from == 0 || l->source->text[from - 1] == '\n';
		struct string *rest = text_slice(l->arena, s, line, s->bytes);
		if (starts_line && text_strip(l->arena, rest, NULL, true, false)->bytes == 0)
			s = text_slice(l->arena, s, 0, line);
	}
	if (s->bytes)
		add(l, TOKEN_DATA, from, to - from)->text = s;
}

static char sign_at(const struct lexer *l, size_t at)
{
	char c = at < l->source->bytes ? l->source->text[at] : '\0';
	return c == '-' || c == '+' ? c : '\0';
}

/* The end of a block, comment or raw tag ("%}" or "#}") at `at`, with its sign and the white space
 * that goes with it; 0 when there is none. */
static size_t tag_end(const struct lexer *l, size_t at, const char *end)
{
	char sign = sign_at(l, at);
	size_t close = sign ? at + 1 : at;
	if (!looking_at(l, close, end))
		return 0;
	close += 2;
	if (sign == '-')
		return skip_spaces(l, close);
	return !sign && close < l->source->bytes && l->source->text[close] == '\n' ? close + 1
										   : close;
}

static size_t skip_comment(struct lexer *l, size_t start)
{
	size_t end;
	/* "{#-" has taken its sign; "{#-#}" is then a whole comment. */
	for (size_t at = start + 2 + (sign_at(l, start + 2) != 0); at < l->source->bytes; at++)
		if ((end = tag_end(l, at, "#}")))
			return end;
	FAIL(l, start, "this comment does not end");
}

/* If "{% name %}" begins at `at`, the end of its "%}"; else 0. sign: the sign at its beginning. */
static size_t word_tag(const struct lexer *l, size_t at, const char *name, char *sign)
{
	if (!looking_at(l, at, "{%"))
		return 0;
	at += 2;
	*sign = sign_at(l, at);
	at = skip_spaces(l, at + (*sign != 0));
	if (!looking_at(l, at, name))
		return 0;
	return skip_spaces(l, at + strlen(name));
}

/* Reads {% raw %} at start. Returns the offset behind it, or 0 when this is another tag. */
static size_t read_raw(struct lexer *l, size_t from, size_t start)
{
	char sign, end_sign;
	size_t at = word_tag(l, start, "raw", &sign), end = 0;
	if (!at)
		return 0;
	if (looking_at(l, at, "-%}"))
		at = skip_spaces(l, at + 3);
	else if (looking_at(l, at, "%}"))
		at += 2;
	else
		return 0;
	add_data(l, from, start, sign, true);
	for (size_t i = at; i < l->source->bytes; i++) {
		size_t word = word_tag(l, i, "endraw", &end_sign);
		if (word && (end = tag_end(l, word, "%}"))) {
			add_data(l, at, i, end_sign, true);
			return end;
		}
	}
	FAIL(l, start, "this raw block does not end");
}

static const struct operator
{
	char text[3];
	enum token_type type;
}
operators[] = {
	{"//", TOKEN_FLOORDIV},
	{"**", TOKEN_POW},
	{"==", TOKEN_EQ},
	{"!=", TOKEN_NE},
	{">=", TOKEN_GE},
	{"<=", TOKEN_LE},
	{"+", TOKEN_ADD},
	{"-", TOKEN_SUB},
	{"/", TOKEN_DIV},
	{"*", TOKEN_MUL},
	{"%", TOKEN_MOD},
	{"~", TOKEN_TILDE},
	{"[", TOKEN_LEFT_BRACKET},
	{"]", TOKEN_RIGHT_BRACKET},
	{"(", TOKEN_LEFT_PAREN},
	{")", TOKEN_RIGHT_PAREN},
	{"{", TOKEN_LEFT_BRACE},
	{"}", TOKEN_RIGHT_BRACE},
	{">", TOKEN_GT},
	{"<", TOKEN_LT},
	{"=", TOKEN_ASSIGN},
	{".", TOKEN_DOT},
	{":", TOKEN_COLON},
	{"|", TOKEN_PIPE},
	{",", TOKEN_COMMA},
	{";", TOKEN_SEMICOLON},
};

static void track_brackets(struct lexer *l, char c)
{
	static const char open[] = "([{", close[] = ")]}";
	const char *at = strchr(open, c);
	if (at) {
		if (l->n_closing == NESTING_MAX)
			FAIL(l, l->at, "more than %d brackets inside each other", NESTING_MAX);
		l->closing[l->n_closing++] = close[at - open];
	} else if (strchr(close, c)) {
		if (!l->n_closing)
			FAIL(l, l->at, "unexpected '%c'", c);
		if (l->closing[--l->n_closing] != c)
			FAIL(l, l->at, "unexpected '%c', expected '%c'", c,
				l->closing[l->n_closing]);
	}
}

static void read_operator(struct lexer *l)
{
	for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
		const struct operator* o = & operators[i];
		if (!looking_at(l, l->at, o->text))
			continue;
		size_t n = strlen(o->text);
		if (n == 1)
			track_brackets(l, o->text[0]);
		add(l, o->type, l->at, n);
		l->at += n;
		return;
	}
	uint32_t code;
	text_char(l->source->text + l->at, l->source->bytes - l->at, &code);
	FAIL(l, l->at, "unexpected character U+%04X", code);
}

static bool is_word(uint32_t c)
{
	return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
	       (c >= 'A' && c <= 'Z') || (c >= 0x80 && !text_is_space(c));
}

static void read_name(struct lexer *l)
{
	size_t start = l->at;
	uint32_t code;
	while (l->at < l->source->bytes) {
		size_t n = text_char(l->source->text + l->at, l->source->bytes - l->at, &code);
		if (!is_word(code))
			break;
		l->at += n;
	}
	add(l, TOKEN_NAME, start, l->at - start)->text =
		text_borrow(l->arena, l->source->text + start, l->at - start, true);
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Skips digits that may have single underscores between them; returns where they end. */
static size_t skip_digits(const struct lexer *l, size_t at, const char *allowed)
{
	const char *s = l->source->text;
	size_t end = l->source->bytes;
	while (at < end && s[at] && strchr(allowed, s[at]))
		at += at + 2 < end && s[at + 1] == '_' && s[at + 2] && strchr(allowed, s[at + 2])
			      ? 2
			      : 1;
	return at;
}

static void add_number(
	struct lexer *l, size_t start, size_t digits, size_t end, int base, bool real)
{
	char text[400];
	size_t n = 0;
	for (size_t i = digits; i < end; i++)
		if (l->source->text[i] != '_') {
			if (n == sizeof(text) - 1)
				FAIL(l, start, "a number of more than %zu digits", n);
			text[n++] = l->source->text[i];
		}
	text[n] = '\0';
	struct token *token = add(l, real ? TOKEN_FLOAT : TOKEN_INT, start, end - start);
	errno = 0;
	if (real)
		token->f = strtod(text, NULL);
	else
		token->i = strtoll(text, NULL, base);
	if (!real && errno)
		FAIL(l, start, "integer %.30s does not fit 64 bits", text);
	l->at = end;
}

static void read_number(struct lexer *l)
{
	static const char decimal[] = "0123456789";
	const char *s = l->source->text;
	size_t start = l->at, end = l->source->bytes;
	char kind = start + 2 < end && s[start] == '0' ? (char)(s[start + 1] | 0x20) : '\0';
	if (kind == 'x' || kind == 'o' || kind == 'b') {
		const char *digits = kind == 'x'   ? "0123456789abcdefABCDEF"
				     : kind == 'o' ? "01234567"
						   : "01";
		size_t from = start + 2 + (s[start + 2] == '_');
		size_t to = skip_digits(l, from, digits);
		if (to > from)
			return add_number(l, start, from, to,
				kind == 'x'   ? 16
				: kind == 'o' ? 8
					      : 2,
				false);
	}
	size_t to = skip_digits(l, start, decimal), fraction = to;
	bool after_dot = start > 0 && s[start - 1] == '.';
	if (to + 1 < end && s[to] == '.' && is_digit(s[to + 1]))
		fraction = skip_digits(l, to + 1, decimal);
	size_t exponent = fraction;
	if (exponent < end && (s[exponent] | 0x20) == 'e') {
		exponent++;
		if (exponent < end && (s[exponent] == '+' || s[exponent] == '-'))
			exponent++;
		if (exponent < end && is_digit(s[exponent]))
			fraction = skip_digits(l, exponent, decimal);
	}
	if (fraction > to && !after_dot)
		return add_number(l, start, start, fraction, 10, true);
	/* Like Python, no octal by a leading zero: "007" is three numbers, which no grammar takes.
	 */
	if (s[start] == '0')
		to = skip_digits(l, start, "0");
	add_number(l, start, start, to, 10, false);
}

static uint32_t read_hex(struct lexer *l, size_t at, size_t digits, size_t end)
{
	uint32_t code = 0;
	for (size_t i = 0; i < digits; i++) {
		char c = at + i < end ? l->source->text[at + i] : '\0';
		int value = is_digit(c)				     ? c - '0'
			    : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
								     : -1;
		if (value < 0)
			FAIL(l, at, "an escape with %zu hexadecimal digits is cut short", digits);
		code = code << 4 | (uint32_t)value;
	}
	return code;
}

/* \uD83D\uDE00 is one character. */
static size_t read_unicode(struct lexer *l, struct builder *b, size_t at, size_t digits, size_t end)
{
	uint32_t code = read_hex(l, at, digits, end);
	size_t used = digits;
	if (code >= 0xD800 && code < 0xDC00 && at + digits + 6 <= end &&
		l->source->text[at + digits] == '\\' && l->source->text[at + digits + 1] == 'u') {
		uint32_t low = read_hex(l, at + digits + 2, 4, end);
		if (low >= 0xDC00 && low < 0xE000) {
			code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
			used += 6;
		}
	}
	if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
		FAIL(l, at, "U+%04X is not a character", code);
	builder_code_point(b, code, true);
	return used;
}

/* Reads the escape at `at`, behind the backslash; returns its number of bytes. */
static size_t read_escape(struct lexer *l, struct builder *b, size_t at, size_t end)
{
	static const char names[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
	char c = l->source->text[at];
	const char *simple = c ? strchr(names, c) : NULL;
	if (simple) {
		builder_char(b, values[simple - names]);
		return 1;
	}
	if (c == '\n')
		return 1;
	if (c >= '0' && c <= '7') {
		uint32_t code = 0;
		size_t n = 0;
		while (n < 3 && at + n < end && l->source->text[at + n] >= '0' &&
			l->source->text[at + n] <= '7')
			code = code * 8 + (uint32_t)(l->source->text[at + n++] - '0');
		builder_code_point(b, code, true);
		return n;
	}
	if (c == 'x' || c == 'u' || c == 'U')
		return 1 + read_unicode(l, b, at + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, end);
	if (c == 'N')
		FAIL(l, at - 1, "\\N{...} is not supported");
	builder_char(b, '\\');
	return 0;
}

static void read_string(struct lexer *l)
{
	const char *s = l->source->text;
	char quote = s[l->at];
	size_t start = l->at, end = start + 1;
	while (end < l->source->bytes && s[end] != quote)
		end += s[end] == '\\' ? 2 : 1;
	if (end >= l->source->bytes)
		FAIL(l, start, "this string does not end");
	struct builder b;
	builder_init(&b, l->arena, l->source->bytes);
	for (size_t at = start + 1; at < end;) {
		size_t plain = at;
		while (plain < end && s[plain] != '\\')
			plain++;
		builder_add(&b, s + at, plain - at, true);
		at = plain;
		if (at < end)
			at += 1 + read_escape(l, &b, at + 1, end);
	}
	add(l, TOKEN_STRING, start, end + 1 - start)->text = builder_finish(&b);
	l->at = end + 1;
}

/* Reads the tokens inside {{ }} or {% %}, up to its end. */
static void read_tag(struct lexer *l, size_t start, bool print)
{
	size_t end;
	l->n_closing = 0;
	for (;;) {
		l->at = skip_spaces(l, l->at);
		if (l->at >= l->source->bytes)
			FAIL(l, start, "this tag does not end");
		char c = l->source->text[l->at];
		if (!l->n_closing && print &&
			(looking_at(l, l->at, "-}}") || looking_at(l, l->at, "}}"))) {
			add(l, TOKEN_PRINT_END, l->at, 2);
			l->at = c == '-' ? skip_spaces(l, l->at + 3) : l->at + 2;
			return;
		}
		if (!l->n_closing && !print && (end = tag_end(l, l->at, "%}"))) {
			add(l, TOKEN_BLOCK_END, l->at, 2);
			l->at = end;
			return;
		}
		if (c == '"' || c == '\'') {
			read_string(l);
		} else if (is_digit(c)) {
			read_number(l);
		} else if (is_word((unsigned char)c)) {
			read_name(l);
		} else {
			read_operator(l);
		}
	}
}

void lexer_run(struct arena *arena, const struct source *source, struct tokens *tokens)
{
	struct lexer l = {.arena = arena, .source = source, .tokens = tokens};
	while (l.at < source->bytes) {
		size_t from = l.at, start = from;
		while (start < source->bytes &&
			!(source->text[start] == '{' && start + 1 < source->bytes &&
				source->text[start + 1] && strchr("{%#", source->text[start + 1])))
			start++;
		if (start >= source->bytes) {
			add_data(&l, from, start, '+', false);
			break;
		}
		char kind = source->text[start + 1];
		size_t raw = kind == '%' ? read_raw(&l, from, start) : 0;
		if (raw) {
			l.at = raw;
			continue;
		}
		char sign = sign_at(&l, start + 2);
		add_data(&l, from, start, sign, kind != '{');
		if (kind == '#') {
			l.at = skip_comment(&l, start);
			continue;
		}
		add(&l, kind == '{' ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN, start, 2);
		l.at = start + 2 + (sign != 0);
		read_tag(&l, start, kind == '{');
	}
	add(&l, TOKEN_END, source->bytes, 0);
}
