/*
 * RUNTIME_DIR/given-up: one line that says why `outrider up` ended without being told to. The file
 * exists from that end until the next start, so that a client that waits for the service learns
 * that nobody will start it again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Best effort: without the file, clients wait as long as they would otherwise. */
void given_up_write(const char *runtime_dir, const char *why);
void given_up_clear(const char *runtime_dir);
/* Reads the line, cut to `bytes`. False when there is none, or when a verifier has started to
 * listen there since. *recent: the file was written after since_ns (CLOCK_REALTIME). */
bool given_up_read(
	const char *runtime_dir, uint64_t since_ns, bool *recent, char *why, size_t bytes);
