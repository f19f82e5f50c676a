/* A grammar and a text, from one input: the source, a NUL, the text. It compiles or says why not;
 * following the text, what the matcher says of a state holds, before and after compaction. */
#pragma once

#include "shared/model/grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

enum { FUZZ_SOURCE_MAX = 4096, FUZZ_TEXT_MAX = 512, FUZZ_MATCHER_BYTES = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Bytes that must follow do, and no other can come first. */
static void fuzz_forced(struct matcher *matcher, uint32_t state)
{
	uint8_t out[16];
	uint32_t after;
	size_t n = matcher_forced(matcher, state, out, sizeof(out), &after);

	if (n == 0)
		return;
	if (matcher_text(matcher, state, out, n) != after || matcher_can_end(matcher, state))
		abort();
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t next = matcher_byte(matcher, state, (uint8_t)byte);

		if (next != MATCHER_FULL && (next != MATCHER_DEAD) != (byte == out[0]))
			abort();
	}
}

static void fuzz_follow(struct matcher *matcher, const uint8_t *text, size_t bytes)
{
	uint32_t state = matcher_start(matcher);

	for (size_t i = 0; i < bytes && i < FUZZ_TEXT_MAX && state != MATCHER_DEAD; i++) {
		uint32_t next = matcher_byte(matcher, state, text[i]);
		bool can_end = matcher_can_end(matcher, state);

		fuzz_forced(matcher, state);
		if (next == MATCHER_FULL || i % 64 == 63) {
			if (matcher_compact(matcher, (uint32_t *[]){&state}, 1) != 0)
				return;
			if (matcher_can_end(matcher, state) != can_end)
				abort();
			uint32_t again = matcher_byte(matcher, state, text[i]);
			if (next != MATCHER_FULL && again != MATCHER_FULL &&
				(next == MATCHER_DEAD) != (again == MATCHER_DEAD))
				abort();
			next = again;
		}
		if (next == MATCHER_FULL)
			return;
		state = next;
	}
}

static int fuzz_grammar(enum grammar_kind kind, const uint8_t *data, size_t bytes)
{
	const uint8_t *end = bytes > 0 ? memchr(data, 0, bytes) : NULL;
	size_t source = end != NULL ? (size_t)(end - data) : bytes;
	struct grammar *grammar;
	struct matcher *matcher;
	struct error err = {""};
	int rc;

	if (source > FUZZ_SOURCE_MAX)
		return 0;
	rc = grammar_compile(kind, (const char *)data, source, &grammar, &err);
	if (rc != 0) {
		if (err.text[0] == 0 || grammar != NULL)
			abort();
		return 0;
	}
	if (matcher_create(grammar, FUZZ_MATCHER_BYTES, &matcher) == 0) {
		if (end != NULL)
			fuzz_follow(matcher, end + 1, bytes - source - 1);
		matcher_free(&matcher);
	}
	grammar_free(&grammar);
	return 0;
}
