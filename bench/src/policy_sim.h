/*
 * outrider-bench policy: sessions whose cost and acceptance are known, decoded under every policy
 * for K, in seconds and without a model. Our policies run as they are served: the controller reads
 * iteration records and writes the policy page (services/policy-controller); what peers do is
 * written from their public descriptions (policy_peers.c).
 *
 * A text is fixed before a policy sees it: which drafts a drafter has at which position, how sure
 * it is of them, and how many would be accepted. So all policies decode the same tokens, and the
 * best that hindsight could have done can be computed, or what it could not have done better
 * (policy_hindsight.c).
 */
#pragma once

#include "services/policy-controller/controller.h"

#include <jansson.h>

enum { SIM_KNOTS = 40, SIM_NAME = 48, SIM_STATES = 4, SIM_POLICIES = 32 };

/* What a pass over n tokens costs, T(n) / T(1): linear between knots and behind the last one. */
struct sim_curve {
	char name[SIM_NAME];
	const char *source; /* where the figures are from */
	double base_ms; /* T(1) */
	double draft_fixed, draft_step; /* wait for a draft, in T(1): once, and per drafted token */
	uint32_t n_knots;
	struct {
		double n, cost, experts; /* experts: distinct ones; 0 = unknown */
	} knots[SIM_KNOTS];
};

/* How a drafter does on a text: phases, each with a mean acceptance of a drafted token and a mean
 * length. */
struct sim_process {
	char name[SIM_NAME];
	const char *source;
	uint32_t n_states;
	struct {
		double acceptance, tokens;
	} states[SIM_STATES];
	double match; /* share of positions where the drafter has anything */
	double spread; /* of acceptance from token to token: 0 all equal, 1 either surely right or surely wrong */
	bool informed; /* the drafter's confidence follows that spread */
	double distortion; /* of that confidence: odds^distortion; 1 = calibrated */
	const char *
		recorded; /* instead of all this: prompts of a file of recorded outputs whose id begins so */
	const struct sim_journal *journal; /* or the sessions of a journal; borrowed */
};

/* From position x, LIMIT_DRAFT_DEPTH tokens at most: drafts there are, how many of them in a row are
 * right, confidences. */
struct sim_point {
	uint8_t available, run;
	float confidence[LIMIT_DRAFT_DEPTH];
};

struct sim_text {
	uint32_t n;
	struct sim_point *points; /* [n] */
};

/* policy_curves.c. Built-in curves by name, a file of `outrider-bench model --format json` by its
 * path (contains a '/' or ends in .json), a journal of outrider-policy (ends in .journal), "all" is not known here.
 * -ENOENT, -EINVAL. */
extern const char *const sim_curve_names[]; /* ended by NULL */
int sim_curve_find(const char *name, struct sim_curve *out, struct error *err);
double sim_curve_cost(const struct sim_curve *curve, double n);
/* Distinct experts of a pass over n tokens, all layers; 0 = unknown. */
uint32_t sim_curve_experts(const struct sim_curve *curve, double n);

/* policy_journal.c: sessions that were served, from the journal of outrider-policy (names that end in .journal).
 * What was drafted and accepted, and how sure the drafter was, is as it was; where nothing had been drafted, tokens are drawn
 * with the acceptance that the session had there, and with the confidences that right and wrong ones had. */
struct sim_journal;
bool sim_is_journal(const char *name);
int sim_journal_open(const char *path, struct sim_journal **out, struct error *err);
void sim_journal_close(struct sim_journal **journal);
/* The number-th session, over and over, each time with other draws; sim_text_exit frees it. */
int sim_journal_text(const struct sim_journal *journal, uint64_t number, struct sim_text *text,
	struct error *err);
/* What passes of one session took, by their tokens, and what its drafts did. */
int sim_journal_curve(const struct sim_journal *journal, struct sim_curve *out, struct error *err);

/* policy_texts.c */
extern const struct sim_process sim_processes[]; /* ended by an empty name */
const struct sim_process *sim_process_find(const char *name);
/* All their names, by commas. */
void sim_process_list(char *out, size_t bytes);
/* A process with phases, confidences and cost of drafting drawn at random; the name is the seed. */
void sim_process_random(uint64_t seed, struct sim_process *out);
/* A text of up to n tokens (a recorded one has its own length). sim_text_exit frees it. */
int sim_text_make(struct sim_text *text, const struct sim_process *process, const char *file,
	uint32_t n, uint64_t seed, struct error *err);
void sim_text_exit(struct sim_text *text);

/* What chooses K. One of these is made per policy and cell and sees its sessions one after another
 * (or side by side). */
struct sim_driver {
	void *state;
	void (*choose)(void *state, uint32_t slot, uint64_t uid, uint32_t sessions,
		struct policy_session *out);
	void (*record)(void *state, const struct iteration_record *record);
	void (*close)(void *state);
	bool per_token; /* the cut is on each token's confidence, not on their product */
};
/* policy_peers.c. "sglang", "vllm", "llama.cpp", a policy of the controller with settings
 * applied to it, or "cascade-published": cascade without what Outrider adds to the paper's. */
int sim_driver_open(struct sim_driver *driver, const char *policy, const struct settings *settings,
	struct error *err);

struct sim_options {
	uint32_t tokens, batch;
	uint32_t
		lag; /* passes that are begun between the one of a record and the first that knows it */
	/* Tokens at K = 0 from one draft that is kept back to the next, where the drafter follows (drafter/foresight.h); 0: none are. */
	uint32_t foresight;
	double noise; /* standard deviation of ln time */
	uint64_t seed;
};

struct sim_total {
	double ms, tokens, iterations, k, drafted;
	double controller_ns; /* CPU time of the policy */
};

/* policy_run.c. Decodes `sessions` texts side by side, until one is done; uid is the first of as
 * many. Adds to *total. */
void sim_run(struct sim_driver *driver, const struct sim_curve *curve,
	const struct sim_options *options, const struct sim_text *texts, uint32_t sessions,
	uint64_t uid, struct sim_total *total);
/* policy_hindsight.c. The least time in ms in which one session can decode the text with any K up to k_max at each
 * position, without noise. */
double sim_optimum_ms(const struct sim_curve *curve, const struct sim_text *text, uint32_t k_max);
/* Of n texts side by side, until one is done: a time per token in ms that none goes below, whatever K each has at each
 * position, without noise. 0: no memory. */
double sim_bound_ms(
	const struct sim_curve *curve, const struct sim_text *texts, uint32_t n, uint32_t k_max);

/* policy_report.c: figures of a cell. */
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
	double *optimum_ms; /* [n_sessions]; the best in hindsight */
	bool bound; /* or below it: sessions side by side */
};
/* rows must have static:0. */
json_t *sim_cell_json(const struct sim_cell *cell);
/* All cells together, each weighing the same. */
json_t *sim_mix_json(const struct sim_cell *cells, size_t n);
void sim_report_text(const json_t *report, FILE *to);
/* policy_published.c. The paper's figures beside the simulator's. in_place: the policy that stands in for cascade, which
 * shows what the comparison can tell apart; NULL: cascade itself. NULL with *err. */
json_t *sim_published(const struct sim_options *options, uint32_t sessions,
	const struct settings *settings, const char *in_place, struct error *err);
