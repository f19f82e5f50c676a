/*
 * Checksums of resident experts, in the region: the owner's successor takes over the slots whose bytes are what was loaded.
 * Reading an expert for it takes a few percent of what loading it took, and it is done when the worker would else wait, a
 * piece at a time, after the expert is in use: a slot that has no sum yet when its owner dies is loaded again. What somebody
 * writes into a slot before it has one, or while it is in use, is not found.
 */
#pragma once

#include "services/expert-cache/store/store.h"

int sums_init(struct store *store, struct error *err);
void sums_exit(struct store *store);
/* The slot's bytes are about to change; and it is READY with what is noted of it. */
void sums_forget(struct store *store, uint32_t slot);
void sums_due(struct store *store, uint32_t slot);
/* One piece of what is due; false when nothing is. */
bool sums_work(struct store *store);

/* Of a predecessor's READY slots, by several threads: wrong[slot] where the bytes are not what was loaded, or nobody had made
 * their sum. */
void sums_check(const struct store *store, bool *wrong);
