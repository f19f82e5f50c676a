/*
 * A routing trace: which experts the passes of a run used, what was hinted before, and how long
 * everything took except waiting for experts. `outrider-bench cache record` and `synth` write it;
 * `replay` reads it. A file may come from anybody: every count and index is checked.
 *
 * File, version 1, integers little-endian: "ORTRACE\0", u32 version, layers, experts, experts used
 * per token, drafted tokens at most; u64 bytes of one expert; the name (u32 length, bytes); a byte
 * per layer (1: it has experts); then the passes as variable-length integers of 7 bits a byte, the
 * lowest first:
 *   1, session, tokens, drafted, emitted, prefill, drafting ns, n hints, hints..., n layers,
 *   layers...; a 0 after the last pass
 *   layer: number, ns before routing, ns after, n uses, (expert - the one before, tokens)...,
 *   n hints, hints...
 *   hint: source, layer, expert, score (4 bytes, float32), ns since the drafting (or routing) began
 * and the FNV-1a hash of all that, 8 bytes.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { TRACE_NAME = 128 };

struct trace_use {
	uint16_t expert, tokens; /* tokens: how many of the pass chose the expert */
};

struct trace_hint {
	uint16_t layer, expert;
	uint32_t source; /* enum hint_source */
	float score;
	/* since the drafting began, or since the routing of the layer that makes the hint */
	uint32_t at_ns;
};

struct trace_layer {
	uint32_t layer;
	/* time for computing before and after the experts are known */
	uint32_t before_ns, after_ns;
	uint32_t first_use, n_uses, first_hint, n_hints;
};

struct trace_pass {
	uint64_t session;
	/* tokens of the batch; drafts among them; tokens that it yielded */
	uint32_t tokens, drafted, emitted;
	bool prefill;
	uint64_t draft_ns; /* time of the drafting before it */
	uint32_t first_hint, n_hints; /* those made by the drafting */
	uint32_t first_layer, n_layers; /* in ascending order */
};

struct cache_trace {
	uint32_t n_layers, n_experts, n_experts_used, k;
	uint64_t expert_bytes;
	char name[TRACE_NAME];
	bool moe[LIMIT_LAYERS];
	struct trace_pass *passes;
	struct trace_layer *layers;
	struct trace_use *uses; /* of each layer by rising expert */
	struct trace_hint *hints;
	uint32_t n_passes, n_layer_runs, n_uses, n_hints;
	uint32_t passes_max, layer_runs_max, uses_max, hints_max; /* allocated */
};

void cache_trace_init(struct cache_trace *trace);
void cache_trace_exit(struct cache_trace *trace);
/* The caller frees the copy. -ENOMEM. */
int cache_trace_copy(const struct cache_trace *from, struct cache_trace *out, struct error *err);

/* For writing, in this order: a pass, the hints of its drafting, then layers, each with its uses
 * and its hints. -ENOMEM. */
int cache_trace_add_pass(struct cache_trace *trace, const struct trace_pass *pass);
int cache_trace_add_layer(struct cache_trace *trace, const struct trace_layer *layer);
int cache_trace_add_use(struct cache_trace *trace, struct trace_use use);
/* Adds to the last layer, or to the pass as long as it has none. */
int cache_trace_add_hint(struct cache_trace *trace, const struct trace_hint *hint);

/* cache_trace_file.c. Accepts any bytes: -EBADMSG says what is wrong, and at which byte. */
int cache_trace_parse(
	const unsigned char *data, size_t bytes, struct cache_trace *out, struct error *err);
int cache_trace_read(const char *path, struct cache_trace *out, struct error *err);
int cache_trace_write(const struct cache_trace *trace, const char *path, struct error *err);
