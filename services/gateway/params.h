/*
 * The body of a completion request: makes a request of the SDK from JSON. All fields are in one
 * table (params.c): fields that are used, fields without effect here, and fields that are known but
 * refused, because to ignore them would change the meaning of the request. No side effects, except
 * that a request without a seed gets a random one.
 */
#pragma once

#include "client/include/outrider.h"
#include "services/gateway/fault.h"

#include <stdbool.h>

enum { PARAMS_CHOICES = 8 }; /* the most answers to one request */

struct params {
	bool chat; /* set by the caller: a chat, not a plain completion */
	/* a hash of the request's Idempotency-Key, set by the caller; 0: it has none */
	uint64_t idempotency;
	struct outrider_request *request; /* owned */
	bool has_input;
	bool stream, include_usage;
	uint32_t n; /* answers */
	bool audit; /* they are audited (audit.h) */
	bool logprobs; /* of a chat */
	uint32_t top_logprobs; /* how many of the likeliest tokens are listed as well */
	uint64_t seed; /* of the first answer; the others have the numbers after it */
	json_t *tools; /* owned, as in chat completions; NULL: none */
	enum { CHOICE_AUTO, CHOICE_NONE, CHOICE_REQUIRED } choice;
	char only[72]; /* the one function that must be called; "": any */
	bool parallel; /* several calls in one answer are allowed */
	bool has_grammar;
	/* owned: the part of a grammar that the content must match; NULL: any text, unless
	 * has_grammar */
	json_t *content;
	uint64_t digest; /* of the messages */
	char model[256]; /* as the request names it; "": it names none */
};

/* False: *fault has the reason; *params must be freed all the same. */
bool params_read(struct params *params, const json_t *body, struct fault *fault);
void params_free(struct params *params);
