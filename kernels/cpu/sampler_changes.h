/*
 * Which logits the parameters change, and how: biases, penalties, DRY. It depends on the tokens
 * before, not on the logits; a device applies what the host has found.
 */
#pragma once

#include "kernels/cpu/sampler_math.h"
#include "kernels/sampler.h"

enum sampler_change {
	CHANGE_BIAS, /* operand: what is added */
	CHANGE_REPEAT, /* operand: the repetition penalty */
	CHANGE_LESS, /* operand: what is subtracted, by the penalties for tokens of the output */
	CHANGE_DRY, /* operand: what DRY subtracts */
	SAMPLER_CHANGES
};

/* The changed logit. */
EXACT float sampler_changed(enum sampler_change what, float x, float operand)
{
	switch (what) {
	case CHANGE_BIAS:
		return sampler_sane(x + operand);
	case CHANGE_REPEAT:
		return sampler_sane(x > 0 ? x / operand : x * operand);
	default:
		return sampler_sane(x - operand);
	}
}

/* True when neither parameters nor `allowed` change a logit. */
bool sampler_adjusts_nothing(
	const struct sampler_params *params, const struct sampler_input *input);

/* Calls `change` for all changes, in the order in which they are to be made. They come kind by kind;
 * within a kind a token comes once, except for biases. All tokens are of the vocabulary. */
void sampler_changes(struct sampler_marks *marks, const struct sampler_params *params,
	const struct sampler_input *input,
	void (*change)(void *arg, enum sampler_change what, uint32_t token, float operand),
	void *arg);

/* For the files of the sampler: */

struct sampler_changing {
	struct sampler_marks *marks;
	void (*change)(void *arg, enum sampler_change what, uint32_t token, float operand);
	void *arg;
};

/* Removes the marks of all tokens. */
void sampler_forget_marks(struct sampler_marks *marks);
/* Marks a token. True if it is in the vocabulary and was not marked. */
bool sampler_mark(struct sampler_marks *marks, uint32_t token);
/* Removes the mark of a token. True if it had one. Call sampler_forget_marks first. */
bool sampler_unmark(struct sampler_marks *marks, uint32_t token);
/* DRY: lowers the logits of tokens that would continue a repetition. */
void sampler_dry(const struct sampler_changing *to, const struct sampler_params *params,
	const struct sampler_input *input);
