/*
 * Checksums of committed cells, for a cache whose memory other processes could write to (kv_check): a successor takes over what
 * has the right one. They are of whole turns (KV_TURN), whose keys and values lie together in each layer: made when the last
 * cell of a turn is committed, over the vectors, the owner and the positions. Reading that much costs about a thousandth
 * of a token. What a successor finds in a turn that is not full is computed again, up to 15 tokens.
 *
 * Not checked: the vectors of layers with a window of their own (kv_window.h), whose cells come and go one by one; the states
 * of recurrent layers (recurrent.h), which are as large as all else that a token reads and change with each; and, where there
 * are such states, which cannot go back by a few tokens, turns that are not full. And nothing while the process runs: it goes
 * by tables of its own, but keys and values are used as they lie there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct kv;

/* kv.c's own calls; nothing is done in a cache that is not checked. These cells of one owner were committed. */
void kv_sums_commit(struct kv *kv, uint64_t owner, const uint32_t *cells, uint32_t n);
/* Whether the turn, whose cells have these positions, may be taken over. */
bool kv_sums_hold(const struct kv *kv, uint64_t owner, uint32_t turn, const int32_t *positions);
