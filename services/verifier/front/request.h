/* Makes session requests of client messages, which are not trusted. Any thread. */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/model/arch/model.h"
#include "shared/model/text/chat.h"
#include "shared/spec/session.h"
#include "shared/spec/constraint.h"
#include "shared/spec/budget.h"

enum { REQUEST_MESSAGES_MAX = 1 << 16 }; /* in one conversation */

/* A digest of what decides an answer and its form: input, sampling, seed, stops, length, and with
 * coupling = maximal the drafts. It does not depend on how far the client has got, nor on the time
 * that it allows. */
uint64_t request_digest(const Outrider__Generate *generate);

struct request_limits {
	const struct model *model;
	const struct tokenizer *tokenizer;
	uint32_t n_context;
	struct constraint_vocab *vocab; /* for grammars; only this changes */
	struct budget_means budget;
};

struct request_input {
	int32_t *prompt; /* malloc'd */
	size_t n_prompt, capacity;
	int32_t *replay; /* malloc'd: session_request.n_replay tokens; NULL: none */
	int32_t *audit; /* malloc'd: session_request.max_tokens of an audit; NULL: it is none */
};

/* request_read checks the whole message; request_parameters only what costs next to nothing, which
 * is everything but the prompt. -EINVAL with what, where and the allowed range. Deadlines count
 * from now_ns. */
int request_read(const Outrider__Generate *generate, const struct request_limits *limits,
	uint64_t now_ns, struct session_request *out, struct request_input *input,
	struct error *err);
int request_parameters(const Outrider__Generate *generate, const struct request_limits *limits,
	uint64_t now_ns, struct session_request *out, struct error *err);
/* The class that the request names: -EINVAL if there is none of that name, unless the client has
 * tokens already. */
int request_class(const Outrider__Generate *generate, const struct request_classes *classes,
	struct request_class *out, struct error *err);
/* The text of a conversation, as the model's template makes it, and its tokens; ids NULL: the text
 * alone. */
int request_render(const Outrider__Conversation *conversation, const struct request_limits *limits,
	struct template_text *text, int32_t **ids, size_t *n, size_t *capacity, struct error *err);
/* -EINVAL if an id is not in the vocabulary; what: the name for the message. */
int request_check_ids(
	const char *what, const int32_t *ids, size_t n, uint32_t n_vocab, struct error *err);
void request_input_free(struct request_input *input);
