/*
 * One generation as its client sees it: what has arrived, what the caller has taken, and how to go
 * on after a break.
 *
 * Tokens are identified by their index. A batch that begins below `arrived` is a repetition and is
 * dropped as a whole. A batch that begins above it shows a gap, and the stream asks again from
 * `arrived` on. Text cannot be cut at a token, so a batch that overlaps is also asked for again.
 */
#pragma once

#include "client/sdk/client.h"

struct stream_item {
	struct stream_item *next;
	Outrider__Envelope *envelope; /* Tokens or Done */
};

struct outrider_stream {
	struct outrider *client;
	/* the next of the client; the next in the same bucket */
	struct outrider_stream *next, *in_bucket;
	struct outrider_stream *after; /* the next in the line of streams with events */
	bool in_line;
	uint64_t uid;
	/* numbers of the last Generate or Resume, and of the last Generate */
	uint64_t request_id, generate_id;
	Outrider__Generate *generate; /* to send again; NULL for outrider_resume() */
	uint32_t window;
	uint32_t arrived, taken; /* output tokens: received in order; given to the caller */
	uint32_t credit; /* granted so far, counted from the first output token */
	uint64_t silent_ns, ask_after_ns; /* time since something arrived; when to ask again */
	uint64_t asked_ns; /* when it was first asked again in this silence; 0: not yet */
	uint64_t waited_ns; /* time since the stream began */
	uint64_t generation, engine; /* of the verifier, as its Accepted says */
	uint32_t arithmetic; /* also from Accepted; 0: it did not say */
	bool budgeted; /* the session has an expert budget */
	uint32_t restarts;
	uint32_t incomplete;
	bool gap; /* it has asked for what is missing */
	bool accepted, cancelling, ended;
	bool told; /* the caller has got the last event */
	bool failure_told; /* or its failure; outrider_next returns that again */
	int error; /* the error that ended it; 0: it ended by Done */
	uint32_t retry_ms; /* after which the service would take the request; 0: not known */
	char reason[512];
	struct stream_item *first, **last, *shown;
	Outrider__Envelope *done; /* points into shown or the queue */
	struct outrider_event event;
	struct outrider_logprob *logprobs; /* of the event; room for n_logprobs */
	size_t n_logprobs;
};

/* The uid of the session that a message is about; 0 for none. */
uint64_t stream_uid_of(const Outrider__Envelope *envelope);
/* Handles a message. Keeps *envelope, and sets it to NULL, if the caller of the SDK will need it.
 */
void stream_handle(struct outrider_stream *stream, Outrider__Envelope **envelope);
void stream_connected(struct outrider_stream *stream);
void stream_tick(struct outrider_stream *stream);
/* Silence counts from now on. */
void stream_count_anew(struct outrider_stream *stream);

/* In stream_state.c, called by stream.c: sends, for the first time or again, what the service must
 * know. */
int stream_send_start(struct outrider_stream *stream);
void stream_send_credit(struct outrider_stream *stream);
void stream_send_cancel(struct outrider_stream *stream);
