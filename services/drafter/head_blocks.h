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
 * In a tree a node's j is its depth, and the token before it is its parent. A level is one pass, in which
 * the blocks are independent of each other: each reads the states behind the parents, of the pass before.
 * As in model_tree.c, a row of such a pass has a view of its session's sequence, in each block.
 *
 * Where the first block is computed, and where its experts are, there are those of the others. Used by the
 * draft thread.
 */
#pragma once

#include "services/drafter/model_engine.h"

enum { HEAD_BLOCKS = LIMIT_DRAFT_BLOCKS }; /* with the first one */

struct head_blocks {
	uint32_t n; /* with the first one */
	struct head_block {
		struct model *model;
		/* Where the head's own block is computed (model_engine.h). */
		bool placed;
		struct forward *forward;
		struct head_experts experts; /* on the CPU */
		struct experts_mapped copied; /* on a device */
		struct kv kv;
		struct draft_kv_memory memory;
		struct batch_token *batch; /* [n_batch_max] */
		uint32_t *cells; /* [n_batch_max] */
		int32_t *row; /* [n_batch_max] its row for a row of the head's batch, -1: none */
		uint32_t n_in_batch;
		/* For trees, as in struct draft_model. */
		struct kv_seq views[DRAFT_MODEL_LOGITS];
		uint64_t view_holds[DRAFT_MODEL_LOGITS];
	} block[HEAD_BLOCKS]; /* block[0]: only `row` is used */
};

/* What the further blocks have of a session's tree. */
struct head_branches {
	/* Cells of nodes, with the indices of model_tree.cell: those from `from` to before `end` are in
	 * flight. */
	uint32_t cell[HEAD_BLOCKS][LIMIT_DRAFT_NODES], from[HEAD_BLOCKS], end[HEAD_BLOCKS];
	/* the block's row of the first node of the last level, and of the one in progress */
	uint32_t row[HEAD_BLOCKS], next[HEAD_BLOCKS];
};

/* What a session has in the further blocks. */
struct head_trail {
	struct kv_seq seq[HEAD_BLOCKS]; /* of the blocks from 1 on */
	/* The states that each block gave for the last row, and of those from the target's states for the
	 * last and the one before: n_kept of them are there. */
	uint32_t n_kept;
	float *last, *kept[2]; /* [n][n_embd] */
	struct head_branches *branches; /* NULL: no tree has been drafted */
};

/* Whether the model is a head with several blocks. */
static inline bool head_has_blocks(const struct draft_model *m)
{
	return m->blocks && m->blocks->n > 1;
}

/* Where the experts of a block are: those of a model's own layers for drafts. */
struct head_experts_of head_experts_of_block(const struct draft_model *m, uint32_t block);
/* Opens the further blocks of the head's file, as its engine is there. Without any, n is 1. */
int head_blocks_open(struct draft_model *m, const char *target_path, struct error *err);
void head_blocks_close(struct draft_model *m);
/* For model_engine.h: opens what computes the blocks on m->backend, closes it, and adds what they need of a
 * device. */
int head_blocks_place(struct draft_model *m, struct error *err);
void head_blocks_leave(struct draft_model *m);
void head_blocks_needs(
	const struct draft_model *m, struct backend *device, struct draft_engine_needs *needs);
/* Whether the head's own block has something to compute in the batch: the first drafted tokens' rows
 * and those behind them are the further blocks' alone. */
bool head_blocks_need_first(const struct draft_model *m, uint32_t n);
/* Call after the head's pass over the first n rows of the batch. 0 or -errno. */
int head_blocks_run(struct draft_model *m, uint32_t n);
/* Runs a block's pass over its batch. 0 or -errno. */
int head_blocks_pass(struct draft_model *m, struct head_block *block);
/* How many experts the further blocks have read where the expert-cache has them, and from the file. Any thread. */
void head_blocks_counts(const struct draft_model *m, uint64_t *from_slots, uint64_t *from_file);
/* Logits of a row, from the block that drafts behind it. */
const float *head_blocks_logits(const struct draft_model *m, uint32_t row);
/* Keeps what belongs to the head's first `keep` positions, of which n_true were from the target's
 * states. False: that is not there; the session's sequence must be dropped. */
bool head_blocks_rewind(struct draft_model *m, struct draft_session *s, uint32_t keep);
void head_blocks_drop(struct draft_model *m, struct draft_session *s);

/* Trees (head_blocks_tree.c). Call before the levels of a pass are added. */
void head_blocks_begin_level(struct draft_model *m);
/* Adds the newest level of a session's tree, whose nodes' rows of the head's batch begin with the next one.
 * False: no memory, or no room in a block; then nothing is added. */
bool head_blocks_add_level(struct draft_model *m, struct draft_session *s);
/* Runs the pass of all levels that were added. 0 or -errno. */
int head_blocks_run_level(struct draft_model *m);
/* Call for each session of the pass, before the level's nodes count as computed. done: it succeeded. */
void head_blocks_end_level(struct draft_model *m, struct draft_session *s, bool done);
/* Gives back all cells of the session's tree. */
void head_blocks_settle_tree(struct draft_model *m, struct draft_session *s);
