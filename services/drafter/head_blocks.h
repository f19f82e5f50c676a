/*
 * The further blocks of a target with several layers for drafts (nextn_predict_layers above 1). They
 * are a chain (DeepSeek-V3, section 2.2): block i reads the state that block i - 1 gives for the token
 * before, and drafts the i-th token; what lies beyond the last block is drafted by that one, from its
 * own states. The first block is the head itself (head.h).
 *
 * Each block has keys and values of its own, of all tokens but the first i - 1, for which there is no
 * state of the block before. So a row of the head's batch, which stands for one token, has a row in
 * each block that is to know it: in all of them for a token of the session, and for the j-th drafted
 * one in the blocks from min(j + 1, N) on. As in the head, rows of drafted tokens never stay.
 *
 * Experts of these blocks are read from the mapping of the file. Used by the draft thread.
 */
#pragma once

#include "services/drafter/model.h"

enum { HEAD_BLOCKS = 8 }; /* with the first one; more are not used */

struct head_blocks {
	uint32_t n; /* with the first one */
	struct head_block {
		struct model *model;
		struct forward *forward;
		struct experts_mapped experts;
		struct kv kv;
		void *memory;
		size_t memory_bytes;
		struct batch_token *batch; /* [n_batch] */
		uint32_t *cells; /* [n_batch] */
		int32_t *row; /* [n_batch] its row for a row of the head's batch, -1: none */
		uint32_t n_in_batch;
	} block[HEAD_BLOCKS]; /* block[0]: only `row` is used */
};

/* What a session has in the further blocks. */
struct head_trail {
	struct kv_seq seq[HEAD_BLOCKS]; /* of the blocks from 1 on */
	/* The states that each block gave for the last row, and of those from the target's states for the
	 * last and the one before: n_kept of them are there. */
	uint32_t n_kept;
	float *last, *kept[2]; /* [n][n_embd] */
};

/* Whether the model is a head with several blocks. */
static inline bool head_has_blocks(const struct draft_model *m)
{
	return m->blocks && m->blocks->n > 1;
}

/* Opens the further blocks of the head's file, as its engine is there. Without any, n is 1. */
int head_blocks_open(struct draft_model *m, const char *target_path, struct error *err);
void head_blocks_close(struct draft_model *m);
/* Whether the head's own block has something to compute in the batch: the first drafted tokens' rows
 * and those behind them are the further blocks' alone. */
bool head_blocks_need_first(const struct draft_model *m, uint32_t n);
/* Call after the head's pass over the first n rows of the batch. 0 or -errno. */
int head_blocks_run(struct draft_model *m, uint32_t n);
/* Logits of a row, from the block that drafts behind it. */
const float *head_blocks_logits(const struct draft_model *m, uint32_t row);
/* Keeps what belongs to the head's first `keep` positions, of which n_true were from the target's
 * states. False: that is not there; the session's sequence must be dropped. */
bool head_blocks_rewind(struct draft_model *m, struct draft_session *s, uint32_t keep);
void head_blocks_drop(struct draft_model *m, struct draft_session *s);
