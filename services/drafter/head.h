/*
 * A draft head as a draft model (shared/model/arch/head.h): an EAGLE-3 file, or the layer of the
 * target's own file that was trained to draft (multi-token prediction). Used by the draft thread.
 *
 * Position i of its sequence has token i + shift and the target's state at the token before. While
 * nothing is lost, shift is 1: token 0 is the only one without a row. Where states are lost, because
 * the drafter or the verifier was started anew, the positions without them are left out, and shift
 * is larger from there on. Distances between positions are all that attention sees, so the head
 * knows less of the text before, and the rest is as it was.
 *
 * Rows of drafted tokens, whose states are the head's own, never stay: once tokens are committed,
 * their rows are computed again from the target's states.
 */
#pragma once

#include "services/drafter/model.h"

/* Whether the file is an EAGLE-3 head; one that cannot be read is none. */
bool draft_is_head(const char *path);
/* The method whose head these settings ask for; DRAFT_NONE: none. A target without a
 * layer for drafts has none for DRAFT_MTP. */
enum draft_method draft_head_wanted(const struct drafter_config *config);

/* Opens that head for the target of a verifier's sessions. -ENODATA: the target has no such layer.
 * Errors name the file, and what does not fit the target. Everything else is borrowed. */
int draft_head_open(const struct drafter_config *config, const struct sessions_header *header,
	struct head_states *states, struct hints *hints, struct draft_model **out,
	struct error *err);

/* The part of model_pass_add that heads have: prepares up to n rows of the session, for the batch
 * from row `first` on, behind the s->seq.n that are there. Returns how many; 0: states are lacking.
 * Target's states for some rows, or the head's own for one row. */
uint32_t head_add(struct draft_model *m, struct draft_session *s, uint32_t first, uint32_t n);
/* Call after a pass with the last row of the session, and how many of its rows were committed. */
void head_got(struct draft_model *m, struct draft_session *s, uint32_t row);
/* Call after a pass for a row whose logits were wanted: says which experts its token needs, as far as
 * anybody wants to know. before: the token in front of it. */
void head_hint(struct draft_model *m, struct draft_session *s, uint32_t row, int32_t before);
/* Leaves out the positions whose states are lost. */
void head_skip(struct draft_model *m, struct draft_session *s);
/* How many rows can be read now, without the one of the newest token: its logits are a draft's. */
uint32_t head_readable(const struct draft_model *m, const struct draft_session *s);
/* Logits over the target's tokens, from a row of a pass. Valid until the next call. */
const float *head_logits(struct draft_model *m, const float *logits);
