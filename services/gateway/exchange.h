/*
 * One HTTP request and its response. Made when the headers are there, freed when libmicrohttpd says that the request is over.
 */
#pragma once

#include "services/gateway/gateway.h"
#include "services/gateway/params.h"
#include "services/gateway/text.h"
#include "shared/model/calls/calls.h"

/* One answer of a completion. */
struct choice {
	struct exchange *exchange;
	struct choice *next; /* of its bucket in gateway.streams */
	struct choice *behind; /* of gateway.queue */
	bool waits, runs; /* it is in the queue; its stream was started and has not ended */
	uint64_t started_ns;
	struct outrider_stream *stream; /* owned; NULL: not started, or freed */
	uint64_t uid;
	uint32_t index;
	struct text text; /* all of it; not of a stream */
	struct calls_parser *parser; /* NULL: all of it is content */
	struct text thought; /* all of it; not of a stream */
	json_t *calls; /* NULL: none yet; as in a message */
	bool failed; /* there was no memory for what the parser found */
	uint32_t n_tokens; /* of the output so far */
	enum outrider_end end; /* NONE: it is still running */
	bool begun; /* the first chunk was made */
	json_t *logprobs; /* of tokens that are in no chunk yet; NULL: none (logprobs.h) */
	json_int_t n_characters; /* of the tokens whose log probabilities were told */
};

struct exchange {
	struct gateway *gateway;
	struct MHD_Connection *connection;
	const struct route *route; /* NULL: there is none */
	struct ask *ask; /* its question that has no answer yet; the pool's */
	struct text body;
	bool body_too_large;
	struct fault fault; /* why it is refused */
	struct key *key; /* held; NULL: none is asked for */
	bool limited; /* it counts as a request of the key */
	double retry_s; /* of a 429: when it may be sent again; 0: not known */
	bool dispatched; /* the whole request was there, and was looked at */
	bool suspended; /* libmicrohttpd leaves it alone until it is resumed */
	bool responding; /* the response has been queued */
	uint64_t begun_ns, sent_ns; /* when the request was there; when bytes were made last */

	/* Of completions. */
	struct exchange *previous, *next; /* of gateway.exchanges */
	bool listed;
	struct params params;
	struct calls_format format; /* how the model writes thoughts and calls */
	bool parsed; /* they are looked for */
	bool thinking; /* the prompt ends within a thought */
	struct responses *responses; /* owned; NULL: it is no request to /v1/responses */
	struct choice choices[PARAMS_CHOICES];
	uint32_t n_started, n_ended;
	char id[40];
	int64_t created; /* seconds since 1970 */
	struct text out; /* not sent yet */
	bool complete; /* nothing is added to out any more */
	bool told; /* its status was counted */
};

/* Its response (the fault, or what is in out) can be sent, or more of it: libmicrohttpd looks at it again. */
void exchange_wake(struct exchange *exchange);
/* Leaves it alone until then. */
void exchange_rest(struct exchange *exchange);
