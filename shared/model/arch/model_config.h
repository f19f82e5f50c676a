/*
 * Hyperparameters from metadata: model.c calls model_read_config before it looks at a tensor. The rest is for the parts
 * of reading: model_config.c, model_config_moe.c, model_config_rope.c, and those of the other mixers.
 */
#pragma once

#include "shared/model/arch/model.h"

/* Fills everything of *config but n_vocab and the rope factors, which tensors decide. Errors name the key. */
int model_read_config(const struct gguf *gguf, struct model_config *config, struct error *err);

enum { LIMIT_FEED_FORWARD = 1 << 20, KEY_BYTES = 128 };

/* Reading keys of one architecture: the name of the last key asked for stays in key, for messages. */
struct keys {
	const struct gguf *gguf;
	const struct arch *arch;
	struct error *err;
	uint32_t n_blocks; /* known once block_count was read */
	char key[KEY_BYTES];
};

/* Sets k->key to ARCH.suffix and returns it. */
const char *key_name(struct keys *k, const char *suffix);
/* -EINVAL: k->key is missing. */
int missing_key(struct keys *k);
/* An optional count; *out keeps its value when the key is absent. need_count refuses its absence. */
int get_count(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out);
int need_count(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out);
/* An optional number in min..max; NaN is in no range. *out keeps its value when the key is absent. */
int get_number(struct keys *k, const char *suffix, double min, double max, double *out);
/* An optional count that some converters write once and others once per block: out[n_blocks]. All 0
 * when the key is absent. */
int get_layers(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out);
/* The same where blocks may not differ (1..max); *out keeps its value when the key is absent. */
int get_layered(struct keys *k, const char *suffix, uint64_t max, uint32_t *out);

/* Instead of attention's keys, for architectures with MIX_MLA (model_mla.c): n_heads, head_dim (a query head's), n_rot
 * and mla. finish_mla does what needs the keys of rope and experts. */
int read_mla(struct keys *k, struct model_config *c);
void finish_mla(struct keys *k, struct model_config *c);
/* Rope keys; head_dim is known. */
int read_rope(struct keys *k, struct model_config *c);
/* Feed-forward, dense and routed; n_layers is known. */
int read_feed_forward(struct keys *k, struct model_config *c);
/* Whether the keys say that a layer's feed-forward is routed to experts. */
bool model_config_moe(const struct model_config *c, uint32_t layer);
/* Delta nets (model_delta.c), with n_kv_layers; n_layers is known. Nothing for architectures without. */
int read_delta(struct keys *k, struct model_config *c);
