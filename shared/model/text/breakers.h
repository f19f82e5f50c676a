/*
 * The breakers of DRY: texts across which no repetition counts (kernels/sampler.h). Whether a token
 * contains one depends on its text. Everybody who calls the sampler gets sampler_input.dry_reach
 * from here. Pure; any thread.
 */
#pragma once

#include "kernels/sampler.h"
#include "shared/model/text/tokenizer.h"

/* True when the token's text (for a control token, its name) contains one of the breakers. False
 * without a tokenizer. */
bool breakers_in(
	const struct tokenizer *tokenizer, const struct sampler_params *params, int32_t token);
/* sampler_input.dry_reach behind tokens[0..n-1]: how many of the last tokens contain no breaker, at
 * most SAMPLER_DRY_LONGEST; 0 when DRY is off. */
uint32_t breakers_reach(const struct tokenizer *tokenizer, const struct sampler_params *params,
	const int32_t *tokens, uint32_t n);
/* The same behind one more token; reach: the value before it. */
uint32_t breakers_reach_behind(const struct tokenizer *tokenizer,
	const struct sampler_params *params, uint32_t reach, int32_t token);
