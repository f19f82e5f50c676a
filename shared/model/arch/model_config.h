/*
 * Hyperparameters from metadata: model.c calls model_read_config before it looks at tensors. The
 * rest is for the files that read them: model_config.c, model_config_moe.c, model_config_rope.c,
 * and those of the other mixers.
 */
#pragma once

#include "shared/model/arch/model.h"

/* Fills in all of *config except n_vocab and the rope factors, which follow from tensors. Errors
 * name the key. */
int model_read_config(const struct gguf *gguf, struct model_config *config, struct error *err);
/* The same for an architecture that the caller knows. */
int model_read_config_as(const struct gguf *gguf, const struct arch *arch,
	struct model_config *config, struct error *err);

enum { LIMIT_FEED_FORWARD = 1 << 20, KEY_BYTES = 128 };

/* State for reading the keys of one architecture. The name of the last key stays in `key`, for
 * messages. */
struct keys {
	const struct gguf *gguf;
	const struct arch *arch;
	struct error *err;
	uint32_t n_blocks; /* known after block_count was read */
	char key[KEY_BYTES];
};

/* Sets k->key to ARCH.suffix and returns it. */
const char *key_name(struct keys *k, const char *suffix);
/* Returns -EINVAL with the message that k->key is missing. */
int missing_key(struct keys *k);
/* Read a count. get_count leaves *out unchanged when the key is absent; need_count refuses that. */
int get_count(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out);
int need_count(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out);
/* Reads an optional number in min..max; NaN is out of range. *out is unchanged when the key is
 * absent. */
int get_number(struct keys *k, const char *suffix, double min, double max, double *out);
/* Reads an optional count that some converters write once and others for each block: out[n_blocks].
 * All 0 when the key is absent. */
int get_layers(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out);
/* The same when all blocks must agree (1..max). *out is unchanged when the key is absent. */
int get_layered(struct keys *k, const char *suffix, uint64_t max, uint32_t *out);

/* For architectures with MIX_MLA (model_mla.c), instead of the keys of attention: reads n_heads,
 * head_dim (of a query head), n_rot and mla. finish_mla does what needs the keys of rope and
 * experts. */
int read_mla(struct keys *k, struct model_config *c);
void finish_mla(struct keys *k, struct model_config *c);
/* Reads the keys of rope; head_dim must be known. */
int read_rope(struct keys *k, struct model_config *c);
/* Reads the keys of the feed-forwards, dense and routed; n_layers must be known. */
int read_feed_forward(struct keys *k, struct model_config *c);
/* True when the keys say that a layer's feed-forward is routed to experts. */
bool model_config_moe(const struct model_config *c, uint32_t layer);
/* Reads the keys of delta nets (model_delta.c), and n_kv_layers; n_layers must be known. Does
 * nothing for architectures without them. */
int read_delta(struct keys *k, struct model_config *c);
