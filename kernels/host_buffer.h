/*
 * Buffers in the memory of this process, for the back ends that compute there: kernels/backend.h
 * says what each function does. All set `host`, and leave `backend` and `device` to the caller.
 */
#pragma once

#include "kernels/backend.h"

int host_buffer_alloc(size_t bytes, enum buffer_kind kind, struct buffer *out, struct error *err);
void host_buffer_wrap(void *memory, size_t bytes, struct buffer *out);
int host_buffer_export(const struct buffer *buffer, struct error *err);
int host_buffer_import(int fd, size_t bytes, bool write, struct buffer *out, struct error *err);
void host_buffer_free(struct buffer *buffer);
