/* Shapes of published models, from which their metadata and tensors follow. */
#pragma once

#include "client/model/gguf_write.h"

/* A 0 means that the model has no such part. */
struct synth_shape {
	const char *name, *arch, *title, *pre;
	uint32_t layers, context, embd, heads, kv_heads, head_dim, ff, vocab;
	double rope_base, eps;
	uint32_t experts, used, expert_ff, shared_ff, dense_layers, n_rot;
	bool tied;
};

extern const struct synth_shape synth_shapes[]; /* the last one has name == NULL */
const struct synth_shape *synth_shape_find(const char *name);

enum synth_fill { FILL_MATRIX, FILL_EMBEDDING, FILL_NORM, FILL_BIAS, FILL_ROUTER, FILL_ROPE };

struct synth_tensor {
	char name[64];
	enum synth_fill fill;
	uint32_t n_dims, type;
	uint64_t ne[3];
	uint64_t rows, bytes;
};

struct synth_tensors {
	struct synth_tensor *list; /* owned */
	size_t n, capacity;
	bool failed; /* memory was exhausted */
};

/* All tensors in the order of the file. Vectors and routers have type F32; the type of matrices is
 * not set. */
void synth_shape_tensors(const struct synth_shape *s, struct synth_tensors *out);
/* Writes the keys of the hyperparameters. */
void synth_shape_keys(const struct synth_shape *s, struct gguf_write *w);
