/* Tokens that the back end may multiply in an arithmetic of its own. */
#include "shared/model/arch/head.h"
#include "shared/model/pass/forward_internal.h"

static void widen(const struct matrix *w, uint32_t *cols, uint32_t *rows)
{
	if (!w->data || !matrix_fast(w))
		return;
	*cols = w->cols > *cols ? w->cols : *cols;
	*rows = w->rows > *rows ? w->rows : *rows;
}

void fast_sizes(const struct model *model, uint32_t *cols, uint32_t *rows)
{
	*cols = *rows = 0;
	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		struct matrix *all[LAYER_MATRICES];

		model_layer_matrices(&model->layers[i], all);
		for (size_t j = 0; j < LAYER_MATRICES; j++)
			if (all[j] != &model->layers[i].router)
				widen(all[j], cols, rows);
	}
	if (model->head)
		widen(&model->head->project, cols, rows);
}

bool forward_can_be_fast(const struct model *model)
{
	uint32_t cols, rows;

	fast_sizes(model, &cols, &rows);
	return cols > 0;
}

/* Whether token i goes on with the run of the token before it. */
static bool goes_on(const struct batch_token *tokens, uint32_t i)
{
	const struct batch_token *before = &tokens[i - 1], *own = &tokens[i];

	return before->fast && before->seq == own->seq && own->position == before->position + 1 &&
	       own->position % FORWARD_FAST_CHUNK != 0;
}

int fast_prepare(struct forward *f)
{
	f->n_fast = 0;
	for (uint32_t i = 0; i < f->n; i++) {
		const struct batch_token *token = &f->tokens[i];

		if (!token->fast)
			continue;
		if (!f->limits.fast || token->draft || token->token < 0)
			return -EINVAL;
		if (i > 0 && goes_on(f->tokens, i))
			f->fast[f->n_fast - 1].n++;
		else
			f->fast[f->n_fast++] = (struct step_run){i, 1};
	}
	return 0;
}
