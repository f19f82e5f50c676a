/*
 * The target's hidden states as the drafter finds them (shared/spec/hidden.h), and which of them
 * belong to which token of a session. Used by the draft thread.
 */
#pragma once

#include "services/drafter/session.h"
#include "shared/spec/hidden.h"

struct head_states {
	struct region region; /* header NULL: none */
	struct hidden hidden;
	uint64_t seen; /* rows below this one were looked at */
	struct draft_session *sessions; /* [n_sessions] borrowed */
	uint32_t n_sessions;
};

void head_states_init(
	struct head_states *states, struct draft_session *sessions, uint32_t n_sessions);
void head_states_exit(struct head_states *states);
/* Takes *region over in place of the one before, whose rows are forgotten. */
int head_states_use(struct head_states *states, struct region *region, struct error *err);
/* Whether the region has these states. */
bool head_states_fit(const struct head_states *states, const struct hidden_shape *wanted);
/* Begins to note which rows are the session's, beginning with those that are there. -ENOMEM. */
int head_states_begin(struct head_states *states, struct draft_session *s);
/* Notes the rows that came since the last call. */
void head_states_look(struct head_states *states);
/* Whether the state of the session's token at `position` can be read. */
bool head_states_have(
	const struct head_states *states, const struct draft_session *s, uint32_t position);
/* Reads it: [n_taps * n_embd]. False: it is not there any more, or is no state. */
bool head_states_read(
	struct head_states *states, struct draft_session *s, uint32_t position, float *out);
