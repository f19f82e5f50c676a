/*
 * Packed models: a copy of a model's file in which the gate, up and down matrices of one expert lie
 * together, in the layout that is fastest for products (kernels/tiles.h), and begin on a page. One
 * expert is then one read, and needs no work afterwards. `outrider-model pack` writes such a file.
 *
 * It is a GGUF file like any other, except for these keys and tensors, which make programs that do
 * not know it refuse it by name:
 *   general.architecture           "outrider-packed"; all other keys are the original's;
 *                                  general.alignment is 4096
 *   outrider.pack.version          u32, 1
 *   outrider.pack.architecture     string, the original's general.architecture
 *   outrider.pack.fingerprint      u64, the original's (gguf_fingerprint): sessions continue with
 *                                  either file
 *   outrider.pack.types            u32[3 n_layers], types of the gate, up and down matrices of each
 *                                  layer's experts
 *   tensors blk.I.ffn_exps.packed  I8 {stride, n_experts}, instead of the weights of the layer's
 *                                  experts, in whatever form these were (model_forms.c)
 * Each expert takes stride bytes: gate, up and down, each at a multiple of 64, then zeros to the
 * end of the page. A matrix that has no tiles (tiles_possible) is unchanged.
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
	PACK_PAGE = 4096, /* alignment of each expert */
	PACK_ALIGNMENT = 64, /* alignment of each matrix in an expert */
};

bool pack_is(const struct gguf *gguf);
/* The architecture of the model: general.architecture, or the original one that a packed file
 * names. Results as of gguf_get_string. */
int pack_architecture(const struct gguf *gguf, struct gguf_string *out, struct error *err);
/* Checks that a packed file of n_layers layers has all its keys, and a known version. 0, -EINVAL or
 * -ENOTSUP. */
int pack_check(const struct gguf *gguf, uint32_t n_layers, struct error *err);
uint64_t pack_fingerprint(const struct gguf *gguf); /* the file must be packed and checked */
/* GGUF type id of a part of a layer's experts; the file must be packed and checked. */
uint32_t pack_type(const struct gguf *gguf, uint32_t layer, int part);

/* Looks for weights that are not finite in one part of a layer's experts of a packed model.
 * gguf_scan_tensor cannot do so, because the packed tensor hides the weights. *scan's row is
 * counted from the first row of *expert. Returns false like gguf_scan_tensor; -ENOMEM in *rc. */
struct model;
struct gguf_scan;
bool pack_scan(const struct model *model, uint32_t layer, int part, bool first_only,
	struct gguf_scan *scan, uint32_t *expert, int *rc);
/* The name of a part: gate, up or down. */
const char *pack_part_name(int part);

struct pack_layout {
	uint64_t at[PACK_PARTS], bytes[PACK_PARTS]; /* offsets and sizes within an expert */
	uint64_t stride;
};
/* parts: gate, up and down of one expert; only rows and row_bytes are used. */
struct pack_layout pack_layout_of(const struct matrix parts[static PACK_PARTS]);
