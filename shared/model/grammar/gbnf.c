/*
 * GBNF, llama.cpp's notation for grammars (its grammars/README.md): NAME ::= ALTERNATIVES, with
 * "literals", [classes], ., NAMES, ( ), | and * + ? {n} {n,} {n,m}; # begins a comment. A rule
 * continues over line ends within brackets and after ::= and |. A text begins with the rule `root`.
 */
#include "shared/model/grammar/charset.h"
#include "shared/model/grammar/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parser {
	struct rules *builder;
	const char *source;
	size_t bytes, at;
	uint32_t nesting;
	/* Hash table of names: index of a rule, plus one. */
	uint32_t *names, n_slots;
	size_t *used_at; /* [rules] where each rule was first named */
	uint32_t used_capacity;
};

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

	if (p->builder->rc != 0 || p->bytes - p->at < n || memcmp(p->source + p->at, text, n) != 0)
		return false;
	p->at += n;
	return true;
}

static void fail(struct parser *p, size_t at, const char *what)
{
	uint32_t line = 1, column = 1;

	for (size_t i = 0; i < at && i < p->bytes; i++) {
		column = p->source[i] == '\n' ? 1 : column + 1;
		line += p->source[i] == '\n';
	}
	rules_fail(p->builder, EINVAL, "line %u, column %u: %s", line, column, what);
}

/* Skips spaces and comments; also line ends, if `lines`. */
static void space(struct parser *p, bool lines)
{
	while (!ended(p)) {
		char c = peek(p);

		if (c == '#') {
			while (!ended(p) && peek(p) != '\n' && peek(p) != '\r')
				p->at++;
		} else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
			p->at++;
		} else {
			return;
		}
	}
}

static bool is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '_';
}

static bool grow_names(struct parser *p)
{
	uint32_t slots = p->n_slots == 0 ? 64 : p->n_slots * 2;
	uint32_t *names = calloc(slots, sizeof(*names));

	if (names == NULL) {
		rules_fail(p->builder, ENOMEM, "no memory for the grammar");
		return false;
	}
	for (uint32_t i = 0; i < p->n_slots; i++) {
		const char *name;
		uint32_t hash = 0;

		if (p->names[i] == 0)
			continue;
		for (name = p->builder->rules[p->names[i] - 1].name; *name != 0; name++)
			hash = (hash ^ (uint8_t)*name) * 0x01000193u;
		hash &= slots - 1;
		while (names[hash] != 0)
			hash = (hash + 1) & (slots - 1);
		names[hash] = p->names[i];
	}
	free(p->names);
	p->names = names;
	p->n_slots = slots;
	return true;
}

/* Reads a name; returns its rule. */
static uint32_t rule_named(struct parser *p)
{
	size_t begin = p->at, n;
	uint32_t hash = 0, rule = 0;

	for (; is_name(peek(p)); p->at++)
		hash = (hash ^ (uint8_t)peek(p)) * 0x01000193u;
	n = p->at - begin;
	if (p->builder->n_rules * 2 >= p->n_slots && !grow_names(p))
		return 0;
	hash &= p->n_slots - 1;
	for (; p->names[hash] != 0; hash = (hash + 1) & (p->n_slots - 1)) {
		const char *name = p->builder->rules[p->names[hash] - 1].name;

		if (strlen(name) == n && memcmp(name, p->source + begin, n) == 0)
			return p->names[hash] - 1;
	}
	/* Rule 0 exists before it is named. */
	if (n != 4 || memcmp(p->source + begin, "root", 4) != 0)
		rule = rules_add(p->builder, p->source + begin, n);
	if (!rules_grow(p->builder, &p->used_at, &p->used_capacity, rule, sizeof(*p->used_at)))
		return 0;
	p->used_at[rule] = begin;
	p->names[hash] = rule + 1;
	return rule;
}

static uint32_t hex(struct parser *p, uint32_t n)
{
	uint32_t code = 0;

	for (uint32_t i = 0; i < n; i++, p->at++) {
		char c = peek(p);

		if (c >= '0' && c <= '9')
			code = code * 16 + (uint32_t)(c - '0');
		else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
			code = code * 16 + (uint32_t)((c | 0x20) - 'a' + 10);
		else
			fail(p, p->at, "a hexadecimal digit is missing");
	}
	return code;
}

/* Reads a character of a literal or a class. */
static uint32_t character(struct parser *p)
{
	static const char names[] = "n\nt\tr\r\\\\\"\"[[]]";
	size_t begin = p->at, n;
	uint32_t code;

	if (!take(p, "\\")) {
		code = charset_decode(p->source + p->at, p->bytes - p->at, &n);
		if (n == 0)
			fail(p, p->at, "not UTF-8");
		p->at += n;
		return code;
	}
	char c = peek(p);
	p->at++;
	for (size_t i = 0; i + 1 < sizeof(names); i += 2)
		if (c == names[i] && c != 0)
			return (uint8_t)names[i + 1];
	code = c == 'x' ? hex(p, 2) : c == 'u' ? hex(p, 4) : c == 'U' ? hex(p, 8) : UINT32_MAX;
	if (code == UINT32_MAX)
		fail(p, begin, "an escape that GBNF does not have");
	else if (code > CHARSET_LAST || (code >= 0xD800 && code <= 0xDFFF))
		fail(p, begin, "an escape that stands for no character");
	return code;
}

static uint32_t literal(struct parser *p)
{
	struct expr_list list = {0};
	size_t begin = p->at - 1;
	uint8_t bytes[4];

	while (!ended(p) && peek(p) != '"') {
		uint32_t n = charset_encode(character(p) & 0x1FFFFF, bytes);

		expr_list_add(p->builder, &list, expr_bytes(p->builder, bytes, n));
	}
	if (!take(p, "\""))
		fail(p, begin, "a literal without its closing \"");
	return expr_list_seq(p->builder, &list);
}

static uint32_t class(struct parser *p)
{
	struct charset set = {0};
	size_t begin = p->at - 1, from;
	bool negated = take(p, "^");

	while (!ended(p) && peek(p) != ']') {
		from = p->at;
		uint32_t lo = character(p), hi = lo;

		if (peek(p) == '-' && p->at + 1 < p->bytes && p->source[p->at + 1] != ']') {
			p->at++;
			hi = character(p);
		}
		if (hi < lo)
			fail(p, from, "a range that ends before it begins");
		charset_add(p->builder, &set, lo, hi);
	}
	if (!take(p, "]"))
		fail(p, begin, "[ without ]");
	if (negated)
		charset_negate(p->builder, &set);
	return charset_expr(p->builder, &set, CHARSET_UTF8);
}

static uint32_t alternatives(struct parser *p, bool nested);

static uint32_t primary(struct parser *p)
{
	struct charset any = {0};
	size_t begin = p->at;

	if (take(p, "\""))
		return literal(p);
	if (take(p, "["))
		return class(p);
	if (take(p, ".")) {
		charset_add(p->builder, &any, 0, CHARSET_LAST);
		return charset_expr(p->builder, &any, CHARSET_UTF8);
	}
	if (is_name(peek(p)))
		return expr_rule(p->builder, rule_named(p));
	if (!take(p, "(")) {
		fail(p, begin,
			peek(p) == '<' || peek(p) == '!'
				? "tokens (<...>) are not supported: write the text"
				: "a literal, a class, a name or ( is missing");
		return EXPR_NEVER;
	}
	if (++p->nesting > GRAMMAR_NESTING_MAX)
		fail(p, begin, "brackets are nested too deep");
	space(p, true);
	uint32_t expr = p->builder->rc == 0 ? alternatives(p, true) : EXPR_NEVER;
	p->nesting--;
	if (!take(p, ")"))
		fail(p, begin, "( without )");
	return expr;
}

static uint32_t number(struct parser *p)
{
	size_t begin = p->at;
	uint64_t n = 0;

	for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
		n = n > GRAMMAR_REPEAT_MAX ? n : n * 10 + (uint64_t)(peek(p) - '0');
	if (p->at == begin)
		fail(p, begin, "a number is missing");
	return (uint32_t)n;
}

static uint32_t repeated(struct parser *p, uint32_t expr)
{
	for (;;) {
		size_t begin = p->at;
		uint32_t min = 0, max = EXPR_MANY;

		if (take(p, "+")) {
			min = 1;
		} else if (take(p, "?")) {
			max = 1;
		} else if (take(p, "{")) {
			space(p, false);
			min = peek(p) == ',' ? 0 : number(p);
			space(p, false);
			max = min;
			if (take(p, ",")) {
				space(p, false);
				max = peek(p) == '}' ? EXPR_MANY : number(p);
				space(p, false);
			}
			if (!take(p, "}"))
				fail(p, begin, "{ without }");
			else if (max < min)
				fail(p, begin, "a repetition whose minimum is above its maximum");
		} else if (!take(p, "*")) {
			return expr;
		}
		expr = expr_repeat(p->builder, expr, min, max);
	}
}

static uint32_t alternatives(struct parser *p, bool nested)
{
	struct expr_list all = {0}, one = {0};

	do {
		space(p, true);
		/* An alternative may be empty: it ends before |, ), or the end of the line. */
		while (!ended(p) && strchr("|)\n\r", peek(p)) == NULL) {
			uint32_t expr = primary(p);

			space(p, nested);
			expr_list_add(p->builder, &one, repeated(p, expr));
			space(p, nested);
		}
		expr_list_add(p->builder, &all, expr_list_seq(p->builder, &one));
	} while (take(p, "|"));
	return expr_list_alt(p->builder, &all);
}

static void rule(struct parser *p)
{
	size_t begin = p->at;

	if (!is_name(peek(p))) {
		fail(p, begin, "the name of a rule is missing");
		return;
	}
	uint32_t number_of = rule_named(p);
	space(p, false);
	if (!take(p, "::=")) {
		fail(p, p->at, "::= is missing behind the name of a rule");
		return;
	}
	if (p->builder->rc == 0 && p->builder->rules[number_of].defined)
		fail(p, begin, "a rule of this name exists already");
	rules_define(p->builder, number_of, alternatives(p, false));
	if (!ended(p) && peek(p) != '\n' && peek(p) != '\r')
		fail(p, p->at, "this text belongs to no rule");
}

void grammar_read_gbnf(struct rules *builder, const char *source, size_t bytes)
{
	struct parser p = {.builder = builder, .source = source, .bytes = bytes};

	space(&p, true);
	while (!ended(&p)) {
		rule(&p);
		space(&p, true);
	}
	if (builder->rc == 0 && !builder->rules[0].defined)
		rules_fail(builder, EINVAL, "line 1, column 1: there is no rule \"root\"");
	for (uint32_t i = 0; p.used_at != NULL && i < builder->n_rules && builder->rc == 0; i++)
		if (!builder->rules[i].defined) {
			char what[128];

			snprintf(what, sizeof(what), "there is no rule \"%.64s\"",
				builder->rules[i].name);
			fail(&p, p.used_at[i], what);
		}
	free(p.names);
	free(p.used_at);
}
