/*
 * What a pass has computed becomes output: drafts are accepted, tokens published, cells committed, hashes kept; and where an
 * answer ends. Engine thread, in iteration.c; the engine is between passes or behind one.
 */
#pragma once

#include "services/verifier/pass/engine.h"

/* How many of n_tokens committed tokens are output. */
static inline uint32_t emit_n_out(const struct engine_session *s, uint32_t n_tokens)
{
	return n_tokens - s->page->n_prompt;
}

/* Accepts and publishes the tokens of a session whose entry of the schedule emits, up to the one that ends the answer. */
void emit_tokens(struct engine *engine, const struct sched_entry *entry);
/* Hashes of the output positions that this pass computed again (after a restart, or pages given up). */
void emit_hash_again(
	struct engine *engine, struct engine_session *s, const struct sched_entry *entry);

/* What the committed tokens say: an end that was reached but, the process having died in between, not written down.
 * Brings s->text up to date with them. */
enum session_end emit_replay_text(struct engine *engine, struct engine_session *s);
