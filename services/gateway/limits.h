/*
 * The limits of one API key. Requests and tokens have a bucket each. It holds the limit of one
 * minute, is full at the beginning, and is filled at a constant rate, so a minute's worth may be
 * used at once after a pause. Tokens are taken out when they are known, the answer's as they come
 * and the prompt's at the end. So an answer may overdraw the bucket, and then the next request is
 * refused until it is filled. Plain data.
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
/* The names in the file; NULL for NONE. */
extern const char *const limits_names[LIMITS_KINDS];

/* What is left of the limits; all zeros at the beginning. */
struct allowance {
	uint64_t at_ns; /* when the buckets were last filled; 0: never, they are full */
	double requests, tokens;
	uint32_t open; /* requests in progress */
};

/* Decides whether a request may begin at now_ns (CLOCK_MONOTONIC). If so, it counts until
 * limits_end. Otherwise returns the limit that it would exceed, and in *retry_s after how many
 * seconds it may be sent again. */
enum limits_which limits_begin(
	const struct limits *limits, struct allowance *left, uint64_t now_ns, double *retry_s);
void limits_end(struct allowance *left);
void limits_take_tokens(struct allowance *left, uint64_t tokens);
