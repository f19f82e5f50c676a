/*
 * The prompts of a workload (JSONL) as tokens, for commands that run the engine without the service, and
 * the greedy choice of a token. A line has "prompt", a text; or "messages", a conversation; or "input_ids".
 */
#pragma once

#include "client/model/engine.h"

#include <jansson.h>

/* *ids is malloc'd, also on failure, and may be NULL. -EINVAL, -EBADMSG, -ENOMEM. */
int prompt_encode(const struct engine *engine, const json_t *line, int32_t **ids, size_t *n,
	struct error *err);
/* Calls fn for each of the first `limit` lines of the file, with its number from 1 on, until one call
 * fails. Errors name file and line. */
typedef int prompt_fn(void *arg, const json_t *line, uint32_t number, struct error *err);
int prompts_each(const char *path, uint32_t limit, prompt_fn *fn, void *arg, struct error *err);

/* The token with the greatest of n logits, the first of equals. */
int32_t greatest_logit(const float *logits, uint32_t n);
