/*
 * Checksums of snapshots (snapshots.h), made by a thread of its own: to sum a state takes as long as
 * to copy it, and the engine's thread has better things to do. A snapshot is pinned until its sum is
 * there, so that its content stays as it is.
 */
#pragma once

#include "shared/base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct snapshot_sums;

/* The checksum of a state; never 0, which stands for one that is not made yet. */
uint64_t snapshot_sum(const void *content, size_t bytes);

/* n: the number of snapshots; each is in the thread's hands once at most. bytes: of each. -errno with
 * the reason. */
int snapshot_sums_start(uint32_t n, size_t bytes, struct snapshot_sums **out, struct error *err);
/* Makes the sums that were asked for first. NULL does nothing. */
void snapshot_sums_stop(struct snapshot_sums **sums);
/* Has the content summed. The sum is stored to *sum with release, after which snapshot_sums_done
 * returns the snapshot once. */
void snapshot_sums_ask(
	struct snapshot_sums *sums, uint32_t snapshot, const void *content, _Atomic uint64_t *sum);
bool snapshot_sums_done(struct snapshot_sums *sums, uint32_t *snapshot);
