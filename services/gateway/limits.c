#include "services/gateway/limits.h"

#include <stddef.h>

#define MINUTE_S 60.0

const char *const limits_names[LIMITS_KINDS] = {
	[LIMITS_REQUESTS] = "requests_per_minute",
	[LIMITS_CONCURRENT] = "concurrent",
	[LIMITS_TOKENS] = "tokens_per_minute",
};

static double fill(double left, uint32_t limit, double seconds)
{
	double more = left + limit * seconds / MINUTE_S;

	return more < limit ? more : limit;
}

static void look(const struct limits *limits, struct allowance *left, uint64_t now_ns)
{
	double seconds = (double)(now_ns - left->at_ns) / 1e9;

	if (left->at_ns == 0) {
		left->requests = limits->requests_per_minute;
		left->tokens = limits->tokens_per_minute;
	} else {
		left->requests = fill(left->requests, limits->requests_per_minute, seconds);
		left->tokens = fill(left->tokens, limits->tokens_per_minute, seconds);
	}
	left->at_ns = now_ns;
}

/* Seconds until the bucket holds at least one. */
static double until_one(double left, uint32_t limit)
{
	return (1 - left) * MINUTE_S / limit;
}

enum limits_which limits_begin(
	const struct limits *limits, struct allowance *left, uint64_t now_ns, double *retry_s)
{
	look(limits, left, now_ns);
	if (limits->concurrent && left->open >= limits->concurrent) {
		*retry_s = 1;
		return LIMITS_CONCURRENT;
	}
	if (limits->requests_per_minute && left->requests < 1) {
		*retry_s = until_one(left->requests, limits->requests_per_minute);
		return LIMITS_REQUESTS;
	}
	if (limits->tokens_per_minute && left->tokens < 1) {
		*retry_s = until_one(left->tokens, limits->tokens_per_minute);
		return LIMITS_TOKENS;
	}
	left->requests -= 1;
	left->open++;
	return LIMITS_NONE;
}

void limits_end(struct allowance *left)
{
	left->open--;
}

void limits_take_tokens(struct allowance *left, uint64_t tokens)
{
	left->tokens -= (double)tokens;
}
