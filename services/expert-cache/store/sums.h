/*
 * Checksums of resident experts, in the region. With them the owner's successor takes over only
 * slots whose bytes are what was loaded. Reading an expert for its checksum takes a few percent of
 * loading it. It is done a piece at a time, when the worker would otherwise wait, and after the
 * expert is in use. A slot without a checksum when its owner dies is loaded again. Bytes that
 * somebody writes into a slot before it has a checksum, or while it is in use, are not noticed.
 */
#pragma once

#include "services/expert-cache/store/store.h"

int sums_init(struct store *store, struct error *err);
void sums_exit(struct store *store);
/* sums_forget: call before the slot's bytes change. sums_due: call when the slot is READY and has
 * the noted expert. */
void sums_forget(struct store *store, uint32_t slot);
void sums_due(struct store *store, uint32_t slot);
/* Computes one piece; false when nothing is due. */
bool sums_work(struct store *store);

/* Checks a predecessor's READY slots, with several threads. Sets wrong[slot] where the bytes are
 * not what was loaded, or where there is no checksum. */
void sums_check(const struct store *store, bool *wrong);
