/*
 * The step "select": which nodes of the drafts that have come are verified, by the prices that the
 * policy gives (node_pick.h). The verifier decides this, because only here everything is known:
 * the candidates with what became of nodes like them, the experts that are resident, and what the
 * other rows of the pass need. Drafts that were drawn (maximal coupling) are left as they are: to
 * keep a token or not depending on which one was drawn would change the distribution of the answer.
 *
 * Which experts a node needs is estimated from where such tokens went before (expert_history.h), but
 * in the layers for which the draft itself says it (draft_reply.needs). The
 * estimate learns from the passes with drafts, and from every eighth other one. Engine thread; any
 * thread may read what was judged last (select_read).
 */
#pragma once

#include "services/verifier/pass/node_chance.h"
#include "services/verifier/pass/node_pick.h"
#include "shared/ipc/page.h"
#include "shared/model/arch/model.h"
#include "shared/spec/expert_history.h"
#include "shared/spec/session.h"

enum { SELECT_COUPLINGS = 2, SELECT_METHODS = 9 };
static_assert((int)SELECT_METHODS >= (int)DRAFT_METHODS, "each method has its chances");

/* The last draft of a session that was judged, for display. */
struct select_view {
	uint64_t session, iteration;
	struct policy_prices prices;
	uint32_t n, method;
	struct select_view_node {
		int32_t token;
		int16_t parent;
		float confidence;
		struct pick_node judged;
	} node[LIMIT_DRAFT_NODES];
	uint32_t pad;
};
static_assert(sizeof(struct select_view) % 8 == 0, "page_read copies 8-byte words");

struct select_page {
	struct page_lock lock;
	uint32_t pad;
	struct select_view view;
};

struct select {
	struct expert_history history; /* n_layers 0: a dense model */
	struct pick pick;
	uint64_t *guess; /* [pick.n_words] scratch */
	struct chance_record pool[SELECT_COUPLINGS][SELECT_METHODS];
	float chance[LIMIT_DRAFT_NODES];
	bool learns; /* what the rows of this pass are routed to */
	bool priced; /* a policy has given prices lately */
	bool asked; /* the drafter was asked what the tokens of a draft need, in this pass */
	struct select_view scratch;
	struct select_page *pages; /* [LIMIT_SESSIONS]; one that is not written takes no memory */
};

/* n_moe: layers with experts. */
int select_init(
	struct select *select, const struct model *model, uint32_t n_moe, struct error *err);
void select_exit(struct select *select);
/* Copies what was judged of the session's last draft. False: none was, or it is being written all
 * the time. page: the session's. Any thread. */
bool select_read(const struct select *select, uint32_t page, uint64_t uid, struct select_view *out);

struct engine;
struct engine_session;
/* The chance of each node of the session's draft that the path to it is accepted (node_chance.h). */
void select_chances(struct engine *engine, const struct engine_session *s,
	const struct draft_reply *draft, float *chance);
