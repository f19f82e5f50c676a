/*
 * RUNTIME_DIR/given-up: why `outrider up` ended without having been told to, one line. It is there from that end until the
 * next start, so that who waits for the service learns that nobody will start it again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Best effort: without the file clients wait as long as they would anyway. */
void given_up_write(const char *runtime_dir, const char *why);
void given_up_clear(const char *runtime_dir);
/* The line, cut to bytes; false when there is none, or when a verifier has listened there since. *recent: it was written
 * after since_ns (CLOCK_REALTIME). */
bool given_up_read(
	const char *runtime_dir, uint64_t since_ns, bool *recent, char *why, size_t bytes);
