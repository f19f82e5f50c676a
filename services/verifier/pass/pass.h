/*
 * One pass of the model over what the sessions have to be computed next, with everything that lives
 * as long as the pass. A pass goes through its steps in one direction: plan, draft, select, share,
 * build, run, accept, commit, report. pass_run (pass.c) calls them in this order; each step is in the file
 * of its name. A step reads what earlier steps wrote into the parts, and never changes it. Engine
 * thread.
 */
#pragma once

#include "services/verifier/pass/drafts.h"
#include "services/verifier/pass/session.h"
#include "shared/model/pass/experts.h"
#include "shared/model/pass/forward.h"
#include "kernels/pick.h"
#include "shared/spec/accept.h"

struct engine;

/* One session's part of a pass. */
struct pass_part {
	struct engine_session *session;
	/* Set by plan. */
	uint32_t n_tokens; /* committed when the pass began */
	uint32_t n; /* how many of them this pass computes */
	bool emits; /* these include the newest token, whose logits give the next one */
	bool decodes; /* they are the newest token alone, so drafts may follow it */
	/* Set by draft. */
	struct draft_want want; /* k 0: no draft */
	enum drafts_state wish; /* the state of that draft */
	uint32_t group; /* the group of its draft (pace.h), when the session waits for one */
	bool sits_out; /* its draft is late, and expected for the next pass */
	bool masked; /* it drafts by masks (masks.h): no drafter is asked */
	/* Between share and build: masks behind its newest token and each of its drafts. */
	uint8_t masks[LIMIT_DRAFT_DEPTH + 1];
	/* Set by build: their number, and the first of their rows, which lie behind those of all
	 * parts. */
	uint32_t n_masks, mask_row;
	/* Set by build. */
	const struct draft_reply *draft; /* checked; NULL: there is none, or it is late */
	uint32_t n_drafts; /* its nodes: the rows behind the newest committed token */
	uint32_t row; /* its first row of the batch */
	bool budgeted; /* its rows have an expert budget */
	/* index in picks of its last committed token, if any of its rows is picked */
	uint32_t pick;
	bool put_out; /* another session took its KV pages after the plan was made */
	/* Set by accept. */
	struct accept_output out;
	uint32_t n_emitted; /* how many of out's tokens come before the end of the answer */
	enum session_end end; /* reached in this pass */
};

/* Whether the part yields tokens. For a finished answer only the records are made again. */
static inline bool part_accepts(const struct pass_part *part)
{
	return part->emits && part->session->end_before == SESSION_END_NONE;
}

struct pass {
	/* the largest pass that there is memory for; fixed at the start */
	struct forward_limits max;
	struct pass_part *parts; /* [LIMIT_SESSIONS]; after build only sessions that take part */
	uint32_t n_parts;
	/* Set by build: the batch, whose rows are one part after the other, and then all masks. */
	struct batch_token *batch; /* [max.n_batch] */
	uint32_t *cells; /* [max.n_batch] cells of the KV cache, one for each row */
	uint32_t n_batch;
	uint32_t n_prefill; /* how many of the rows are prompt tokens */
	/* The rows from which tokens are picked, in the batch's order. */
	struct pick_row *picks; /* [max.n_picks] */
	uint32_t n_picks;
	/* rows whose logits are kept, for drafts that are accepted by their logits */
	uint32_t n_kept;
	/* The expert budgets of parts, and how many rows the oracle ranks. */
	struct forward_budget *budgets; /* [max.n_budgets] */
	uint32_t n_budgets, n_oracle;
	/* For the part that is being built: the tokens that may follow its newest one and each of
	 * its drafts. */
	const uint64_t *allowed[LIMIT_DRAFT_NODES + 1];
	/* Set by run. */
	struct pick_result *picked; /* [max.n_picks] the results of picks */
	/* [max.n_picks][LIMIT_TOP_LOGPROBS] the likely tokens that picks ask for */
	struct token_logprob *likely;
	/* For the report. */
	uint64_t start_ns, drafted_ns, forward_ns, forwarded_ns;
	struct expert_source_stats experts_before;
};

/* Runs one pass for the sessions that can go on now. Returns how many took part; 0: there is
 * nothing to do. */
uint32_t pass_run(struct engine *engine);

/* The device, or what nothing can be computed without, is lost: no pass runs any more, and the front
 * hears why. Where the CPU goes on, sessions stay as they are, as if this process had been killed;
 * with device_lost = end those of a device end with the reason. */
void pass_lose_device(struct engine *engine, const struct error *err);

/* Before the first step: ends the sessions that are cancelled or out of time, and lets go of those
 * whose pages the front wants back. */
void pass_sweep(struct engine *engine, const struct pass *pass);
/* The steps. pass_plan returns the number of parts. */
uint32_t pass_plan(struct engine *engine, struct pass *pass);
void pass_draft(struct engine *engine, struct pass *pass);
/* Part of pass_draft, before drafts are asked for: distributes their budgets. */
void pass_share_budgets(struct engine *engine, struct pass *pass);
/* Between pass_draft and pass_share (select.h). */
void pass_select(struct engine *engine, struct pass *pass);
/* Behind pass_accept: learns what became of the drafts. */
void pass_select_learn(struct engine *engine, const struct pass *pass);
void pass_share(struct engine *engine, struct pass *pass);
/* Behind pass_share: the rows that drafts have left. */
uint32_t pass_room_left(const struct engine *engine, const struct pass *pass);
/* Returns how many parts are left: a session that gets no cells sits the pass out. */
uint32_t pass_build(struct engine *engine, struct pass *pass);
void pass_accept(struct engine *engine, struct pass *pass);
void pass_commit(struct engine *engine, struct pass *pass);
void pass_report(struct engine *engine, struct pass *pass);

/* Journals the committed tokens and wakes the front for them; from then on clients and the drafter
 * may see them. Does nothing when there are none. With a back end that runs asynchronously there is
 * time for it once the next pass has begun. Otherwise it comes right after the commit, so that the
 * front sends the tokens while this thread reports, plans and builds, and not while all threads are
 * busy with the next forward pass. Whatever depends on it calls it first: a message to the drafter,
 * the end of a session, a thread that goes to sleep. */
void pass_publish(struct engine *engine);

/* Recovers the state of a session's text from its committed tokens. Returns an end that was reached
 * but not written down, because the process died in between. Its stop strings are matched up to
 * where the tokens end. */
enum session_end pass_replay_text(struct engine *engine, struct engine_session *s);
