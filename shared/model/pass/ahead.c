/*
 * What the pool's threads fetch while they wait: the weights of the step behind the one that runs, where they are known.
 * Which experts come is known after the routing only, and then they are next.
 *
 * Measured on two threads of an Intel Xeon (Emerald Rapids), passes with and without in turn, medians of
 * neighbours' ratios: decoding qwen3-0.6b and 12 layers of qwen3-30b-a3b in Q4_0, olmoe-1b-7b in Q4_K_M takes 1.2, 0.7 and
 * 0.6 % less.
 */
#include "shared/model/pass/forward_internal.h"

enum { FIRST_MOST = 6 };

/* Those of the matrices that there are, as products of the batch. */
static void of_matrices(struct forward *f, const struct matrix *const *w, uint32_t n)
{
	struct product products[FIRST_MOST];
	uint32_t found = 0;
	for (uint32_t i = 0; i < n; i++)
		if (w[i]->data)
			products[found++] = (struct product){.w = *w[i], .n = f->n};
	work_ahead(f, products, found);
}

void ahead_matrix(struct forward *f, const struct matrix *w)
{
	of_matrices(f, &w, 1);
}

void ahead_nothing(struct forward *f)
{
	work_ahead(f, NULL, 0);
}

void ahead_ffn(struct forward *f)
{
	const struct layer *layer = &f->model->layers[f->layer];
	const struct matrix *const moe[] = {&layer->router, &layer->shared_weight};
	const struct matrix *const dense[] = {&layer->ffn_gate};
	of_matrices(f, layer->moe ? moe : dense, layer->moe ? 2 : 1);
}

void ahead_mixer(struct forward *f, uint32_t index)
{
	if (index == f->model->config.n_layers) {
		ahead_matrix(f, &f->model->output);
		return;
	}
	const struct layer *l = &f->model->layers[index];
	const struct delta_weights *d = &l->delta;
	const struct matrix *const first[][FIRST_MOST] = {
		[MIX_ATTENTION] = {&l->q, &l->k, &l->v},
		[MIX_MLA] = {&l->mla.kv_a, l->mla.q_a.data ? &l->mla.q_a : &l->q},
		[MIX_DELTA_NET] = {&d->qkv, &d->z, &d->mixed, &d->ba, &d->alpha, &d->beta},
	};
	uint32_t n = 0;
	while (n < FIRST_MOST && first[l->mixer][n])
		n++;
	of_matrices(f, first[l->mixer], n);
}
