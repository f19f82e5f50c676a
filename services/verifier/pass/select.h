/*
 * The step "select": which nodes of the drafts that have come are verified, by the prices that the
 * policy gives (node_pick.h). The verifier decides this, because only here everything is known:
 * the candidates with what became of nodes like them, the experts that are resident, and what the
 * other rows of the pass need. Drafts that were drawn (maximal coupling) are left as they are: to
 * keep a token or not depending on which one was drawn would change the distribution of the answer.
 *
 * Which experts a node needs is estimated from where such tokens went before (expert_history.h). The
 * estimate learns from the passes with drafts, and from every eighth other one. Engine thread.
 */
#pragma once

#include "services/verifier/pass/node_chance.h"
#include "services/verifier/pass/node_pick.h"
#include "shared/model/arch/model.h"
#include "shared/spec/expert_history.h"
#include "shared/spec/session.h"

enum { SELECT_COUPLINGS = 2, SELECT_METHODS = 8 };
static_assert((int)SELECT_METHODS >= (int)DRAFT_METHODS, "each method has its chances");

struct select {
	struct expert_history history; /* n_layers 0: a dense model */
	struct pick pick;
	struct chance_record pool[SELECT_COUPLINGS][SELECT_METHODS];
	float chance[LIMIT_DRAFT_NODES];
	bool learns; /* what the rows of this pass are routed to */
	bool priced; /* a policy has given prices lately */
};

/* n_moe: layers with experts. */
int select_init(
	struct select *select, const struct model *model, uint32_t n_moe, struct error *err);
void select_exit(struct select *select);
