/* The breakers of DRY: texts that no repetition goes across. Which tokens have one is a matter of their text. Pure. */
#pragma once

#include "kernels/sampler.h"
#include "shared/model/text/tokenizer.h"

/* Whether a token's text, that of a control token its name, has one of the breakers. False without a tokenizer. */
bool breakers_in(
	const struct tokenizer *tokenizer, const struct sampler_params *params, int32_t token);
/* Of sampler_input: how many of the last tokens have none, up to SAMPLER_DRY_LONGEST; 0 without DRY. */
uint32_t breakers_reach(const struct tokenizer *tokenizer, const struct sampler_params *params,
	const int32_t *tokens, uint32_t n);
/* Likewise behind one more token, from what it was before. */
uint32_t breakers_reach_behind(const struct tokenizer *tokenizer,
	const struct sampler_params *params, uint32_t reach, int32_t token);
