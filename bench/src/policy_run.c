/* Decodes texts under one policy. */
#include "bench/src/policy_sim.h"

#include "shared/base/clock.h"
#include "shared/base/rand.h"
#include "shared/spec/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAG_MAX = 64, SPIKE_EVERY = 200, FORESIGHT = 8 };

struct lane {
	const struct sim_text *text;
	uint32_t at; /* tokens decoded */
	uint32_t k, drafted, steps, accepted, emitted, decision, unfollowed;
	uint32_t kept; /* 1 + the position where the foresight draft begins; 0: there is none */
	struct policy_trial trial;
};

struct sim {
	struct sim_driver *driver;
	const struct sim_curve *curve;
	const struct sim_options *options;
	struct lane lanes[LIMIT_RUNNING];
	uint32_t n;
	uint64_t uid, pass;
	/* Records that the policy has not seen yet: it is `lag` passes behind. */
	struct iteration_record waiting[LAG_MAX + 1][LIMIT_RUNNING];
	uint32_t n_waiting[LAG_MAX + 1];
};

/* A drafter that cuts a draft has made the token that it cuts, too. */
static void draft(struct sim *sim, struct lane *lane, const struct policy_session *knobs)
{
	const struct sim_point *point = &lane->text->points[lane->at];
	uint32_t left = lane->text->n - lane->at - 1, n;
	lane->k = policy_next_k(knobs, &lane->trial);
	lane->decision = (uint32_t)knobs->decision;
	lane->unfollowed = lane->k == 0 && knobs->unfollowed;
	lane->k = lane->k < left ? lane->k : left;
	n = lane->k < point->available ? lane->k : point->available;
	lane->steps = n;
	if (sim->driver->per_token) {
		uint32_t i = 0;
		while (i < n && point->confidence[i] >= knobs->cut[i])
			i++;
		n = i;
	} else {
		n = policy_cut_path(knobs, point->confidence, n);
	}
	if (n < lane->steps)
		lane->steps = n + 1;
	lane->drafted = n;
	lane->accepted = n < point->run ? n : point->run;
	lane->emitted = lane->accepted + 1;
}

/* Compares the foresight draft once the result is certain; then begins another. */
static void foresee(const struct sim *sim, struct lane *lane, struct iteration_record *record)
{
	uint32_t every = sim->options->foresight;
	if (lane->k > 0)
		lane->kept = 0;
	if (every == 0 || lane->k > 0 || lane->unfollowed || lane->at % every != 0)
		return;
	uint32_t kept = lane->kept;
	if (kept > 0) {
		const struct sim_point *point = &lane->text->points[kept - 1];
		uint32_t n = point->available < FORESIGHT ? point->available : FORESIGHT;
		uint32_t right = point->run < n ? point->run : n;
		if (lane->at < kept - 1 + (right < n ? right + 1 : n))
			return;
		record->foreseen = FORESIGHT;
		record->foreseen_drafted = (uint8_t)n;
		record->foreseen_right = (uint8_t)right;
		record->foreseen_method = DRAFT_MODEL;
		policy_record_confidence(record, point->confidence, n);
	}
	lane->kept = lane->at + 1;
}

static struct iteration_record record_of(struct sim *sim, uint32_t index)
{
	struct lane *lane = &sim->lanes[index];
	struct iteration_record r = {
		.session = sim->uid + index,
		.iteration = sim->pass,
		.page = index,
		.n_context = lane->at + lane->emitted,
		.k = (uint8_t)lane->k,
		.depth = (uint8_t)lane->drafted,
		.drafted = (uint16_t)lane->drafted,
		.accepted = (uint8_t)lane->accepted,
		.emitted = (uint8_t)lane->emitted,
		.method = lane->drafted ? DRAFT_MODEL : DRAFT_NONE,
		.decision = lane->decision,
		.unfollowed = (uint8_t)lane->unfollowed,
	};
	const struct sim_point *point = &lane->text->points[lane->at];
	policy_record_confidence(&r, point->confidence, lane->drafted);
	foresee(sim, lane, &r);
	return r;
}

/* Log-normal noise, and from time to time a delayed pass. It is the same for every policy at the
 * same pass. */
static double noise(const struct sim *sim)
{
	uint64_t seed = sim->options->seed ^ sim->uid * UINT64_C(0x9E3779B97F4A7C15);
	double u = rand_uniform(seed, RAND_RESIDUAL, sim->pass, 0);
	double v = rand_uniform(seed, RAND_RESIDUAL, sim->pass, 1);
	double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
	bool spike = rand_uniform(seed, RAND_RESIDUAL, sim->pass, 2) * SPIKE_EVERY < 1;
	return exp(sim->options->noise * normal) * (spike && sim->options->noise > 0 ? 3 : 1);
}

static void deliver(struct sim *sim, struct sim_total *total)
{
	uint32_t slot = (uint32_t)(sim->pass % (sim->options->lag + 1));
	uint64_t start_ns = clock_thread_cpu_ns();
	for (uint32_t i = 0; i < sim->n_waiting[slot]; i++)
		sim->driver->record(sim->driver->state, &sim->waiting[slot][i]);
	total->controller_ns += (double)(clock_thread_cpu_ns() - start_ns);
	sim->n_waiting[slot] = 0;
}

/* A pass over all lanes. False when one is done: a service would start the next session in its
 * place, and the rest would be a smaller batch. */
static bool pass(struct sim *sim, struct sim_total *total)
{
	uint32_t live[LIMIT_RUNNING], n = 0, tokens = 0, steps = 0, asked = 0;
	for (uint32_t i = 0; i < sim->n; i++)
		if (sim->lanes[i].at < sim->lanes[i].text->n)
			live[n++] = i;
	if (n < sim->n)
		return false;
	deliver(sim, total);
	for (uint32_t i = 0; i < n; i++) {
		struct lane *lane = &sim->lanes[live[i]];
		struct policy_session knobs;
		sim->driver->choose(sim->driver->state, live[i], sim->uid + live[i], n, &knobs);
		draft(sim, lane, &knobs);
		tokens += 1 + lane->drafted;
		steps = lane->steps > steps ? lane->steps : steps;
		asked |= lane->k;
	}
	const struct sim_curve *c = sim->curve;
	double wait = asked ? c->draft_fixed + c->draft_step * steps : 0;
	double base_ns = c->base_ms * 1e6, factor = noise(sim);
	double verify_ns = base_ns * sim_curve_cost(c, tokens) * factor;
	double draft_ns = base_ns * wait * factor;
	uint32_t slot = (uint32_t)(sim->pass % (sim->options->lag + 1)); /* just delivered */
	for (uint32_t i = 0; i < n; i++) {
		struct lane *lane = &sim->lanes[live[i]];
		struct iteration_record r = record_of(sim, live[i]);
		r.batch_sessions = (uint16_t)n;
		r.batch_tokens = tokens;
		r.unique_experts = sim_curve_experts(c, tokens);
		r.draft_ns = (uint64_t)draft_ns;
		r.verify_ns = (uint64_t)verify_ns;
		r.iteration_ns = (uint64_t)(draft_ns + verify_ns);
		sim->waiting[slot][sim->n_waiting[slot]++] = r;
		lane->at += lane->emitted;
		total->tokens += lane->emitted;
		total->k += lane->k;
		total->drafted += lane->drafted;
		total->iterations++;
	}
	total->ms += (draft_ns + verify_ns) / 1e6;
	sim->pass++;
	return true;
}

void sim_run(struct sim_driver *driver, const struct sim_curve *curve,
	const struct sim_options *options, const struct sim_text *texts, uint32_t sessions,
	uint64_t uid, struct sim_total *total)
{
	struct sim *sim = calloc(1, sizeof(*sim));
	if (!sim)
		return;
	sim->driver = driver;
	sim->curve = curve;
	sim->options = options;
	sim->n = sessions;
	sim->uid = uid;
	sim->pass = uid << 20;
	for (uint32_t i = 0; i < sessions; i++)
		sim->lanes[i].text = &texts[i];
	while (pass(sim, total))
		;
	free(sim);
}
