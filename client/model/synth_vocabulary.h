/* A byte-level BPE vocabulary of any size: the 256 bytes, then lower-case words with and without a
 * leading space in order of length, each with the merge that makes it, then three control tokens.
 */
#pragma once

#include "client/model/gguf_write.h"

/* Appends the tokenizer's keys for a vocabulary of n tokens (260 at least); pre: the
 * pre-tokenizer's name. */
void synth_vocabulary(struct gguf_write *w, uint32_t n, const char *pre);
