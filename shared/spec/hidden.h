/*
 * Hidden states: region "hidden", owned by the verifier, read by the drafter. A draft head
 * (shared/model/arch/head.h) drafts from the target's hidden states at certain layers, the taps: the
 * residual stream before a layer, or behind the last one. The drafter tells the verifier which taps
 * it wants (PeerTaps); the region is made when it wants some, and filled as long as it does.
 *
 * The region is a log of rows. A row has a token's state at each tap; its number counts up from 0,
 * and it lies at this number modulo n_rows. Each pass of the verifier writes the rows of the tokens
 * that it computes. When it is known which drafted ones are accepted, each row gets a tag, which says
 * whose it is, or nobody's. Then the rows are published together.
 *
 * So a restarted drafter finds the states of the last n_rows tokens, of all sessions together. What
 * it no longer finds it does without: a head's attention then begins at a later position.
 *
 * Protocol (tests/spin/hidden.pml models it). Rows `begin` to `end - 1` are valid. The writer
 * raises `begin` before it overwrites what is below it, and stores `end` with release when rows and
 * tags are complete. A reader loads `end` with acquire, copies a row, and looks at `begin` again: if
 * it has passed the row, the copy is worth nothing. Nobody waits for anybody. A writer that dies in a pass leaves rows that are not
 * published, and its successor goes on at `end`.
 *
 * A reader trusts nothing: the numbers in the header are copied and checked once, `begin` and `end`
 * each time, and a row may hold any numbers. Drafts are verified, so they cost speed only.
 */
#pragma once

#include "shared/base/checksum.h"
#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>

#define HIDDEN_REGION "hidden"
#define HIDDEN_LAYOUT 2

enum { HIDDEN_ROWS_MAX = 1 << 24 };

/* What a region of hidden states holds. */
struct hidden_shape {
	uint64_t model; /* gguf_fingerprint of the target's file */
	uint32_t n_taps; /* 1..LIMIT_TAPS */
	uint32_t tap[LIMIT_TAPS]; /* layers; the number of layers: behind the last */
	uint32_t n_embd; /* values of one state */
	uint32_t n_rows;
};

/* Whose state a row is. session 0: nobody's, because the token was rejected. */
struct hidden_tag {
	uint64_t session; /* uid */
	uint32_t page; /* index of its page */
	uint32_t position; /* of the token */
	/* hidden_text of the tokens up to it. Another session that begins alike, and so finds their
	 * keys and values, finds their states by this: nobody computes them again. */
	uint64_t text;
};

/* The text of a token behind another one's. The first one is behind the session's prefix_domain. A
 * text that is another one's by chance costs speed only. */
static inline uint64_t hidden_text(uint64_t before, int32_t token)
{
	return checksum(before, &token, sizeof(token));
}

struct hidden_header {
	struct hidden_shape shape;
	alignas(CACHE_LINE) _Atomic uint64_t begin;
	alignas(CACHE_LINE) _Atomic uint64_t end;
	/* Then the tags [n_rows], and for each tap its states [n_rows][n_embd]. */
};

/* One end of the region. `shape` is a copy to which no other process writes. */
struct hidden {
	struct hidden_shape shape;
	struct hidden_header *header;
	struct hidden_tag *tags; /* [n_rows] */
	float *states; /* [n_taps][n_rows][n_embd] */
	uint64_t end; /* the writer's own copy */
	uint64_t begin;
};

/* Bytes of the payload. */
size_t hidden_bytes(const struct hidden_shape *shape);
/* Bytes of one row, with its tag. */
size_t hidden_row_bytes(const struct hidden_shape *shape);
/* Fills in the header of a new region, which is zero-filled. */
void hidden_format(void *payload, const struct hidden_shape *shape);
/* Checks the payload of `bytes`; -EBADMSG says what is impossible. */
int hidden_attach(struct hidden *hidden, void *payload, size_t bytes, struct error *err);
/* Whether both hold the same states, whatever the number of rows. */
bool hidden_same(const struct hidden_shape *a, const struct hidden_shape *b);

/* ---- The writer. ---- */

/* Call once after hidden_attach, also on a predecessor's region. */
void hidden_write_begin(struct hidden *hidden);
/* Makes room for the next n rows, n <= n_rows, which may be written from now on. Returns the number
 * of the first; they become valid with hidden_publish. */
uint64_t hidden_reserve(struct hidden *hidden, uint32_t n);
/* Where the state of a row at a tap lies, as an offset in the payload: [n_embd]. The rows that
 * follow it lie behind it, up to the end of the log. */
size_t hidden_state_offset(const struct hidden *hidden, uint64_t row, uint32_t tap);
/* Rows from this one to the end of the log, where the next one lies at its beginning. */
uint32_t hidden_to_end(const struct hidden *hidden, uint64_t row);
void hidden_set_tag(struct hidden *hidden, uint64_t row, struct hidden_tag tag);
/* Publishes the n rows that were reserved. */
void hidden_publish(struct hidden *hidden, uint32_t n);

/* ---- The reader. ---- */

/* The rows that are valid now: *begin to *end - 1. False: the numbers are impossible. */
bool hidden_range(const struct hidden *hidden, uint64_t *begin, uint64_t *end);
/* Copy the tag of a row, and its states at all taps, one after the other [n_taps * n_embd]. False:
 * it has been overwritten. */
bool hidden_read_tag(const struct hidden *hidden, uint64_t row, struct hidden_tag *out);
bool hidden_read(const struct hidden *hidden, uint64_t row, float *out);
