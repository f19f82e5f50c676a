/* Hints that a draft model makes while it drafts: the inputs of its feed-forward layers go through the
 * target's routers (hints_draft.c), on the CPU. */
#include "services/drafter/model_pass.h"

#include <assert.h>

/* Only tokens that are to be verified count. At most DRAFT_MODEL_LOGITS. */
static uint32_t choose(const struct draft_model *m, uint32_t n_tokens, uint16_t *chosen)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < n_tokens && i < m->n_in_batch && n < DRAFT_MODEL_LOGITS; i++)
		if (m->batch[i].position + 1 >= m->owner[i]->n)
			chosen[n++] = (uint16_t)i;
	return n;
}

bool model_hints_fetch(
	struct draft_model *m, const struct rows *hidden, const uint16_t *chosen, uint32_t n)
{
	struct queue *q = forward_queue(m->forward);
	size_t bytes = m->model->config.n_embd * sizeof(float);
	for (uint32_t i = 0; i < n; i++)
		q->ops->copy(q, (struct place){&m->seen, i * bytes},
			(struct place){hidden->buffer, hidden->offset + chosen[i] * hidden->stride},
			bytes);
	return q->ops->wait(q, q->ops->ticket(q)) == 0;
}

static void on_layer(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct draft_model *m = arg;
	uint16_t chosen[DRAFT_MODEL_LOGITS];
	uint32_t n = choose(m, n_tokens, chosen);
	bool away = m->backend != m->host;
	static_assert(LIMIT_BATCH <= UINT16_MAX, "an index of a row fits");
	(void)experts;
	(void)weights;
	if (n == 0 || (away && !model_hints_fetch(m, hidden, chosen, n)))
		return;
	for (uint32_t i = 0; i < n; i++) {
		struct rows row = *hidden;
		row.n = 1;
		row.offset += chosen[i] * row.stride;
		if (away) {
			row.buffer = &m->seen_host;
			row.stride = m->model->config.n_embd * sizeof(float);
			row.offset = i * row.stride;
		}
		hints_token(m->hints, layer, &row, m->owner[chosen[i]]->uid);
	}
	hints_flush(m->hints);
}

void model_hints_prepare(struct draft_model *m)
{
	const struct forward_hooks hooks = {.layer = on_layer, .arg = m};
	forward_set_hooks(m->forward, model_hints(m) ? &hooks : NULL);
}
