/*
 * Texts become tokens on threads of their own: a template that is rendered, or a prompt of a megabyte, takes as long as many passes,
 * and stalls no stream. There are two lanes, each a thread that reads one request at a time, so that a short text never waits
 * for a long one. Who is next in a lane is the inbox's to say, each time anew. Loop thread, but for reading_run.
 */
#pragma once

#include "services/verifier/front/request.h"
#include "services/verifier/state/stop_match.h"

enum reader_lane { READER_SHORT, READER_LONG, READER_LANES };
/* A message of up to so many bytes is a short one. */
enum { READER_SHORT_BYTES = 16384 };

/* One request, as it came and as what was made of it. While a lane has it, it is the thread's. */
struct reading {
	uint8_t *packed; /* its Generate, or TextRequest, until it was read */
	size_t packed_bytes;
	uint64_t since_ns; /* when it came: deadlines count from it */
	struct inbox_entry *entry; /* the loop's: whose it is; NULL: nobody wants it any more */
	/* rc < 0: err says why, and there is nothing else. */
	int rc;
	struct error err;
	struct session_request request;
	struct request_input input;
	struct stop_match *match; /* of its stop strings, or NULL */
	struct constraint *constraint; /* of its grammar, or NULL */
	bool is_question; /* a TextRequest, and this is its answer: */
	Outrider__Text *answer;
};

/* A copy of the message, as bytes: unpacked, one may be many times as large. NULL without memory. */
struct reading *reading_create(const Outrider__Generate *generate, uint64_t now_ns);
/* The same of a question about texts or the model, which becomes no session. */
struct reading *reading_create_question(const Outrider__TextRequest *question, uint64_t now_ns);
void reading_free(struct reading **reading);
/* Reads it. Any thread. */
void reading_run(struct reading *reading, const struct request_limits *limits);

struct reader;
/* done: called on a lane's thread when it has read a request. limits are copied; what they point to is borrowed. */
int reader_create(const struct request_limits *limits, void (*done)(void *arg), void *arg,
	struct reader **out, struct error *err);
/* Waits for the requests that are being read, which nobody may want any more. */
void reader_destroy(struct reader **reader);
bool reader_is_idle(const struct reader *reader, enum reader_lane lane);
/* Of an idle lane. */
void reader_start(struct reader *reader, enum reader_lane lane, struct reading *reading);
/* What the lane has read, and is idle then; NULL: nothing, or not yet. */
struct reading *reader_take(struct reader *reader, enum reader_lane lane);
