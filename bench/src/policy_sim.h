/*
 * outrider-bench policy: sessions whose cost and acceptance are known, decoded under every policy
 * for K, in seconds and without a model. Our policies run as they do in service: the controller
 * reads iteration records and writes the policy page (services/policy-controller). The policies of
 * other engines are written after their public descriptions (policy_peers.c).
 *
 * A text is fixed before a policy sees it: which drafts a drafter has at which position, with which
 * confidence, and how many would be accepted. So all policies decode the same tokens, and it is
 * possible to compute the best result in hindsight, or a bound for it (policy_hindsight.c).
 */
#pragma once

#include "services/policy-controller/controller.h"

#include <jansson.h>

enum { SIM_KNOTS = 40, SIM_NAME = 48, SIM_STATES = 4, SIM_POLICIES = 32 };

/* The cost of a pass over n tokens, T(n) / T(1): linear between knots and beyond the last one. */
struct sim_curve {
	char name[SIM_NAME];
	const char *source; /* where the figures come from */
	double base_ms; /* T(1) */
	/* the wait for a draft, in units of T(1): a fixed part, and a part for each drafted token
	 */
	double draft_fixed, draft_step;
	uint32_t n_knots;
	struct {
		double n, cost, experts; /* experts: distinct ones; 0 = unknown */
	} knots[SIM_KNOTS];
};

/* How well a drafter does on a text: phases, each with a mean acceptance of drafted tokens and a
 * mean length. */
struct sim_process {
	char name[SIM_NAME];
	const char *source;
	uint32_t n_states;
	struct {
		double acceptance, tokens;
	} states[SIM_STATES];
	double match; /* share of positions where the drafter has a draft */
	/* of acceptance from token to token: 0: all are equal, 1: each is either certainly right or
	 * certainly wrong */
	double spread;
	bool informed; /* the drafter's confidence follows that spread */
	double distortion; /* of that confidence: odds^distortion; 1 = calibrated */
	/* instead of all this: the prompts of a file of recorded outputs whose ids begin with this
	 */
	const char *recorded;
	const struct sim_journal *journal; /* or the sessions of a journal; borrowed */
};

/* A draft at position x, of at most LIMIT_DRAFT_DEPTH tokens: how many there are, how many from the
 * first on are right, and their confidences. */
struct sim_point {
	uint8_t available, run;
	float confidence[LIMIT_DRAFT_DEPTH];
};

struct sim_text {
	uint32_t n;
	struct sim_point *points; /* [n] */
};

/* policy_curves.c. name: a built-in curve; the path of a file of `outrider-bench model --format
 * json` (contains a '/' or ends in .json); or a journal of outrider-policy (ends in .journal).
 * "all" is not handled here. -ENOENT, -EINVAL. */
extern const char *const sim_curve_names[]; /* the last one is NULL */
int sim_curve_find(const char *name, struct sim_curve *out, struct error *err);
double sim_curve_cost(const struct sim_curve *curve, double n);
/* Distinct experts in all layers for a pass over n tokens; 0 = unknown. */
uint32_t sim_curve_experts(const struct sim_curve *curve, double n);

/* policy_journal.c: sessions that were served, from a journal of outrider-policy (names that end in
 * .journal). Drafts, acceptance and confidences are as recorded. Where nothing was drafted, tokens
 * are drawn with the acceptance that the session had there, and with the confidences of its right
 * and wrong tokens. */
struct sim_journal;
bool sim_is_journal(const char *name);
int sim_journal_open(const char *path, struct sim_journal **out, struct error *err);
void sim_journal_close(struct sim_journal **journal);
/* The text of the number-th session. Numbers beyond the last begin again, with other draws;
 * sim_text_exit frees the text. */
int sim_journal_text(const struct sim_journal *journal, uint64_t number, struct sim_text *text,
	struct error *err);
/* The times of passes of one session by their number of tokens, and how its drafts did. */
int sim_journal_curve(const struct sim_journal *journal, struct sim_curve *out, struct error *err);

/* policy_texts.c */
extern const struct sim_process sim_processes[]; /* the last one has an empty name */
const struct sim_process *sim_process_find(const char *name);
/* All names, separated by commas. */
void sim_process_list(char *out, size_t bytes);
/* A process whose phases, confidences and cost of drafting are random; the name holds the seed. */
void sim_process_random(uint64_t seed, struct sim_process *out);
/* A text of up to n tokens (a recorded one has its own length). sim_text_exit frees it. */
int sim_text_make(struct sim_text *text, const struct sim_process *process, const char *file,
	uint32_t n, uint64_t seed, struct error *err);
void sim_text_exit(struct sim_text *text);

/* What chooses K. One is made per policy and cell; it sees the sessions of the cell one after
 * another (or side by side). */
struct sim_driver {
	void *state;
	void (*choose)(void *state, uint32_t slot, uint64_t uid, uint32_t sessions,
		struct policy_session *out);
	void (*record)(void *state, const struct iteration_record *record);
	void (*close)(void *state);
	bool per_token; /* the cut is at each token's confidence, not at their product */
};
/* policy_peers.c. policy: "sglang", "vllm", "llama.cpp", a policy of the controller with settings
 * applied to it, or "cascade-published": cascade as in the paper, without Outrider's additions. */
int sim_driver_open(struct sim_driver *driver, const char *policy, const struct settings *settings,
	struct error *err);

struct sim_options {
	uint32_t tokens, batch;
	/* how many passes begin after the one of a record before the first that knows the record */
	uint32_t lag;
	/* With foresight: how many tokens at K = 0 lie between two drafts that are compared but not
	 * sent, where the drafter follows (drafter/foresight.h); 0: no foresight. */
	uint32_t foresight;
	double noise; /* standard deviation of ln time */
	uint64_t seed;
};

struct sim_total {
	double ms, tokens, iterations, k, drafted;
	double controller_ns; /* CPU time that the policy used */
};

/* policy_run.c. Decodes `sessions` texts side by side until the first of them ends; their uids
 * begin with uid. Adds to *total. */
void sim_run(struct sim_driver *driver, const struct sim_curve *curve,
	const struct sim_options *options, const struct sim_text *texts, uint32_t sessions,
	uint64_t uid, struct sim_total *total);
/* policy_hindsight.c. The least time in ms in which one session can decode the text, with any K up
 * to k_max at each position, without noise. */
double sim_optimum_ms(const struct sim_curve *curve, const struct sim_text *text, uint32_t k_max);
/* A lower bound, in ms per token, for n texts decoded side by side until the first ends, whatever K
 * each has at each position, without noise. 0: memory was exhausted. */
double sim_bound_ms(
	const struct sim_curve *curve, const struct sim_text *texts, uint32_t n, uint32_t k_max);

/* policy_report.c: the figures of a cell. */
struct sim_row {
	char policy[SIM_NAME];
	struct sim_total total;
	double *session_ms; /* [n_sessions] */
};
struct sim_cell {
	char name[2 * SIM_NAME + 2];
	const char *curve_source, *process_source;
	uint32_t n_sessions, n_rows;
	struct sim_row rows[SIM_POLICIES];
	double *optimum_ms; /* [n_sessions] the best time in hindsight */
	bool bound; /* optimum_ms is a lower bound instead: the sessions run side by side */
};
/* rows must include static:0. */
json_t *sim_cell_json(const struct sim_cell *cell);
/* The mean over all cells, with equal weights. */
json_t *sim_mix_json(const struct sim_cell *cells, size_t n);
void sim_report_text(const json_t *report, FILE *to);
/* policy_published.c. The paper's figures next to the simulator's. in_place: a policy that takes
 * the place of cascade, to show what the comparison can distinguish; NULL: cascade itself. NULL
 * with *err. */
json_t *sim_published(const struct sim_options *options, uint32_t sessions,
	const struct settings *settings, const char *in_place, struct error *err);
