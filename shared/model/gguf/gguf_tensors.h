/* The tensor table of a GGUF file. gguf.c calls this after it has read the keys. */
#pragma once

#include "shared/model/gguf/gguf_internal.h"

#define GGUF_TENSORS_MAX (1 << 18)

/* Parses n tensor records from offset `at`. Checks that the data of each lie in the file and
 * overlap no other's. */
int gguf_read_tensors(struct gguf *gguf, uint64_t n, size_t at, struct error *err);
