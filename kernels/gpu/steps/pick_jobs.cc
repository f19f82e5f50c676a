#include "kernels/gpu/steps/pick_jobs.h"

#include <string.h>

size_t pick_changes_max(uint32_t n_vocab)
{
	return LIMIT_LOGIT_BIASES + (size_t)(SAMPLER_CHANGES - 1) * n_vocab;
}

/* Writes the drafted tokens on the path of a row to path, the last one to path[PICK_PATH_MAX - 1].
 * Returns how many. */
static uint32_t path_of(const struct pick_row *rows, uint32_t row, int32_t path[PICK_PATH_MAX])
{
	uint32_t n = 0;
	for (; rows[row].parent >= 0; row = (uint32_t)rows[row].parent)
		path[PICK_PATH_MAX - ++n] = rows[row].token;
	return n;
}

struct changes {
	pick_change *at;
	uint32_t *n; /* [SAMPLER_CHANGES] */
};

static void add_change(void *arg, enum sampler_change what, uint32_t token, float operand)
{
	struct changes *to = (struct changes *)arg;
	*to->at++ = pick_change{token, operand};
	to->n[what]++;
}

/* What sampler_choose would do with these parameters. */
static uint32_t flags_of(const struct pick_row *row, uint32_t n_vocab)
{
	const struct sampler_params *params = row->params;
	bool greedy = params->temperature == 0;
	bool limited = params->top_k > 0 && params->top_k < n_vocab;
	bool filters = !greedy && (limited || params->top_p != 1 || params->min_p != 0);
	bool xtc = !greedy && params->xtc_probability > 0 &&
		   rand_uniform(params->seed, RAND_XTC, row->position, 0) <
			   (double)params->xtc_probability;
	bool total = row->want_p || row->n_best > 0;
	uint32_t flags = PICK_CHOOSES;
	flags |= greedy ? 0 : PICK_DRAWS;
	flags |= !greedy && params->top_n_sigma > 0 ? PICK_SIGMA : 0;
	flags |= filters ? PICK_FILTERS : 0;
	flags |= xtc ? PICK_XTC : 0;
	flags |= row->want_p ? PICK_P : 0;
	if (filters)
		flags |= params->top_p < 1 && !limited ? PICK_SUM_FIRST : 0;
	else if (xtc)
		flags |= PICK_SUM_FIRST | (total ? PICK_SUM_LAST : 0);
	else
		flags |= total ? PICK_SUM_FIRST : 0;
	return flags;
}

static void choice_of(const struct pick_row *rows, uint32_t at, uint32_t n_vocab,
	struct sampler_marks *marks, pick_change *changes, pick_job *job)
{
	const struct pick_row *row = &rows[at];
	const struct sampler_params *params = row->params;
	int32_t path[PICK_PATH_MAX];
	uint32_t n_path = path_of(rows, at, path);
	struct sampler_input input = {};
	input.history = row->history;
	input.n_history = row->n_history;
	input.n_prompt = row->n_prompt;
	input.dry_reach = row->dry_reach;
	input.tail = path + PICK_PATH_MAX - n_path;
	input.n_tail = n_path;
	input.allowed = row->allowed;
	job->flags = flags_of(row, n_vocab);
	job->divisor = params->temperature == 0 ? 1 : params->temperature;
	job->top_p = params->top_p;
	job->min_p = params->min_p;
	job->n_sigma = params->top_n_sigma;
	job->xtc_threshold = params->xtc_threshold;
	job->top_k = params->top_k;
	job->seed = params->seed;
	job->position = row->position;
	job->n_best = row->n_best;
	if (sampler_adjusts_nothing(params, &input))
		return;
	struct changes to = {changes, job->n_changes};
	job->flags |= PICK_ADJUSTS;
	job->changes = changes;
	sampler_changes(marks, params, &input, add_change, &to);
}

/* Whether the log probability that is wanted is that of `next`, not of the picked token. */
static bool scores_next(const struct pick_row *row)
{
	return !row->params || row->score_next;
}

void pick_jobs_of(const struct pick_row *rows, uint32_t at, uint32_t n_vocab,
	struct sampler_marks *marks, pick_change *changes, pick_row_jobs *jobs)
{
	const struct pick_row *row = &rows[at];
	*jobs = pick_row_jobs{};
	if (row->params)
		choice_of(rows, at, n_vocab, marks, changes, &jobs->choice);
	if (row->want_logprobs || !row->params) {
		jobs->score.divisor = 1;
		jobs->score.flags = row->want_logprobs ? PICK_SCORES | PICK_SUM_FIRST : PICK_LOOKS;
		jobs->score.n_top = row->want_logprobs ? row->n_top : 0;
		jobs->score.next = row->want_logprobs && scores_next(row) ? row->next : 0;
	}
	pick_job *first = row->params ? &jobs->choice : &jobs->score;
	first->flags |= row->want_hash ? PICK_HASHES : 0;
}

void pick_result_of(const struct pick_row *row, const pick_out *choice, const pick_out *score,
	struct pick_result *result)
{
	const pick_out *first = row->params ? choice : score;
	*result = pick_result{};
	result->finite = first->finite;
	if (row->want_hash)
		result->hash = first->hash;
	if (row->want_logprobs) {
		result->log_sum = score->log_sum;
		result->logprob = sampler_logprob_of(
			scores_next(row) ? score->logit : first->logit, score->log_sum);
		if (row->n_top)
			memcpy(row->top, score->top, row->n_top * sizeof(*row->top));
	}
	if (!row->params)
		return;
	result->token = choice->token;
	result->p = choice->p;
	result->none = choice->none;
	result->n_best = choice->n_best;
	if (choice->n_best)
		memcpy(row->best, choice->best, choice->n_best * sizeof(*row->best));
}
