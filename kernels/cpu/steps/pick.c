#include "kernels/cpu/pick.h"
#include "kernels/cpu/steps/steps.h"
#include "kernels/logits_hash.h"

#include <stdlib.h>

/* With fewer bytes of logits than this the calling thread does all, because to give work to others
 * costs about as much. */
#define BYTES_FOR_POOL (32u << 10)

struct pick {
	struct pool *pool;
	uint32_t n_vocab, n_threads;
	/* The running step. */
	const struct pick_row *rows; /* [first + n] */
	const float *const *logits; /* [n] */
	struct pick_result *results; /* [first + n] */
	uint32_t first;
	struct sampler samplers[]; /* [n_threads] */
};

int pick_create(const struct kernels *kernels, struct pool *pool, uint32_t n_vocab,
	struct pick **out, struct error *err)
{
	uint32_t n_threads = pool_threads(pool);
	struct pick *pick = calloc(1, sizeof(*pick) + n_threads * sizeof(pick->samplers[0]));
	int rc = pick ? 0 : -ENOMEM;
	*out = pick;
	if (pick) {
		pick->pool = pool;
		pick->n_vocab = n_vocab;
		pick->n_threads = n_threads;
	}
	for (uint32_t i = 0; rc == 0 && i < n_threads; i++) {
		rc = sampler_init(&pick->samplers[i], n_vocab);
		pick->samplers[i].kernels = kernels;
	}
	if (rc == 0)
		return 0;
	pick_destroy(out);
	return error_set(err, -rc, "no memory for sampling from %u tokens on %u threads", n_vocab,
		n_threads);
}

void pick_destroy(struct pick **pick)
{
	for (uint32_t i = 0; *pick && i < (*pick)->n_threads; i++)
		sampler_exit(&(*pick)->samplers[i]);
	free(*pick);
	*pick = NULL;
}

size_t pick_bytes(uint32_t n_threads, uint32_t n_vocab)
{
	return sizeof(struct pick) + n_threads * (sizeof(struct sampler) + sampler_bytes(n_vocab));
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

static void score(struct sampler *sampler, const struct pick_row *row, const float *logits,
	struct pick_result *result)
{
	result->log_sum = sampler_score(sampler, logits, row->top, row->n_top);
	if (!row->params || row->score_next)
		result->logprob = sampler_logprob(logits[row->next], result->log_sum);
}

static void pick_item(void *arg, uint32_t item, uint32_t thread)
{
	struct pick *pick = arg;
	const struct pick_row *row = &pick->rows[pick->first + item];
	struct pick_result *result = &pick->results[pick->first + item];
	const float *logits = pick->logits[item];
	struct sampler *sampler = &pick->samplers[thread];
	int32_t path[PICK_PATH_MAX];
	*result = (struct pick_result){0};
	if (row->want_hash)
		result->hash = logits_hash(logits, pick->n_vocab);
	if (row->want_logprobs)
		score(sampler, row, logits, result);
	if (!row->params) {
		result->finite = sampler_finite(logits, pick->n_vocab);
		return;
	}
	uint32_t n_path = path_of(pick->rows, pick->first + item, path);
	const struct sampler_input input = {
		.logits = logits,
		.history = row->history,
		.n_history = row->n_history,
		.n_prompt = row->n_prompt,
		.dry_reach = row->dry_reach,
		.tail = path + PICK_PATH_MAX - n_path,
		.n_tail = n_path,
		.allowed = row->allowed,
	};
	struct sampler_choice choice = sampler_choose(
		sampler, row->params, &input, row->position, row->want_p, row->best, row->n_best);
	result->token = choice.token;
	result->p = choice.p;
	result->none = choice.none;
	result->finite = choice.finite;
	result->n_best = choice.n_best;
	if (row->want_logprobs && !row->score_next)
		result->logprob = sampler_logprob(logits[choice.token], result->log_sum);
}

void pick_run(struct pick *pick, const struct pick_row *rows, uint32_t first, uint32_t n,
	const float *const *logits, struct pick_result *results)
{
	pick->rows = rows;
	pick->first = first;
	pick->logits = logits;
	pick->results = results;
	if (n > 1 && (uint64_t)n * pick->n_vocab * sizeof(float) >= BYTES_FOR_POOL)
		pool_run(pick->pool, pick_item, pick, n);
	else
		for (uint32_t i = 0; i < n; i++)
			pick_item(pick, i, 0);
}

void cpu_pick(struct queue *queue, const struct step_pick *step)
{
	struct cpu_queue *q = cpu_queue(queue);
	const float **logits = (const float **)q->y_rows;
	assert(q->pick && step->n <= q->limits.pairs);
	for (uint32_t i = 0; i < step->n; i++)
		logits[i] = floats_at(&step->logits, step->which[i]);
	pick_run(q->pick, step->rows, step->first, step->n, logits, step->results);
}
