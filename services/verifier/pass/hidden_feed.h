/*
 * Gives the drafter the hidden states that it wants (shared/spec/hidden.h). In a pass, the residual
 * streams of the rows are copied from the forward pass straight to their places in the region, once
 * for each tap; when it is known which drafts are accepted, the rows are tagged and published. Rows
 * of sessions that name another method, or of which the drafter is told nothing, are not copied,
 * and without a drafter that wants states nothing is done at all. Used by the engine thread.
 */
#pragma once

#include "services/verifier/pass/pass.h"
#include "shared/ipc/region.h"
#include "shared/spec/hidden.h"

struct hidden_feed {
	struct region region; /* header NULL: none */
	struct hidden hidden;
	struct backend *backend;
	struct buffer buffer; /* the region's payload */
	bool on; /* in this pass */
	uint32_t n_rows; /* of this pass */
	const struct pass *pass;
	struct queue *queue;
	_Atomic uint64_t rows; /* published; read by the front */
};

void hidden_feed_init(struct hidden_feed *feed, struct backend *backend);
void hidden_feed_exit(struct hidden_feed *feed);
/* Uses the region from now on, and closes the one before; header NULL: none. Takes *region over.
 * n_max: most rows of a pass, which the region must have room for. Failures are logged. */
void hidden_feed_use(struct hidden_feed *feed, struct region *region, uint32_t n_max);
/* Call before a pass, with its batch, and after its tokens are accepted. listened: a drafter is
 * there. */
void hidden_feed_begin(
	struct hidden_feed *feed, const struct pass *pass, struct queue *queue, bool listened);
/* Returns whether prompt tokens are among them, of which no draft request tells the drafter. */
bool hidden_feed_end(struct hidden_feed *feed);
/* The hook of the forward pass. */
void hidden_feed_layer(struct hidden_feed *feed, uint32_t layer, const struct rows *x);
