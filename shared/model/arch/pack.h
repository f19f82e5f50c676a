/*
 * Packed models: a copy of a model's file in which the gate, up and down matrices of one expert lie together, in the
 * layout that the kernels like best (kernels/tiles.h), from a page on: one expert is one read, and nothing is to be done
 * with it after. `outrider-model pack` writes such a file.
 *
 * It is a GGUF file like any other but for this, which makes programs that do not know it refuse it by name:
 *   general.architecture           "outrider-packed"; every other key is the original's, general.alignment is 4096
 *   outrider.pack.version          u32, 1
 *   outrider.pack.architecture     string, the original's general.architecture
 *   outrider.pack.fingerprint      u64, the original's (gguf_fingerprint): sessions go on over either file
 *   outrider.pack.types            u32[3 n_layers], types of the gate, up and down matrices of each layer's experts
 *   tensors blk.I.ffn_exps.packed  I8 {stride, n_experts} instead of the weights of the layer's experts, whatever their
 *                                  form (model_forms.c)
 * Each expert takes stride bytes: gate, up and down, each from a multiple of 64, then zeros to a whole page. A matrix
 * that has no tiles (tiles_possible) is as it was.
 */
#pragma once

#include "kernels/tensor.h"
#include "shared/model/gguf/gguf.h"

#define PACK_ARCHITECTURE "outrider-packed"
#define PACK_VERSION 1
#define PACK_KEY_VERSION "outrider.pack.version"
#define PACK_KEY_ARCHITECTURE "outrider.pack.architecture"
#define PACK_KEY_FINGERPRINT "outrider.pack.fingerprint"
#define PACK_KEY_TYPES "outrider.pack.types"
#define PACK_TENSOR "blk.%u.ffn_exps.packed"
#define PACK_TENSOR_TYPE 24 /* I8 */

enum { PACK_GATE, PACK_UP, PACK_DOWN, PACK_PARTS };
enum {
	PACK_PAGE = 4096, /* where each expert begins */
	PACK_ALIGNMENT = 64, /* of each matrix in it */
};

bool pack_is(const struct gguf *gguf);
/* The architecture of the model: general.architecture, or what a packed file says it was. As gguf_get_string. */
int pack_architecture(const struct gguf *gguf, struct gguf_string *out, struct error *err);
/* 0 or -EINVAL, -ENOTSUP: a packed file of n_layers layers has all its keys, of a version that is known. */
int pack_check(const struct gguf *gguf, uint32_t n_layers, struct error *err);
uint64_t pack_fingerprint(const struct gguf *gguf); /* of a checked packed file */
/* GGUF type id of a part of a layer's experts, of a checked packed file. */
uint32_t pack_type(const struct gguf *gguf, uint32_t layer, int part);

/* Looks for weights that are not finite in one part of a layer's experts of a packed model, as gguf_scan_tensor does, to
 * which the packed tensor says nothing: *scan's row counts from that expert's first. False as there; -ENOMEM in *rc. */
struct model;
struct gguf_scan;
bool pack_scan(const struct model *model, uint32_t layer, int part, bool first_only,
	struct gguf_scan *scan, uint32_t *expert, int *rc);
/* The name of what pack_scan looked at: gate, up or down. */
const char *pack_part_name(int part);

struct pack_layout {
	uint64_t at[PACK_PARTS], bytes[PACK_PARTS]; /* in an expert */
	uint64_t stride;
};
/* parts: one expert's gate, up and down (rows and row_bytes count). */
struct pack_layout pack_layout_of(const struct matrix parts[static PACK_PARTS]);
