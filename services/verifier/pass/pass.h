/*
 * One pass of the model over what the sessions have next, and everything that lives as long as it. A pass goes one way: plan, draft,
 * share, build, run, accept, commit, report. pass_run (pass.c) is that way; each step is in the file of its name. A step reads what the
 * steps before it wrote into the parts and never looks back. Engine thread.
 */
#pragma once

#include "services/verifier/pass/drafts.h"
#include "services/verifier/pass/session.h"
#include "shared/model/pass/experts.h"
#include "shared/model/pass/forward.h"
#include "kernels/pick.h"
#include "shared/spec/accept.h"

struct engine;

/* What one session has in a pass. */
struct pass_part {
	struct engine_session *session;
	/* plan */
	uint32_t n_tokens; /* committed when the pass began */
	uint32_t n; /* of them, to be computed in this pass */
	bool emits; /* they reach the newest one: its logits give the next token */
	bool decodes; /* they are only that one: drafts may follow it */
	/* draft */
	struct draft_want want; /* k 0: no draft */
	enum drafts_state wish; /* how it stands with that draft */
	uint32_t group; /* of those that wait for their drafts, by how long that takes */
	bool sits_out; /* its draft is late, and is expected for the next pass */
	/* build */
	const struct draft_reply *draft; /* checked; NULL: none, or late */
	uint32_t n_drafts; /* its nodes: rows behind the newest committed token */
	uint32_t row; /* of the batch: its first */
	uint32_t
		pick; /* of the picks: that of its last committed token, if anything of it is picked */
	bool put_out; /* its pages went to another session after the plan was made */
	/* accept */
	struct accept_output out;
	uint32_t n_emitted; /* of out's tokens, those before the end of the answer */
	enum session_end end; /* reached in this pass */
};

/* Whether tokens come out of it: of a finished answer only the records are made again. */
static inline bool part_accepts(const struct pass_part *part)
{
	return part->emits && part->session->end_before == SESSION_END_NONE;
}

struct pass {
	struct forward_limits max; /* what there is room for: of the start */
	struct pass_part *parts; /* [LIMIT_SESSIONS]; after build only those that take part */
	uint32_t n_parts;
	/* build: the batch, whose rows are one part after the other */
	struct batch_token *batch; /* [max.n_batch] */
	uint32_t *cells; /* [max.n_batch] of the KV cache, one for each row */
	uint32_t n_batch;
	uint32_t n_prefill; /* of the rows, prompt tokens */
	/* What is picked from the batch, in its order. */
	struct pick_row *picks; /* [max.n_picks] */
	uint32_t n_picks;
	uint32_t n_kept; /* rows whose logits are kept, for drafts that are accepted by logits */
	/* Of the part that is being built: the tokens that may follow its newest one and each of its drafts. */
	const uint64_t *allowed[LIMIT_DRAFT_NODES + 1];
	/* run */
	struct pick_result *picked; /* [max.n_picks] of picks */
	struct token_logprob *likely; /* [max.n_picks][LIMIT_TOP_LOGPROBS] that picks list */
	/* For the report. */
	uint64_t start_ns, drafted_ns, forward_ns, forwarded_ns;
	struct expert_source_stats experts_before;
};

/* One pass for the sessions that can go on now. How many took part; 0: there is nothing to do. */
uint32_t pass_run(struct engine *engine);

/* Before the first step: ends the sessions that are cancelled or late, and lets go of those that give way. */
void pass_sweep(struct engine *engine, const struct pass *pass);
/* The steps. How many parts there are. */
uint32_t pass_plan(struct engine *engine, struct pass *pass);
void pass_draft(struct engine *engine, struct pass *pass);
/* Within pass_draft, before drafts are asked for: their budgets. */
void pass_share_budgets(struct engine *engine, struct pass *pass);
void pass_share(struct engine *engine, struct pass *pass);
/* How many parts are left: a session for which there are no cells sits the pass out. */
uint32_t pass_build(struct engine *engine, struct pass *pass);
void pass_accept(struct engine *engine, struct pass *pass);
void pass_commit(struct engine *engine, struct pass *pass);
void pass_report(struct engine *engine, struct pass *pass);

/* Journals the tokens that were committed, and wakes the front for them: from then on clients and the drafter may see them. Does
 * nothing when there are none. A back end that runs behind its caller has time for it once the next pass has begun. Otherwise
 * it comes right after the commit: the front then sends them while this thread reports, plans and builds, and not while all
 * threads meet in the next forward pass. Whatever else depends on it calls it first: a message to the drafter, the end of a
 * session, a thread that goes to sleep. */
void pass_publish(struct engine *engine);

/* What the committed tokens of a session say: an end that was reached but not written down, because the process died in between.
 * Its stop strings are matched as far as they are. */
enum session_end pass_replay_text(struct engine *engine, struct engine_session *s);
