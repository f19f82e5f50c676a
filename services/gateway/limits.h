/*
 * What one API key may ask for. Requests and tokens are measured with a bucket each: it holds the limit of one minute, is full at the
 * beginning, and is filled evenly. So a minute's worth may come at once after a pause. Tokens are taken out when they are known, the
 * answer's as they come and the prompt's at the end: an answer may overdraw, and then the next request waits. Plain data.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { LIMITS_MAX = 1000000000 };

/* 0: no limit. */
struct limits {
	uint32_t requests_per_minute, concurrent, tokens_per_minute;
};

enum limits_which { LIMITS_NONE, LIMITS_REQUESTS, LIMITS_CONCURRENT, LIMITS_TOKENS, LIMITS_KINDS };
/* As they are written in the file; NULL for NONE. */
extern const char *const limits_names[LIMITS_KINDS];

/* What there is left; all zero at the beginning. */
struct allowance {
	uint64_t at_ns; /* when the buckets were looked at; 0: never, they are full */
	double requests, tokens;
	uint32_t open; /* requests under way */
};

/* Whether a request may begin now (CLOCK_MONOTONIC); it is then counted, until limits_end. Else which limit it would break, and in
 * how many seconds it may be sent again. */
enum limits_which limits_begin(
	const struct limits *limits, struct allowance *left, uint64_t now_ns, double *retry_s);
void limits_end(struct allowance *left);
void limits_take_tokens(struct allowance *left, uint64_t tokens);
