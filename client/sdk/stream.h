/*
 * One generation as its client sees it: what has arrived, what was taken, and how to go on after a break.
 *
 * Tokens are known by their index. A batch that starts below `arrived` is a repeat and is dropped whole; one that starts above
 * it shows a gap, and the stream asks again from `arrived`. Text cannot be cut at a token, so a batch that overlaps is also
 * asked for again.
 */
#pragma once

#include "client/sdk/client.h"

struct stream_item {
	struct stream_item *next;
	Outrider__Envelope *envelope; /* Tokens or Done */
};

struct outrider_stream {
	struct outrider *client;
	struct outrider_stream *next, *in_bucket; /* of the client; of those in the same bucket */
	struct outrider_stream *after; /* in the line of those that are ready */
	bool in_line;
	uint64_t uid;
	uint64_t request_id, generate_id; /* of the last Generate or Resume; Generate */
	Outrider__Generate *generate; /* to send again; NULL for outrider_resume() */
	uint32_t window;
	uint32_t arrived, taken; /* output tokens: received in order; given to the caller */
	uint32_t credit; /* granted, absolute */
	uint64_t silent_ns, ask_after_ns; /* since something arrived; when to ask again */
	uint64_t asked_ns; /* of that silence, when it was first asked again; 0: not yet */
	uint64_t waited_ns; /* since it was begun, silent or not */
	uint64_t generation, engine; /* of the verifier, from Accepted */
	uint32_t arithmetic; /* likewise; 0: it did not say */
	uint32_t restarts;
	uint32_t incomplete;
	bool gap; /* asked for what is missing */
	bool accepted, cancelling, ended;
	bool told; /* the caller has got the last event */
	bool failure_told; /* or the failure, which outrider_next says again */
	int error; /* ended by it; 0: by Done */
	char reason[512];
	struct stream_item *first, **last, *shown;
	Outrider__Envelope *done; /* points into shown or the queue */
	struct outrider_event event;
	struct outrider_logprob *logprobs; /* of the event; room for n_logprobs */
	size_t n_logprobs;
};

/* The session a message is about; 0 for none. */
uint64_t stream_uid_of(const Outrider__Envelope *envelope);
/* Takes *envelope (and nulls it) when it keeps it. */
void stream_handle(struct outrider_stream *stream, Outrider__Envelope **envelope);
void stream_connected(struct outrider_stream *stream);
void stream_tick(struct outrider_stream *stream);
/* Silence counts from now. */
void stream_count_anew(struct outrider_stream *stream);

/* stream_state.c, for stream.c: (Re)sends what the service must know. */
int stream_send_start(struct outrider_stream *stream);
void stream_send_credit(struct outrider_stream *stream);
void stream_send_cancel(struct outrider_stream *stream);
