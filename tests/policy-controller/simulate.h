/* A session whose cost and acceptance are known, for tests of policies: K goes in, an iteration
 * record comes out. */
#pragma once

#include "services/policy-controller/controller.h"

#include <stdlib.h>
#include <string.h>

/* A page and its ring in memory of one's own, which free takes back; ends: [n] of the ring. */
static inline void *page_make(struct policy_page **page, struct ring *ends[], int n)
{
	void *payload = aligned_alloc(CACHE_LINE, policy_bytes());
	memset(payload, 0, policy_bytes());
	policy_format(payload);
	for (int i = 0; i < n; i++)
		assert_int_equal(policy_attach(payload, policy_bytes(), page, ends[i], NULL), 0);
	return payload;
}

struct simulated {
	uint64_t uid, iteration;
	uint32_t page, n_context;
	uint32_t decision; /* that the next K was read with */
	double base_ms; /* time of an iteration at K = 0 */
	double token_cost; /* share of it that each drafted token adds */
	double etr[LIMIT_DRAFT_DEPTH + 1]; /* tokens per iteration at K */
	double owed; /* tokens not yet emitted: keeps the mean exact */
	uint32_t sessions;
	double jitter_ms; /* every fifth iteration takes this much longer */
};

/* The session pays: geometric acceptance p, cost per drafted token. */
static inline struct simulated simulated_make(uint64_t uid, uint32_t page, double p, double cost)
{
	struct simulated s = {.uid = uid,
		.page = page,
		.n_context = 1,
		.base_ms = 2,
		.token_cost = cost,
		.sessions = 1};
	double reach = 1;
	for (uint32_t k = 0; k <= LIMIT_DRAFT_DEPTH; k++) {
		s.etr[k] = (k ? s.etr[k - 1] : 0) + reach;
		reach *= p;
	}
	return s;
}

static inline double simulated_utility(const struct simulated *s, uint32_t k)
{
	return s->etr[k] / (1 + s->token_cost * k);
}

/* The K a perfect policy would choose: 0 when none pays. */
static inline uint32_t simulated_best_k(const struct simulated *s, uint32_t k_max)
{
	uint32_t best = 0;
	for (uint32_t k = 1; k <= k_max; k++)
		if (simulated_utility(s, k) > simulated_utility(s, best))
			best = k;
	return best;
}

/* A record that is looked at when it comes. */
static inline void controller_take(struct controller *c, const struct iteration_record *record)
{
	controller_record(c, record);
	controller_settle(c);
}

static inline struct iteration_record simulated_step(struct simulated *s, uint32_t k)
{
	s->owed += s->etr[k];
	uint32_t emitted = (uint32_t)s->owed;
	if (emitted < 1)
		emitted = 1;
	if (emitted > k + 1)
		emitted = k + 1;
	s->owed -= emitted;
	s->n_context += emitted;
	double ms = s->base_ms * (1 + s->token_cost * k);
	if (++s->iteration % 5 == 0)
		ms += s->jitter_ms;
	return (struct iteration_record){
		.session = s->uid,
		.iteration = s->iteration,
		.finished_ns = s->iteration * 1000000,
		.page = s->page,
		.n_context = s->n_context,
		.k = (uint8_t)k,
		.decision = s->decision,
		.depth = (uint8_t)k,
		.drafted = (uint16_t)k,
		.accepted = (uint8_t)(emitted - 1),
		.emitted = (uint8_t)emitted,
		.method = k ? 3 : 1, /* a draft model, none */
		.batch_sessions = (uint16_t)s->sessions,
		.batch_tokens = s->sessions * (k + 1),
		.iteration_ns = (uint64_t)(ms * 1e6),
	};
}
