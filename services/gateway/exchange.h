/*
 * One HTTP request and its response. server.c makes it when the headers have arrived, and frees it
 * when libmicrohttpd reports the end of the request. Loop thread.
 *
 * A handler (routes.h) fills `out` and sets `complete`, or starts something that will do so later:
 * a question to the service (asks.h) or streams (generate.h). Until then libmicrohttpd leaves the
 * connection alone (exchange_rest, exchange_wake).
 */
#pragma once

#include "services/gateway/gateway.h"
#include "services/gateway/params.h"
#include "services/gateway/text.h"
#include "shared/model/calls/calls.h"

/* One answer of a completion, of params.n; or the audit of one (audit.h). */
struct choice {
	struct exchange *exchange;
	struct choice *next; /* of its bucket in gateway.streams */
	struct choice *behind; /* of gateway.queue */
	/* waits: it is in the queue; runs: its stream was started and has not ended */
	bool waits, runs;
	uint64_t started_ns;
	struct outrider_stream *stream; /* owned; NULL: not started, or freed */
	uint64_t uid;
	uint32_t index;
	struct choice *audits; /* an audit: the answer that it is of; else NULL */
	struct text text; /* the whole answer; unused in a stream; of an audit: why it failed */
	/* int32_t[]: of an answer that will be audited; of an audit, what the model picks */
	struct text tokens;
	struct calls_parser *parser; /* NULL: the whole text is content */
	struct text thought; /* the whole thought; unused in a stream */
	struct thoughts_count thoughts; /* how many tokens thoughts have */
	/* owned; as in a message, but in a stream without arguments; NULL: none so far */
	json_t *calls;
	struct text arguments; /* of the last call so far; unused in a stream */
	bool failed; /* memory was exhausted while the parser found something */
	uint32_t n_tokens; /* of the output so far */
	enum outrider_end end; /* NONE: it is still running */
	bool begun; /* the first chunk was made */
	/* owned: of tokens that are in no chunk yet (logprobs.h); NULL: none */
	json_t *logprobs;
	json_int_t n_characters; /* in the tokens whose log probabilities were sent */
};

struct exchange {
	struct gateway *gateway;
	struct MHD_Connection *connection;
	const struct route *route; /* NULL: there is none */
	/* its question to the service that has no answer yet; belongs to the pool; NULL: none */
	struct ask *ask;
	struct text body;
	bool body_too_large;
	struct fault fault; /* why the request is refused */
	struct key *key; /* held (keys.h); NULL: no key is required */
	bool limited; /* it counts among the open requests of the key */
	double retry_s; /* for a 429: seconds after which it may be sent again; 0: unknown */
	bool dispatched; /* the whole request has arrived, and was handed to its route */
	bool suspended; /* libmicrohttpd leaves it alone until it is resumed */
	bool responding; /* the response has been queued */
	/* CLOCK_MONOTONIC: when the request had arrived; when bytes were last added to out */
	uint64_t begun_ns, sent_ns;

	/* For completions only. */
	struct exchange *previous, *next; /* of gateway.exchanges */
	bool listed;
	struct params params;
	struct calls_format format; /* how the model writes thoughts and calls */
	struct thoughts_marks marks; /* the tokens around thoughts */
	bool parsed; /* the answers are parsed for thoughts and calls */
	bool thinking; /* the prompt ends within a thought */
	struct responses *responses; /* owned; NULL: the request is not one to /v1/responses */
	struct choice choices[PARAMS_CHOICES];
	uint32_t n_started, n_ended;
	/* Of the answers that have tokens, when all answers have ended; n_audited: have ended too. */
	struct choice audits[PARAMS_CHOICES];
	uint32_t n_audits, n_audited;
	char id[40];
	int64_t created; /* seconds since 1970 */
	struct text out; /* bytes that are not sent yet */
	bool complete; /* nothing more will be added to out */
	bool told; /* its status was counted in the metrics */
};

/* Call when the response, or more of it, can be sent: the fault, or the bytes in `out`. Makes
 * libmicrohttpd look at the connection again. */
void exchange_wake(struct exchange *exchange);
/* Makes libmicrohttpd leave the connection alone until exchange_wake. */
void exchange_rest(struct exchange *exchange);
