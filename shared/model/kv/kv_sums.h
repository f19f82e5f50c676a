/*
 * Checksums of committed cells, for a cache in memory that other processes could write to
 * (kv_check): a successor takes over only cells with the right checksum. A checksum covers a whole
 * turn (KV_TURN), whose keys and values lie together in each layer. It is made when the last cell
 * of a turn is committed, over the vectors, the owner and the positions. Reading that much costs
 * about a thousandth of a token. The tokens of an incomplete turn, up to 15, are computed again by
 * a successor.
 *
 * Not checked: vectors in a device's memory, which this process does not see (there only the owner and
 * the positions are); the vectors of layers with a window of their own (kv_window.h), whose cells come and
 * go one by one; the states of recurrent layers (recurrent.h), which are as large as everything
 * else that a token reads and change with each token; and, with such states, which cannot go back
 * by a few tokens, incomplete turns. Nor is anything checked while the process runs: it works on
 * its own tables, but uses keys and values as they are in memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct kv;

/* Called by kv.c; does nothing in a cache that is not checked. Call when these cells of one owner
 * were committed. */
void kv_sums_commit(struct kv *kv, uint64_t owner, const uint32_t *cells, uint32_t n);
/* True when the turn, whose cells have these positions, may be taken over. */
bool kv_sums_hold(const struct kv *kv, uint64_t owner, uint32_t turn, const int32_t *positions);
