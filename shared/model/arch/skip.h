/*
 * Layer skip: a model without some of its layers drafts for the whole one (self-speculation; Draft &
 * Verify, Zhang et al., arXiv 2309.08168; LayerSkip, Elhoushi et al., arXiv 2404.16710). The residual
 * stream passes a skipped layer unchanged, attention and feed-forward alike.
 *
 * Such a model borrows the weights of the whole one and has a configuration of its own, so that a KV
 * cache and a forward pass for it are those of any smaller model.
 */
#pragma once

#include "shared/model/arch/model.h"

/* Which layers are left out: a setting, before it is known how many there are. */
struct skip {
	bool automatic; /* n layers, evenly between the first and the last, which stay; n 0: half of all */
	uint32_t n;
	bool layer[LIMIT_LAYERS]; /* otherwise these */
};

/* Reads `auto`, `auto:N`, or layers and ranges of layers, such as 4-8,11. -EINVAL says what is wrong. */
int skip_parse(const char *text, struct skip *out, struct error *err);
/* Which layers of the model that is. layer: [n_layers] is filled in. -ENOTSUP names what the model
 * lacks: a layer of that number, or enough layers; at least one stays, and at least one that has keys
 * and values. */
int skip_choose(
	const struct skip *skip, const struct model_config *config, bool *layer, struct error *err);

/* Makes a model of the layers that stay. It borrows everything else, file included, from `whole`,
 * which must outlive it and must not change any more. kept: [LIMIT_LAYERS] receives the number in
 * `whole` of each of its layers. -ENOMEM. */
int model_skip(const struct model *whole, const bool *layer, struct model **out, uint16_t *kept,
	struct error *err);
void model_skip_free(struct model **model);
