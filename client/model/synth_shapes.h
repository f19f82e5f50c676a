/* Shapes of published models: what their metadata and tensors follow from. */
#pragma once

#include "client/model/gguf_write.h"

/* 0: the model has no such thing. */
struct synth_shape {
	const char *name, *arch, *title, *pre;
	uint32_t layers, context, embd, heads, kv_heads, head_dim, ff, vocab;
	double rope_base, eps;
	uint32_t experts, used, expert_ff, shared_ff, dense_layers, n_rot;
	bool tied;
};

extern const struct synth_shape synth_shapes[]; /* ended by name == NULL */
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
	bool failed; /* no memory */
};

/* All tensors in the order of the file; vectors and routers of type F32, matrices of no type yet. */
void synth_shape_tensors(const struct synth_shape *s, struct synth_tensors *out);
/* The hyperparameters' keys. */
void synth_shape_keys(const struct synth_shape *s, struct gguf_write *w);
