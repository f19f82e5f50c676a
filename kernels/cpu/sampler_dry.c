/* DRY: the longer the end of the text repeats what came before, the less likely is the token that would go on repeating. */
#include "kernels/cpu/sampler_changes.h"

#include <float.h>

/* The tokens that count, which lie in two pieces. */
struct tokens {
	const int32_t *history, *tail; /* [n - n_tail], [n_tail] */
	uint32_t n, n_tail;
};

static struct tokens last_tokens(const struct sampler_input *input, uint32_t window)
{
	if (window == 0)
		window = UINT32_MAX;
	uint32_t tail = input->n_tail < window ? input->n_tail : window;
	uint32_t history = input->n_history < window - tail ? input->n_history : window - tail;
	/* No pointer is made of none. */
	return (struct tokens){
		.history = history > 0 ? input->history + (input->n_history - history)
				       : input->history,
		.tail = tail > 0 ? input->tail + (input->n_tail - tail) : input->tail,
		.n = history + tail,
		.n_tail = tail,
	};
}

static int32_t token_at(const struct tokens *tokens, uint32_t i)
{
	uint32_t n_history = tokens->n - tokens->n_tail;
	return i < n_history ? tokens->history[i] : tokens->tail[i - n_history];
}

/* How many tokens up to the one at `end` are the last ones of all, at most `most`. */
static uint32_t repeats(const struct tokens *tokens, uint32_t end, uint32_t most)
{
	uint32_t n = 0;
	while (n < most && n <= end &&
		token_at(tokens, end - n) == token_at(tokens, tokens->n - 1 - n))
		n++;
	return n;
}

/* multiplier * base^n, in float32, one product after the other, as far as float32 goes. */
static float penalty(const struct sampler_params *params, uint32_t n)
{
	float x = params->dry_multiplier;
	for (uint32_t i = 0; i < n && x <= FLT_MAX / params->dry_base; i++)
		x *= params->dry_base;
	return x;
}

/* Marks what came behind each repetition, with the length of its longest in times[]. */
static void find_repetitions(struct sampler_marks *marks, const struct sampler_params *params,
	const struct tokens *tokens, uint32_t most)
{
	for (uint32_t end = 0; end + 1 < tokens->n; end++) {
		uint32_t n = repeats(tokens, end, most);
		uint32_t next = (uint32_t)token_at(tokens, end + 1);
		if (n < params->dry_allowed_length || next >= marks->n_vocab)
			continue;
		if (sampler_mark(marks, next) || marks->times[next] < n)
			marks->times[next] = n;
	}
}

void sampler_dry(const struct sampler_changing *to, const struct sampler_params *params,
	const struct sampler_input *input)
{
	const struct tokens tokens = last_tokens(input, params->dry_window);
	uint32_t most =
		input->dry_reach < SAMPLER_DRY_LONGEST ? input->dry_reach : SAMPLER_DRY_LONGEST;
	if (most < params->dry_allowed_length)
		return;
	sampler_forget_marks(to->marks);
	find_repetitions(to->marks, params, &tokens, most);
	for (uint32_t i = 1; i < tokens.n; i++) {
		uint32_t token = (uint32_t)token_at(&tokens, i);
		/* Once. */
		if (!sampler_unmark(to->marks, token))
			continue;
		uint32_t beyond = to->marks->times[token] - params->dry_allowed_length;
		to->change(to->arg, CHANGE_DRY, token, penalty(params, beyond));
	}
}
