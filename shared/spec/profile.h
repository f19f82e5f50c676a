/*
 * How often each expert was used in an earlier run: a text file that `outrider-bench cache profile`
 * writes, with which some policies know better what to keep (cache_policy_shape.profile). The file
 * may come from anybody, so every number is checked.
 *
 *   outrider-profile 1
 *   layers 6 experts 32
 *   LAYER EXPERT USES        one line per expert that was used, each at most once
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdio.h>

enum { PROFILE_BYTES_MAX = 32 << 20 };

/* Parses a profile of a model with this shape. *out: [n_layers][n_experts], malloc'd. -EBADMSG
 * names the line. */
int profile_parse(const char *text, size_t bytes, uint32_t n_layers, uint32_t n_experts,
	uint64_t **out, struct error *err);
int profile_read(
	const char *path, uint32_t n_layers, uint32_t n_experts, uint64_t **out, struct error *err);
int profile_write(const char *path, uint32_t n_layers, uint32_t n_experts, const uint64_t *uses,
	struct error *err);
