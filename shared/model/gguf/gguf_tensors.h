/* The tensor table of a GGUF file: gguf.c calls this after the keys. */
#pragma once

#include "shared/model/gguf/gguf_internal.h"

#define GGUF_TENSORS_MAX (1 << 18)

/* Parses n tensor records from offset `at`, checks that each one's data lies in the file, apart from the others. */
int gguf_read_tensors(struct gguf *gguf, uint64_t n, size_t at, struct error *err);
