/*
 * Threads that make tokens of texts. To render a template, or to tokenize a prompt of a megabyte,
 * takes as long as many passes; here it stalls no stream. There are two lanes, each a thread that
 * reads one request at a time, so a short text never waits for a long one. The inbox decides which
 * request is next in a lane. Loop thread, except for reading_run.
 */
#pragma once

#include "services/verifier/front/request.h"
#include "services/verifier/state/stop_match.h"

enum reader_lane { READER_SHORT, READER_LONG, READER_LANES };
/* A message of up to this many bytes goes to the short lane. */
enum { READER_SHORT_BYTES = 16384 };

/* One request: its message, and what was made of it. While a lane has it, it belongs to the lane's
 * thread. */
struct reading {
	uint8_t *packed; /* its Generate or TextRequest, until it is read */
	size_t packed_bytes;
	uint64_t since_ns; /* when it came; deadlines count from then */
	struct request_class of_class; /* set by the loop before a lane reads it */
	struct inbox_entry *entry; /* the loop's: its entry; NULL: it is not wanted any more */
	/* rc < 0: err has the reason, and nothing below is set. */
	int rc;
	struct error err;
	struct session_request request;
	struct request_input input;
	struct stop_match *match; /* for its stop strings, or NULL */
	struct constraint *constraint; /* for its grammar, or NULL */
	bool is_question; /* it is a TextRequest, and the answer is below */
	Outrider__Text *answer;
};

/* Copies the message as bytes, because an unpacked one may be many times as large. NULL when memory
 * is exhausted. */
struct reading *reading_create(const Outrider__Generate *generate, uint64_t now_ns);
/* The same for a question about texts or the model, which becomes no session. */
struct reading *reading_create_question(const Outrider__TextRequest *question, uint64_t now_ns);
void reading_free(struct reading **reading);
/* Reads it: fills the fields from rc on. Any thread. */
void reading_run(struct reading *reading, const struct request_limits *limits);

struct reader;
/* done: called on a lane's thread when it has read a request. limits are copied; what they point to
 * is borrowed. */
int reader_create(const struct request_limits *limits, void (*done)(void *arg), void *arg,
	struct reader **out, struct error *err);
/* Waits for the requests that are being read, even if they are not wanted any more. */
void reader_destroy(struct reader **reader);
bool reader_is_idle(const struct reader *reader, enum reader_lane lane);
/* The lane must be idle. */
void reader_start(struct reader *reader, enum reader_lane lane, struct reading *reading);
/* Takes what the lane has read, which makes it idle; NULL: nothing, or not yet. */
struct reading *reader_take(struct reader *reader, enum reader_lane lane);
