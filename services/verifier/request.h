/* Client messages made into session requests; nothing in them is believed. Loop thread. */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/model/model.h"
#include "shared/model/tokenizer.h"
#include "shared/spec/session.h"

enum { REQUEST_MESSAGES_MAX = 1 << 16 }; /* of one conversation */

struct request_limits {
	const struct model *model;
	const struct tokenizer *tokenizer;
	uint32_t n_context;
};

struct request_input {
	int32_t *prompt; /* malloc'd */
	size_t n_prompt, capacity;
};

/* Checks all of a message. -EINVAL with what, where and the allowed range. now_ns: deadlines count from it. */
int request_read(const Outrider__Generate *generate, const struct request_limits *limits,
	uint64_t now_ns, struct session_request *out, struct request_input *input,
	struct error *err);
void request_input_free(struct request_input *input);
