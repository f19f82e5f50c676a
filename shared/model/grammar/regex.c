#include "shared/model/grammar/regex.h"

#include "shared/model/grammar/grammar.h"
#include "shared/model/grammar/regex_class.h"

#include <stdlib.h>
#include <string.h>

struct parser {
	struct rules *builder;
	const char *source;
	size_t bytes, at;
	enum charset_coding coding;
	uint32_t nesting;
};

/* A part of an expression in four versions: whether it begins where the text begins ([1][]), and
 * whether it ends where the text ends ([][1]). */
struct part {
	uint32_t of[2][2];
};

static const struct part part_empty = {{{EXPR_EMPTY, EXPR_NEVER}, {EXPR_NEVER, EXPR_NEVER}}};

static bool ended(const struct parser *p)
{
	return p->at >= p->bytes || p->builder->rc != 0;
}

static char peek(const struct parser *p)
{
	return ended(p) ? 0 : p->source[p->at];
}

static bool take(struct parser *p, const char *text)
{
	size_t n = strlen(text);

	if (p->bytes - p->at < n || memcmp(p->source + p->at, text, n) != 0)
		return false;
	p->at += n;
	return true;
}

static void fail(struct parser *p, size_t at, const char *what)
{
	rules_fail(p->builder, EINVAL, "byte %zu: %s", at + 1, what);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static uint32_t hex(struct parser *p, uint32_t n)
{
	uint32_t code = 0;

	for (uint32_t i = 0; i < n; i++) {
		int digit = hex_digit(peek(p));

		if (digit < 0) {
			fail(p, p->at, "a hexadecimal digit is missing");
			return 0;
		}
		code = code * 16 + (uint32_t)digit;
		p->at++;
	}
	return code;
}

/* Reads what follows \u. Two escapes of surrogates are one character. */
static uint32_t unicode(struct parser *p)
{
	size_t begin = p->at;
	uint32_t code = 0;

	if (take(p, "{")) {
		while (!ended(p) && peek(p) != '}' && code <= CHARSET_LAST)
			code = code * 16 + hex(p, 1);
		if (!take(p, "}") || code > CHARSET_LAST)
			fail(p, begin, "\\u{...} is not a character");
		return code;
	}
	code = hex(p, 4);
	if (code < 0xD800 || code > 0xDFFF)
		return code;
	uint32_t low = code < 0xDC00 && take(p, "\\u") ? hex(p, 4) : 0;
	if (low < 0xDC00 || low > 0xDFFF)
		fail(p, begin, "half of a surrogate pair");
	return 0x10000 + ((code - 0xD800) << 10) + (low & 0x3FF);
}

static void category(struct parser *p, struct charset *set, size_t begin, bool negated)
{
	struct charset found = {0};
	const char *from = p->source + p->at + 1, *to = NULL;

	if (peek(p) == '{')
		to = memchr(from, '}', p->bytes - p->at - 1);
	if (to == NULL) {
		fail(p, begin, "\\p without {NAME}");
		return;
	}
	p->at += (size_t)(to - from) + 2;
	const char *equals = memchr(from, '=', (size_t)(to - from));
	if (equals != NULL &&
		((size_t)(equals - from) == 2 ? memcmp(from, "gc", 2) == 0
					      : (size_t)(equals - from) == 16 &&
							memcmp(from, "General_Category", 16) == 0))
		from = equals + 1;
	if (!regex_class_category(p->builder, &found, from, (size_t)(to - from)))
		fail(p, begin,
			"no such general category of Unicode; scripts and other properties are not "
			"supported");
	if (negated)
		charset_negate(p->builder, &found);
	for (uint32_t i = 0; i < found.n; i++)
		charset_add(p->builder, set, found.ranges[i].lo, found.ranges[i].hi);
	free(found.ranges);
}

/* Reads what follows a backslash. True: *code is one character; otherwise a class was added to the
 * set. */
static bool escape(struct parser *p, struct charset *set, uint32_t *code)
{
	static const char names[] = "n\nt\tr\rf\fv\v";
	size_t begin = p->at - 1, n;
	struct charset letters = {0};
	char c = peek(p);

	if (ended(p)) {
		fail(p, begin, "nothing behind a backslash");
		return true;
	}
	p->at++;
	for (size_t i = 0; i + 1 < sizeof(names); i += 2)
		if (names[i] == c) {
			*code = (uint8_t)names[i + 1];
			return true;
		}
	if (regex_class_letter(p->builder, &letters, (char)(c | 0x20))) {
		if ((c & 0x20) == 0)
			charset_negate(p->builder, &letters);
		for (uint32_t i = 0; i < letters.n; i++)
			charset_add(p->builder, set, letters.ranges[i].lo, letters.ranges[i].hi);
		free(letters.ranges);
		return false;
	}
	switch (c) {
	case 'x':
		*code = hex(p, 2);
		return true;
	case 'u':
		*code = unicode(p);
		return true;
	case 'p':
	case 'P':
		category(p, set, begin, c == 'P');
		return false;
	case 'c':
		*code = (uint8_t)peek(p) & 31;
		if (((peek(p) | 0x20) < 'a' || (peek(p) | 0x20) > 'z'))
			fail(p, begin, "\\c without a letter");
		p->at++;
		return true;
	case '0':
		*code = 0;
		if (peek(p) >= '0' && peek(p) <= '9')
			fail(p, begin, "octal escapes are not supported");
		return true;
	default:
		break;
	}
	if ((c >= '1' && c <= '9') || c == 'k')
		fail(p, begin, "back references are not supported: no automaton can match them");
	else if (c == 'b' || c == 'B')
		fail(p, begin, "word boundaries (\\b, \\B) are not supported");
	else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
		fail(p, begin, "an escape that is not supported");
	*code = charset_decode(p->source + p->at - 1, p->bytes - p->at + 1, &n);
	if (n == 0)
		fail(p, begin, "not UTF-8");
	p->at += n > 0 ? n - 1 : 0;
	return true;
}

static uint32_t character(struct parser *p)
{
	size_t n;
	uint32_t code = charset_decode(p->source + p->at, p->bytes - p->at, &n);

	if (n == 0)
		fail(p, p->at, "not UTF-8");
	p->at += n;
	return code;
}

/* Reads one member of [..]: a character (true), or a class, which is added. */
static bool member(struct parser *p, struct charset *set, uint32_t *code)
{
	if (!take(p, "\\")) {
		*code = character(p);
		return true;
	}
	if (take(p, "b")) {
		*code = '\b';
		return true;
	}
	return escape(p, set, code);
}

static uint32_t bracket(struct parser *p)
{
	struct charset set = {0};
	size_t begin = p->at - 1, from;
	bool negated = take(p, "^");
	uint32_t lo = 0, hi = 0;

	while (!ended(p) && peek(p) != ']') {
		from = p->at;
		if (!member(p, &set, &lo))
			continue;
		hi = lo;
		if (peek(p) == '-' && p->at + 1 < p->bytes && p->source[p->at + 1] != ']') {
			p->at++;
			if (!member(p, &set, &hi))
				fail(p, from, "a range that ends with a class");
			else if (hi < lo)
				fail(p, from, "a range that ends before it begins");
		}
		charset_add(p->builder, &set, lo, hi);
	}
	if (!take(p, "]"))
		fail(p, begin, "[ without ]");
	if (negated)
		charset_negate(p->builder, &set);
	return charset_expr(p->builder, &set, p->coding);
}

static struct part alternatives(struct parser *p);

static struct part group(struct parser *p)
{
	size_t begin = p->at - 1;
	struct part part = part_empty;

	if (take(p, "?")) {
		bool lookbehind = take(p, "<=") || take(p, "<!");

		if (lookbehind || take(p, "=") || take(p, "!"))
			fail(p, begin, "look-around is not supported");
		else if (take(p, "<")) {
			const char *end = memchr(p->source + p->at, '>', p->bytes - p->at);

			if (end == NULL)
				fail(p, begin, "(?< without >");
			else
				p->at = (size_t)(end - p->source) + 1;
		} else if (!take(p, ":"))
			fail(p, begin, "(? with something that is not supported");
	}
	if (++p->nesting > GRAMMAR_NESTING_MAX)
		fail(p, begin, "brackets are nested too deep");
	if (p->builder->rc == 0)
		part = alternatives(p);
	p->nesting--;
	if (!take(p, ")"))
		fail(p, begin, "( without )");
	return part;
}

static struct part plain(uint32_t expr)
{
	struct part part = {{{expr, EXPR_NEVER}, {EXPR_NEVER, EXPR_NEVER}}};

	return part;
}

static struct part atom(struct parser *p)
{
	struct charset set = {0};
	size_t begin = p->at;
	uint32_t code = 0;

	if (take(p, "^"))
		return (struct part){{{EXPR_NEVER, EXPR_NEVER}, {EXPR_EMPTY, EXPR_NEVER}}};
	if (take(p, "$"))
		return (struct part){{{EXPR_NEVER, EXPR_EMPTY}, {EXPR_NEVER, EXPR_NEVER}}};
	if (take(p, "("))
		return group(p);
	if (take(p, "["))
		return plain(bracket(p));
	if (take(p, ".")) {
		regex_class_dot(p->builder, &set);
		return plain(charset_expr(p->builder, &set, p->coding));
	}
	if (strchr("*+?{", peek(p)) != NULL && peek(p) != 0) {
		fail(p, begin, "nothing to repeat");
		return part_empty;
	}
	if (take(p, "\\")) {
		if (escape(p, &set, &code))
			charset_add(p->builder, &set, code, code);
	} else {
		code = character(p);
		charset_add(p->builder, &set, code, code);
	}
	return plain(charset_expr(p->builder, &set, p->coding));
}

static bool number(struct parser *p, uint32_t *out)
{
	size_t begin = p->at;
	uint64_t n = 0;

	for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
		n = n > GRAMMAR_REPEAT_MAX ? n : n * 10 + (uint64_t)(peek(p) - '0');
	*out = (uint32_t)n;
	return p->at > begin;
}

/* Reads a quantifier into *min and *max; false: there is none. */
static bool quantifier(struct parser *p, uint32_t *min, uint32_t *max)
{
	size_t begin = p->at;

	*min = take(p, "+") ? 1 : 0;
	*max = EXPR_MANY;
	if (*min == 1 || take(p, "*"))
		return true;
	if (take(p, "?")) {
		*max = 1;
		return true;
	}
	if (!take(p, "{"))
		return false;
	if (!number(p, min)) {
		fail(p, begin, "{ without a number");
		return true;
	}
	*max = *min;
	if (take(p, ",") && !number(p, max))
		*max = EXPR_MANY;
	if (!take(p, "}"))
		fail(p, begin, "{ without }");
	else if (*max < *min)
		fail(p, begin, "a repetition whose minimum is above its maximum");
	return true;
}

static bool is_anchored(struct part part)
{
	return part.of[0][1] != EXPR_NEVER || part.of[1][0] != EXPR_NEVER ||
	       part.of[1][1] != EXPR_NEVER;
}

static struct part branch(struct parser *p)
{
	struct part all = part_empty;

	while (!ended(p) && peek(p) != '|' && peek(p) != ')') {
		size_t begin = p->at;
		struct part one = atom(p), next;
		uint32_t min, max;
		bool first = all.of[0][0] == EXPR_EMPTY && !is_anchored(all);

		if (quantifier(p, &min, &max)) {
			take(p, "?");
			if (is_anchored(one))
				fail(p, begin, "^ or $ within a repetition");
			one = plain(expr_repeat(p->builder, one.of[0][0], min, max));
		}
		if (first) {
			all = one;
			continue;
		}
		if (one.of[1][0] != EXPR_NEVER || one.of[1][1] != EXPR_NEVER)
			fail(p, begin, "^ behind something");
		if (all.of[0][1] != EXPR_NEVER || all.of[1][1] != EXPR_NEVER)
			fail(p, begin, "something behind $");
		for (int i = 0; i < 2; i++)
			for (int j = 0; j < 2; j++)
				next.of[i][j] =
					all.of[i][0] == EXPR_NEVER || one.of[0][j] == EXPR_NEVER
						? EXPR_NEVER
						: expr_seq2(p->builder, all.of[i][0], one.of[0][j]);
		all = next;
	}
	return all;
}

static struct part alternatives(struct parser *p)
{
	struct expr_list lists[2][2] = {0};
	struct part part;

	do {
		part = branch(p);
		for (int i = 0; i < 2; i++)
			for (int j = 0; j < 2; j++)
				if (part.of[i][j] != EXPR_NEVER)
					expr_list_add(p->builder, &lists[i][j], part.of[i][j]);
	} while (take(p, "|"));
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++)
			part.of[i][j] = expr_list_alt(p->builder, &lists[i][j]);
	return part;
}

uint32_t regex_expr(struct rules *builder, const char *source, size_t bytes,
	enum regex_search search, enum charset_coding coding)
{
	struct parser p = {.builder = builder, .source = source, .bytes = bytes, .coding = coding};
	struct charset any = {0};
	struct part part = alternatives(&p);
	uint32_t rest = EXPR_EMPTY, out = EXPR_NEVER;

	if (p.at < bytes)
		fail(&p, p.at, ") without (");
	if (search == REGEX_PART) {
		charset_add(builder, &any, 0, CHARSET_LAST);
		rest = expr_repeat(builder, charset_expr(builder, &any, coding), 0, EXPR_MANY);
	}
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++) {
			uint32_t expr = part.of[i][j];

			if (expr == EXPR_NEVER)
				continue;
			expr = expr_seq2(builder, i == 0 ? rest : EXPR_EMPTY, expr);
			expr = expr_seq2(builder, expr, j == 0 ? rest : EXPR_EMPTY);
			out = expr_alt2(builder, out, expr);
		}
	return out;
}
