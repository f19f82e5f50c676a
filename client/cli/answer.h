/* An answer while it arrives: shown at once, or collected for JSON. Single-threaded. */
#pragma once

#include "client/include/outrider.h"
#include "shared/base/limits.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct answer {
	bool show; /* prints the text to stdout as it arrives */
	bool live; /* shows the live line, on a terminal */
	int32_t *tokens;
	uint64_t *hashes;
	int32_t *picked; /* [n_tokens] of an audit; otherwise without meaning */
	json_t *logprobs; /* an array with an object for each token; NULL: none came */
	char *text;
	size_t n_tokens, n_hashes, text_bytes;
	size_t room_tokens, room_hashes, room_picked, room_text;
	bool out_of_memory;
	int write_error; /* errno of the first write that failed */
	enum outrider_end end;
	char stop[LIMIT_STOP_BYTES], message[512];
	struct outrider_usage usage; /* valid as long as the stream */
};

/* From now on SIGINT ends only the answer, also one that is about to begin, not the program. */
void answer_catch_interrupts(void);
/* Discards a SIGINT that has come so far, so that it does not end the next answer. */
void answer_forget_interrupts(void);
/* Reads the stream to its end. SIGINT cancels it; if the service does not confirm that within a
 * second, the answer ends without it. 0 or -errno (outrider_error()). The caller keeps the stream.
 */
int answer_read(struct answer *answer, struct outrider_stream *stream);
/* {"tokens": ..., "text": ..., "end": ..., "usage": ...}; with "audit", unless that is NULL */
void answer_print_json(const struct answer *answer, const struct answer *audit, FILE *to);
/* The tokens that the audit found changed, a line for each. */
void answer_print_audit(const struct answer *audit, struct outrider *client, FILE *to);
/* Prints one line of statistics. */
void answer_print_stats(const struct answer *answer, FILE *to);
/* Prints a notice to stderr when the answer ended because the context is full, before max_tokens
 * (0: without limit) were reached. */
void answer_say_full(const struct answer *answer, uint32_t max_tokens);
void answer_free(struct answer *answer);

/* live.c: the last line of the terminal, below the answer, which scrolls. */
void live_begin(void);
void live_show(const struct outrider_live *live, size_t n_tokens);
void live_end(void);
