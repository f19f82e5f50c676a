/* The changes of logits by biases and by penalties for tokens that have occurred. */
#include "kernels/cpu/sampler_changes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int sampler_marks_init(struct sampler_marks *marks, uint32_t n_vocab)
{
	*marks = (struct sampler_marks){
		.n_vocab = n_vocab,
		.seen = calloc(n_vocab, sizeof(*marks->seen)),
		.times = malloc(n_vocab * sizeof(*marks->times)),
	};
	if (marks->seen && marks->times)
		return 0;
	sampler_marks_exit(marks);
	return -ENOMEM;
}

void sampler_marks_exit(struct sampler_marks *marks)
{
	free(marks->seen);
	free(marks->times);
	memset(marks, 0, sizeof(*marks));
}

void sampler_forget_marks(struct sampler_marks *marks)
{
	if (++marks->epoch == 0) {
		memset(marks->seen, 0, marks->n_vocab * sizeof(*marks->seen));
		marks->epoch = 1;
	}
}

bool sampler_mark(struct sampler_marks *marks, uint32_t token)
{
	if (token >= marks->n_vocab || marks->seen[token] == marks->epoch)
		return false;
	marks->seen[token] = marks->epoch;
	return true;
}

bool sampler_unmark(struct sampler_marks *marks, uint32_t token)
{
	if (token >= marks->n_vocab || marks->seen[token] != marks->epoch)
		return false;
	marks->seen[token] = 0;
	return true;
}

static void bias(const struct sampler_changing *to, const struct sampler_params *params)
{
	for (uint32_t i = 0; i < params->n_biases; i++) {
		uint32_t token = (uint32_t)params->biases[i].token;
		/* A drafter may have fewer tokens than the target, for which the biases were
		 * checked. */
		if (token < to->marks->n_vocab)
			to->change(to->arg, CHANGE_BIAS, token, params->biases[i].bias);
	}
}

static void penalise_tokens(const struct sampler_changing *to, const struct sampler_params *params,
	const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (sampler_mark(to->marks, (uint32_t)tokens[i]))
			to->change(to->arg, CHANGE_REPEAT, (uint32_t)tokens[i],
				params->repeat_penalty);
}

static void penalise(const struct sampler_changing *to, const struct sampler_params *params,
	const struct sampler_input *input)
{
	uint32_t window = params->repeat_window ? params->repeat_window : UINT32_MAX;
	uint32_t tail = input->n_tail < window ? input->n_tail : window;
	uint32_t history = input->n_history < window - tail ? input->n_history : window - tail;
	sampler_forget_marks(to->marks);
	if (tail > 0)
		penalise_tokens(to, params, input->tail + (input->n_tail - tail), tail);
	if (history > 0)
		penalise_tokens(to, params, input->history + (input->n_history - history), history);
}

static void count_tokens(struct sampler_marks *marks, const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = (uint32_t)tokens[i];
		if (sampler_mark(marks, token))
			marks->times[token] = 0;
		if (token < marks->n_vocab)
			marks->times[token]++;
	}
}

static void penalise_counted(const struct sampler_changing *to, const struct sampler_params *params,
	const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = (uint32_t)tokens[i];
		if (!sampler_mark(to->marks, token))
			continue;
		float penalty = (float)to->marks->times[token] * params->frequency_penalty +
				params->presence_penalty;
		to->change(to->arg, CHANGE_LESS, token, penalty);
	}
}

/* OpenAI's penalties: only the output counts, not the prompt. */
static void penalise_output(const struct sampler_changing *to, const struct sampler_params *params,
	const struct sampler_input *input)
{
	uint32_t prompt = input->n_prompt < input->n_history ? input->n_prompt : input->n_history;
	const int32_t *output = input->n_history > prompt ? input->history + prompt : NULL;
	uint32_t n = input->n_history - prompt;
	sampler_forget_marks(to->marks);
	count_tokens(to->marks, output, n);
	count_tokens(to->marks, input->tail, input->n_tail);
	sampler_forget_marks(to->marks);
	penalise_counted(to, params, output, n);
	penalise_counted(to, params, input->tail, input->n_tail);
}

static bool penalises_output(const struct sampler_params *params)
{
	return params->presence_penalty != 0 || params->frequency_penalty != 0;
}

bool sampler_adjusts_nothing(const struct sampler_params *params, const struct sampler_input *input)
{
	return params->n_biases == 0 && params->repeat_penalty == 1 && !input->allowed &&
	       !penalises_output(params) && params->dry_multiplier == 0;
}

void sampler_changes(struct sampler_marks *marks, const struct sampler_params *params,
	const struct sampler_input *input,
	void (*change)(void *arg, enum sampler_change what, uint32_t token, float operand),
	void *arg)
{
	const struct sampler_changing to = {marks, change, arg};
	bias(&to, params);
	if (params->repeat_penalty != 1)
		penalise(&to, params, input);
	if (penalises_output(params))
		penalise_output(&to, params, input);
	if (params->dry_multiplier > 0)
		sampler_dry(&to, params, input);
}
