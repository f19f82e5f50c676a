#include "shared/model/text/breakers.h"

#include <string.h>

bool breakers_in(
	const struct tokenizer *tokenizer, const struct sampler_params *params, int32_t token)
{
	if (!tokenizer)
		return false;
	struct gguf_string piece = tokenizer_piece(tokenizer, token, true);
	for (const char *text = params->dry_breakers; *text; text += strlen(text) + 1)
		if (piece.bytes > 0 && memmem(piece.data, piece.bytes, text, strlen(text)))
			return true;
	return false;
}

uint32_t breakers_reach(const struct tokenizer *tokenizer, const struct sampler_params *params,
	const int32_t *tokens, uint32_t n)
{
	uint32_t reach = 0;
	if (params->dry_multiplier == 0)
		return 0;
	while (reach < n && reach < SAMPLER_DRY_LONGEST &&
		!breakers_in(tokenizer, params, tokens[n - 1 - reach]))
		reach++;
	return reach;
}

uint32_t breakers_reach_behind(const struct tokenizer *tokenizer,
	const struct sampler_params *params, uint32_t reach, int32_t token)
{
	if (params->dry_multiplier == 0 || breakers_in(tokenizer, params, token))
		return 0;
	return reach < SAMPLER_DRY_LONGEST ? reach + 1 : reach;
}
