/*
 * From template source to tokens, with jinja2's rules of white space: trim_blocks, lstrip_blocks,
 * "-" and "+". Also the position of an error in the source. Errors end the work (arena_fail).
 */
#pragma once

#include "shared/model/text/template/text.h"

#include <stdarg.h>

enum token_type {
	TOKEN_END,
	TOKEN_DATA, /* text outside of tags, which is printed as it is */
	TOKEN_BLOCK_BEGIN,
	TOKEN_BLOCK_END,
	TOKEN_PRINT_BEGIN,
	TOKEN_PRINT_END,
	TOKEN_NAME,
	TOKEN_STRING,
	TOKEN_INT,
	TOKEN_FLOAT,
	TOKEN_ADD,
	TOKEN_SUB,
	TOKEN_MUL,
	TOKEN_DIV,
	TOKEN_FLOORDIV,
	TOKEN_MOD,
	TOKEN_POW,
	TOKEN_TILDE,
	TOKEN_LEFT_BRACKET,
	TOKEN_RIGHT_BRACKET,
	TOKEN_LEFT_PAREN,
	TOKEN_RIGHT_PAREN,
	TOKEN_LEFT_BRACE,
	TOKEN_RIGHT_BRACE,
	TOKEN_EQ,
	TOKEN_NE,
	TOKEN_GT,
	TOKEN_GE,
	TOKEN_LT,
	TOKEN_LE,
	TOKEN_ASSIGN,
	TOKEN_DOT,
	TOKEN_COLON,
	TOKEN_PIPE,
	TOKEN_COMMA,
	TOKEN_SEMICOLON,
};

struct token {
	enum token_type type;
	uint32_t at; /* offset in the source */
	uint32_t bytes; /* in the source */
	struct string *text; /* for DATA, NAME (as written) and STRING (unescaped) */
	int64_t i; /* for INT; f: for FLOAT */
	double f;
};

struct source {
	const char *text; /* line ends are \n; the last one is removed */
	size_t bytes;
};

struct tokens {
	struct token *items; /* the last is TOKEN_END */
	size_t n, capacity;
};

/* Fills *tokens, in the arena. */
void lexer_run(struct arena *arena, const struct source *source, struct tokens *tokens);

/* Line and column (in characters) of an offset, from 1. */
void source_position(const struct source *source, size_t at, size_t *line, size_t *column);

/* Writes "template line L, column C: message" to arena->err; returns -code. */
int source_error(struct arena *arena, const struct source *source, size_t at, int code,
	const char *format, va_list args) __attribute__((format(printf, 5, 0)));
/* The same with -EINVAL, and ends the work. */
void source_fail(struct arena *arena, const struct source *source, size_t at, const char *format,
	...) __attribute__((noreturn, format(printf, 4, 5)));
