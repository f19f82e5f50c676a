/*
 * The format of a prefix file (proto/prefix-file.md): one page of the KV cache, with the tokens that
 * it holds and what it was computed with; or the states of recurrent layers after such a page, or its
 * window cells (kv_content.h), which is what "states" means here too. Reads
 * and writes memory only.
 */
#pragma once

#include "shared/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum {
	PREFIX_VERSION = 2,
	PREFIX_TOKENS = 32, /* of a page: KV_PAGE_CELLS */
	PREFIX_HEADER_BYTES = 512,
};

/* What keys and values were computed with, and their shape. Files of another one are of no use. */
struct prefix_shape {
	uint64_t model, stamps; /* fingerprint of the model, and of its files' state */
	uint64_t arithmetic;
	uint32_t kv_type, n_layers, n_kv_heads, k_dim, v_dim;
	uint32_t n_states; /* recurrent layers, or layers with windows of their own */
	uint64_t state_bytes; /* of a file with states of all of them */
};

enum prefix_kind { PREFIX_PAGE, PREFIX_STATE };

struct prefix_header {
	struct prefix_shape shape;
	uint64_t id; /* names the file; random, not 0 */
	uint64_t before; /* id of the page with the preceding tokens; 0: it has the first ones */
	uint64_t domain; /* only sessions of the same domain may use it */
	uint32_t
		kind; /* enum prefix_kind; of a state, `before` is the page that it is the state after */
	int32_t tokens[PREFIX_TOKENS]; /* prefix_state_tokens of a state */
	/* order[i]: which of the page's tokens cell i holds; a permutation */
	uint8_t order[PREFIX_TOKENS];
	uint64_t content_bytes, content_sum; /* of what follows the header; checksum(0, ...) */
};

/* Stand for the tokens of a state, which has none. */
extern const int32_t prefix_state_tokens[PREFIX_TOKENS];

void prefix_header_write(const struct prefix_header *header, unsigned char *out);
/* Reads the header at the beginning of a file of `bytes` bytes, of which there are
 * PREFIX_HEADER_BYTES, or fewer if the file is shorter. -EBADMSG: it is no prefix file, of another
 * version, or damaged; the message says how. */
int prefix_header_read(
	const unsigned char *in, uint64_t bytes, struct prefix_header *out, struct error *err);
/* -ESTALE, with the reason: it was computed with another model or otherwise. */
int prefix_shape_check(
	const struct prefix_shape *of, const struct prefix_shape *want, struct error *err);
/* -EBADMSG: what follows the header is not what was written. */
int prefix_content_check(
	const struct prefix_header *header, const void *content, struct error *err);
