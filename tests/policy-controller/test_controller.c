/* The controller: what it believes, what it publishes, what survives it, what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "services/policy-controller/handlers.h"
#include "services/policy-controller/published/cascade.h"
#include "services/policy-controller/yield/yield.h"
#include "shared/ipc/daemon_private.h"
#include "shared/ipc/knobs_private.h"
#include "tests/policy-controller/simulate.h"
#include "tests/until.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
	void *payload;
	struct policy_page *page;
	struct ring consumer, producer;
	struct controller controller;
};

static struct settings defaults(void)
{
	struct settings settings;
	config_defaults(settings_keys, &settings);
	/* Whose decisions are known by the iteration; test_yield has the other. */
	strcpy(settings.policy, "cascade");
	return settings;
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct settings settings = defaults();
	f->payload = page_make(&f->page, (struct ring *[]){&f->consumer, &f->producer}, 2);
	controller_init(&f->controller, f->page, &settings);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	free(f->payload);
	free(f);
	return 0;
}

/* Iterations of a verifier that reads K from the page, as the real one does. */
static void serve(struct fixture *f, struct simulated *sim, int n)
{
	for (int i = 0; i < n; i++) {
		struct policy_session knobs;
		policy_lookup(f->page, sim->page, sim->uid, &knobs);
		sim->decision = (uint32_t)knobs.decision;
		struct iteration_record r = simulated_step(sim, knobs.k);
		controller_take(&f->controller, &r);
	}
}

static void new_sessions_begin_at_k_zero_under_cascade(void **state)
{
	struct fixture *f = *state;
	struct policy_session knobs;
	assert_false(policy_lookup(f->page, 0, 99, &knobs));
	assert_int_equal(knobs.k, 0);
	assert_string_equal(f->page->defaults.name, "cascade");
}

static void a_session_that_pays_gets_its_best_k(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 3, 0.85, 0.15);
	serve(f, &sim, 400);
	struct policy_session knobs;
	assert_true(policy_lookup(f->page, 3, 5, &knobs));
	assert_in_range(knobs.k, simulated_best_k(&sim, 7) - 2, simulated_best_k(&sim, 7) + 2);
	assert_true(knobs.utility > 1.5f);
	assert_true(knobs.acceptance > 0.4f && knobs.acceptance < 0.95f);
	assert_true(knobs.etr > 2);
}

static void sessions_are_judged_apart(void **state)
{
	struct fixture *f = *state;
	struct simulated good = simulated_make(5, 0, 0.9, 0.1),
			 bad = simulated_make(6, 1, 0.05, 0.5);
	for (int i = 0; i < 300; i++) {
		serve(f, &good, 1);
		serve(f, &bad, 1);
	}
	assert_true(cascade_of(&f->controller.sessions[0])->best_k >= 3);
	assert_true(f->controller.sessions[1].k <= 1);
	/* Another session in the same slot starts from nothing. */
	struct simulated next = simulated_make(8, 1, 0.9, 0.1);
	serve(f, &next, 1);
	assert_int_equal(f->controller.sessions[1].uid, 8);
	assert_int_equal(f->controller.sessions[1].k, 0);
	assert_int_equal(f->controller.sessions[1].iterations, 1);
}

/* All of the results that cascade has kept since there were so many: as they truly are. */
static void check_utilities(const struct fixture *f, const struct simulated *sim, uint32_t since)
{
	const struct cascade *c = cascade_of(&f->controller.sessions[0]);
	for (; since < c->n_history; since++) {
		const struct cascade_result *last = &c->history[since % CASCADE_HISTORY];
		double is = simulated_utility(sim, last->k);
		assert_true(fabs((double)last->utility / is - 1) < 0.01);
	}
}

/* Whatever is going on when a stretch of records is lost, in which an iteration came to take twice as long. */
static void lost_records_are_counted_and_utility_is_not_skewed(void **state)
{
	struct fixture *f = *state;
	static const struct {
		double accepted, cost;
	} sessions[] = {{1, 0.5}, {0, 0.3}};
	for (uint32_t n = 0; n < 2 * 160; n++) {
		struct settings settings = defaults();
		controller_init(&f->controller, f->page, &settings);
		struct simulated sim =
			simulated_make(1 + n, 0, sessions[n % 2].accepted, sessions[n % 2].cost);
		const struct cascade *c = cascade_of(&f->controller.sessions[0]);
		serve(f, &sim, 1 + (int)n / 2);
		check_utilities(f, &sim, 0);
		uint64_t clock = c->clock;
		uint32_t kept = c->n_history;
		sim.iteration += 5000;
		sim.n_context += 5000;
		sim.base_ms *= 2;
		serve(f, &sim, 1);
		/* At least as old as it is. */
		assert_int_equal(c->clock, clock + 5001);
		assert_int_equal(f->controller.sessions[0].missing, 5000);
		for (uint32_t i = 0; i < 200; i++) {
			check_utilities(f, &sim, kept);
			kept = c->n_history;
			serve(f, &sim, 1);
		}
		assert_true(kept >= 2);
	}
}

static void a_knob_of_cascade_is_in_force_at_once(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.5, 0.1);
	const struct policy_state *s = &f->controller.sessions[0];
	struct settings settings = defaults();
	settings.set = 4096;
	settings.set_max = 65536;
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	for (int i = 0; i < 30 || s->phase != PHASE_SET; i++)
		serve(f, &sim, 1);
	uint64_t decided = f->controller.n_decisions;
	struct policy_session knobs;
	uint32_t k = s->k;
	settings.set = 16;
	settings.threshold = 2;
	assert_int_equal(controller_set(&f->controller, &settings, 0, 77, NULL), 0);
	assert_true(policy_lookup(f->page, 0, 5, &knobs));
	assert_int_equal(knobs.k, 0);
	assert_int_equal(knobs.trial_n, 0);
	assert_int_equal(f->controller.n_decisions, decided + 1);
	const struct decision *d = controller_decision(&f->controller, decided);
	assert_non_null(strstr(d->reason, "the threshold is 2 now"));
	assert_int_equal(d->k_old, k);
	assert_int_equal(d->k_new, 0);
	assert_int_equal(d->time_ns, 77);
	assert_int_equal(knobs.decision, d->number);
}

static void a_drafter_that_rests_follows_when_it_may_not(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0, 0.5);
	struct policy_session knobs;
	serve(f, &sim, 60);
	assert_true(policy_lookup(f->page, 0, 5, &knobs));
	assert_int_equal(knobs.unfollowed, 1);
	assert_int_equal(f->page->defaults.unfollowed, 1);
	struct settings settings = defaults();
	settings.rest_at_zero = false;
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	for (int i = 0; i < 200; i++) {
		assert_true(policy_lookup(f->page, 0, 5, &knobs));
		assert_int_equal(knobs.unfollowed, 0);
		assert_int_equal(f->page->defaults.unfollowed, 0);
		serve(f, &sim, 1);
	}
}

static void the_age_of_a_baseline_is_in_passes_not_in_records(void **state)
{
	struct fixture *f = *state;
	struct settings settings = defaults();
	strcpy(settings.policy, "static:2");
	controller_init(&f->controller, f->page, &settings);
	for (uint32_t pass = 1; pass <= 12; pass++)
		for (uint32_t i = 0; i < 4; i++) {
			struct iteration_record r = {.session = 1 + i,
				.page = i,
				.iteration = pass + (pass > 6 ? 20 : 0),
				.k = pass > 1 ? 2 : 0,
				.emitted = 1,
				.batch_sessions = 4,
				.batch_tokens = pass > 1 ? 12 : 4,
				.iteration_ns = 1000000};
			controller_take(&f->controller, &r);
		}
	/* Eleven seen, twenty lost. */
	assert_int_equal(f->controller.sessions[0].base_age, 31);
	assert_int_equal(f->controller.sessions[3].base_age, 31);
}

/* Of a batch of which the session had no part, and of passes that measured no K, nothing was lost. */
static void passes_without_the_session_are_not_lost(void **state)
{
	struct fixture *f = *state;
	struct simulated one = simulated_make(5, 0, 0.9, 0.1), two = simulated_make(6, 1, 0.9, 0.1);
	serve(f, &one, 6);
	assert_int_equal(f->controller.sessions[0].phase, PHASE_TEST);
	uint32_t left = cascade_of(&f->controller.sessions[0])->left;
	two.iteration = one.iteration;
	serve(f, &two, 10);
	one.iteration = two.iteration;
	struct iteration_record prompt = simulated_step(&one, 0);
	prompt.prefill_tokens = 9;
	controller_take(&f->controller, &prompt);
	serve(f, &one, 1);
	assert_int_equal(f->controller.sessions[0].missing, 0);
	assert_int_equal(cascade_of(&f->controller.sessions[0])->left, left - 1);
	assert_false(cascade_of(&f->controller.sessions[0])->gap);
	assert_int_equal(cascade_of(&f->controller.sessions[0])->clock, 6 + 12);
}

static void a_session_that_comes_back_on_another_page_is_there_once(void **state)
{
	struct fixture *f = *state;
	struct simulated first = simulated_make(5, 1, 0.9, 0.1),
			 again = simulated_make(5, 9, 0.9, 0.1);
	struct settings settings = defaults();
	struct policy_session knobs;
	serve(f, &first, 20);
	/* Seen, and not published yet. */
	struct iteration_record late = simulated_step(&first, 0);
	assert_non_null(controller_record(&f->controller, &late));
	serve(f, &again, 1);
	assert_int_equal(f->controller.sessions[1].uid, 0);
	assert_int_equal(controller_session(&f->controller, 5)->slot, 9);
	strcpy(settings.policy, "static:3");
	assert_int_equal(controller_set(&f->controller, &settings, 5, 1, NULL), 0);
	assert_true(policy_lookup(f->page, 9, 5, &knobs));
	assert_int_equal(knobs.k, 3);
	/* And the place is free for another. */
	struct simulated other = simulated_make(6, 1, 0.9, 0.1);
	serve(f, &other, 1);
	assert_int_equal(f->controller.sessions[1].uid, 6);
	assert_int_equal(f->controller.sessions[1].iterations, 1);
	assert_int_equal(controller_session(&f->controller, 5)->slot, 9);
}

static void prefill_and_fixed_k_measure_nothing(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.5, 0.1);
	for (int i = 0; i < 50; i++) {
		struct iteration_record r = simulated_step(&sim, 0);
		if (i % 2)
			r.prefill_tokens = 1;
		else
			r.k_fixed = 1;
		controller_take(&f->controller, &r);
	}
	assert_int_equal(f->controller.sessions[0].phase, PHASE_BASELINE);
	assert_int_equal(cascade_of(&f->controller.sessions[0])->n_samples, 0);
	assert_true(f->page->sessions[0].knobs.etr > 0); /* shown all the same */
}

static void records_out_of_range_are_counted_and_dropped(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.5, 0.1);
	struct iteration_record good = simulated_step(&sim, 0), bad[15];
	for (int i = 0; i < 15; i++)
		bad[i] = good;
	bad[0].page = LIMIT_SESSIONS;
	bad[1].k = 200;
	bad[2].drafted = 1;
	bad[3].accepted = 1;
	bad[4].emitted = 3;
	bad[5].batch_sessions = 65535;
	bad[6].session = 0;
	bad[7].iteration_ns = UINT64_MAX;
	bad[8].foreseen = LIMIT_DRAFT_DEPTH + 1;
	bad[9].foreseen = bad[10].foreseen = bad[11].foreseen = 3;
	bad[9].foreseen_drafted = 4;
	bad[10].foreseen_right = 1;
	bad[11].k = 1;
	/* A path without nodes, one that is longer than its draft, and more nodes than a draft can have. */
	bad[12].k = bad[12].depth = 2;
	bad[13].k = bad[13].depth = 2;
	bad[13].drafted = 1;
	bad[14].k = bad[14].depth = 2;
	bad[14].drafted = LIMIT_DRAFT_NODES + 1;
	for (int i = 0; i < 15; i++)
		controller_take(&f->controller, &bad[i]);
	assert_int_equal(f->controller.n_refused, 15);
	assert_int_equal(f->controller.n_records, 0);
	for (int i = 0; i < LIMIT_SESSIONS; i++)
		assert_int_equal(f->controller.sessions[i].uid, 0);
}

static void a_successor_goes_on_from_the_pages_k(void **state)
{
	struct fixture *f = *state;
	struct settings settings = defaults();
	struct simulated sim = simulated_make(5, 2, 0.9, 0.1);
	serve(f, &sim, 200);
	while (f->controller.sessions[2].phase != PHASE_SET)
		serve(f, &sim, 1);
	uint32_t k = f->page->sessions[2].knobs.k;
	uint64_t decisions = f->page->sessions[2].knobs.decision;
	assert_true(k > 3);
	/* A writer that died inside leaves an odd sequence. */
	atomic_store(&f->page->sessions[2].lock.sequence,
		atomic_load(&f->page->sessions[2].lock.sequence) | 1);
	struct controller *successor = calloc(1, sizeof(*successor));
	controller_init(successor, f->page, &settings);
	struct policy_session knobs;
	assert_true(policy_lookup(f->page, 2, 5, &knobs));
	assert_int_equal(knobs.k, k);
	/* It has decided nothing yet: who asks for all decisions is not told of empty ones, over and over. */
	assert_null(controller_decision(successor, 0));
	struct iteration_record r = simulated_step(&sim, k);
	controller_take(successor, &r);
	for (int i = 0; i < 4; i++) {
		r = simulated_step(&sim, 0);
		controller_take(successor, &r);
	}
	assert_int_equal(successor->sessions[2].phase, PHASE_TEST);
	assert_int_equal(successor->sessions[2].k, k);
	assert_true(f->page->sessions[2].knobs.decision > decisions);
	const struct decision *first = controller_decision(successor, 0);
	assert_non_null(first);
	assert_int_equal(first->number, decisions + 1);
	free(successor);
}

static void decisions_are_kept_with_their_reasons_and_bounded(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.9, 0.1);
	serve(f, &sim, 30000);
	assert_true(f->controller.n_decisions > CONTROLLER_DECISIONS);
	const struct decision *d = controller_decision(&f->controller, 0);
	assert_int_equal(d->number, f->controller.n_decisions - CONTROLLER_DECISIONS + 1);
	uint64_t after = 0, n = 0;
	while ((d = controller_decision(&f->controller, after)) != NULL) {
		assert_true(d->number > after);
		assert_true(strpbrk(d->reason, "0123456789") != NULL);
		after = d->number;
		n++;
	}
	assert_int_equal(n, CONTROLLER_DECISIONS);
	assert_int_equal(after, f->controller.n_decisions);
}

static void a_decision_has_the_time_at_which_it_was_made(void **state)
{
	struct fixture *f = *state;
	struct settings settings = defaults();
	struct simulated sim = simulated_make(5, 0, 0.9, 0.1);
	serve(f, &sim, 20);
	uint64_t ended_ns = f->controller.sessions[0].last_ns, later_ns = ended_ns + 60000000000ull;
	const struct decision *d =
		controller_decision(&f->controller, f->controller.n_decisions - 1);
	assert_true(d->time_ns > 0 && d->time_ns <= ended_ns);
	/* By an operator, a minute after its last iteration. */
	strcpy(settings.policy, "static:2");
	assert_int_equal(controller_set(&f->controller, &settings, 0, later_ns, NULL), 0);
	d = controller_decision(&f->controller, f->controller.n_decisions - 1);
	assert_int_equal(d->time_ns, later_ns);
}

static void static_keeps_k_and_shows_utility_when_a_baseline_is_known(void **state)
{
	struct fixture *f = *state;
	struct settings settings = defaults();
	strcpy(settings.policy, "static:3");
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	struct simulated sim = simulated_make(5, 0, 0.6, 0.2);
	serve(f, &sim, 50);
	assert_int_equal(f->page->sessions[0].knobs.k, 3);
	assert_true(f->page->sessions[0].knobs.utility == 0);
	struct simulated plain = simulated_make(6, 1, 0.6, 0.2);
	struct iteration_record r = simulated_step(&plain, 0);
	r.k_fixed = 1;
	controller_take(&f->controller, &r);
	serve(f, &sim, 50);
	float expected = (float)simulated_utility(&sim, 3);
	assert_true(f->page->sessions[0].knobs.utility > 0.8f * expected);
	assert_true(f->page->sessions[0].knobs.utility < 1.2f * expected);
}

/* What two runs at K = 0 differ by is not utility. */
static void static_without_a_draft_has_no_utility(void **state)
{
	struct fixture *f = *state;
	struct settings settings = defaults();
	const struct policy_state *s = &f->controller.sessions[0];
	strcpy(settings.policy, "static:3");
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	struct simulated sim = simulated_make(5, 0, 0.6, 0.2);
	serve(f, &sim, 2);
	strcpy(settings.policy, "static:0");
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	for (int i = 0; i < 60; i++) {
		sim.base_ms = i % 2 ? 2 : 3;
		serve(f, &sim, 1);
		assert_true(s->base_ns > 0 && s->utility == 0);
		assert_true(f->page->sessions[0].knobs.utility == 0);
	}
	/* A drafter that has nothing to propose. */
	strcpy(settings.policy, "static:3");
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	for (int i = 0; i < 60; i++) {
		struct iteration_record r = simulated_step(&sim, 0);
		r.k = 3;
		controller_take(&f->controller, &r);
		assert_true(s->utility == 0);
	}
	serve(f, &sim, 1);
	assert_true(s->base_ns > 0 && s->utility > 0);
}

static uint64_t n_records(struct records *records, const struct controller *controller)
{
	pthread_mutex_lock(&records->mutex);
	uint64_t n = controller->n_records;
	pthread_mutex_unlock(&records->mutex);
	return n;
}

static void more_records_than_the_ring_holds_are_dropped_and_counted(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.6, 0.2);
	struct error err;
	for (int i = 0; i < POLICY_RECORD_SLOTS + 100; i++) {
		struct iteration_record r = simulated_step(&sim, 0);
		if (!ring_put(&f->producer, &r, sizeof(r)))
			ring_drop(&f->producer);
	}
	struct records *records = calloc(1, sizeof(*records));
	struct journal *journal = calloc(1, sizeof(*journal));
	journal_open(journal, "", JOURNAL_BYTES_MIN);
	assert_int_equal(records_start(records, &f->consumer, &f->controller, journal, &err), 0);
	UNTIL(n_records(records, &f->controller) == POLICY_RECORD_SLOTS);
	assert_true(records_alive(records));
	records_stop(records);
	assert_int_equal(f->controller.n_records, POLICY_RECORD_SLOTS);
	assert_int_equal(ring_dropped(&f->consumer), 100);
	journal_close(journal);
	free(journal);
	free(records);
}

static int set(struct daemon *daemon, uint64_t session, const char *name, const char *value,
	struct error *err)
{
	struct knob_batch batch = {.what = "set", .session = session, .n = 2};
	struct knob_outcomes outcomes;
	batch.changes[0] = (struct knob_change){.name = "set", .value = "20"};
	batch.changes[1] = (struct knob_change){.name = name, .value = value};
	int r = knobs_set(daemon->knobs, &batch, &outcomes, err);
	knobs_outcomes_free(&outcomes);
	return r;
}

static void knobs_are_in_the_page_when_they_are_set(void **state)
{
	struct fixture *f = *state;
	struct records records = {.controller = &f->controller, .ring = f->consumer};
	struct settings settings = defaults();
	struct options options = {.config_path = ""};
	struct daemon *daemon = calloc(1, sizeof(*daemon));
	struct simulated sim = simulated_make(5, 0, 0.6, 0.2);
	struct error err = {""};
	strcpy(daemon->name, "policy");
	strcpy(daemon->runtime_dir, "/dev/null"); /* nothing can be written down there */
	pthread_mutex_init(&records.mutex, NULL);
	assert_int_equal(handlers_knobs(&records, daemon, &settings, &options, &err), 0);
	serve(f, &sim, 3);
	assert_true(set(daemon, 0, "converge", "7", &err) < 0);
	assert_non_null(strstr(err.text, "0 to 1"));
	assert_true(set(daemon, 0, "policy", "quickest", &err) < 0);
	assert_non_null(strstr(err.text, "static:K"));
	assert_int_equal(f->controller.settings.set, 16);
	assert_int_equal(set(daemon, 0, "policy", "static:2", &err), 0);
	assert_int_equal(f->controller.settings.set, 20);
	assert_int_equal(f->page->defaults.k, 2);
	assert_int_equal(f->page->sessions[0].knobs.k, 2);
	assert_int_equal(set(daemon, 5, "policy", "static:4", &err), 0);
	assert_int_equal(f->page->sessions[0].knobs.k, 4);
	assert_int_equal(f->page->defaults.k, 2);
	assert_int_equal(set(daemon, 1234, "policy", "static:4", &err), -ENOENT);
	assert_true(set(daemon, 5, "poll", "1ms", &err) < 0);
	daemon_knobs_close(daemon);
	pthread_mutex_destroy(&records.mutex);
	free(daemon);
}

static void a_session_keeps_what_was_set_for_it_alone(void **state)
{
	struct fixture *f = *state;
	struct settings own = defaults(), all = defaults();
	struct simulated one = simulated_make(5, 0, 0.6, 0.2), two = simulated_make(6, 1, 0.6, 0.2);
	serve(f, &one, 3);
	serve(f, &two, 3);
	own.k_max = 4;
	assert_int_equal(controller_set(&f->controller, &own, 5, 1, NULL), 0);
	all.trial = 8;
	all.k_max = 9;
	assert_int_equal(controller_set(&f->controller, &all, 0, 1, NULL), 0);
	assert_int_equal(controller_settings(&f->controller, 5)->k_max, 4);
	assert_int_equal(controller_settings(&f->controller, 5)->trial, 8);
	assert_int_equal(controller_settings(&f->controller, 6)->k_max, 9);
	/* What is set for it alone, and does not go with what is set for all: it gets all of it. */
	own = *controller_settings(&f->controller, 5);
	own.set_max = 20;
	assert_int_equal(controller_set(&f->controller, &own, 5, 1, NULL), 0);
	all.set = 64;
	assert_int_equal(controller_set(&f->controller, &all, 0, 1, NULL), 0);
	assert_int_equal(controller_settings(&f->controller, 5)->k_max, 9);
	assert_int_equal(controller_settings(&f->controller, 5)->set, 64);
	assert_int_equal(controller_settings(&f->controller, 5)->set_max, all.set_max);
}

static void a_policy_is_switched_live_for_one_session(void **state)
{
	struct fixture *f = *state;
	struct settings settings = defaults();
	struct error err;
	struct simulated one = simulated_make(5, 0, 0.6, 0.2), two = simulated_make(6, 1, 0.6, 0.2);
	serve(f, &one, 3);
	serve(f, &two, 3);
	strcpy(settings.policy, "static:6");
	assert_int_equal(controller_set(&f->controller, &settings, 5, 1, &err), 0);
	assert_int_equal(f->page->sessions[0].knobs.k, 6);
	assert_int_equal(f->page->sessions[1].knobs.k, 0);
	assert_int_equal(controller_set(&f->controller, &settings, 1234, 1, &err), -ENOENT);
	assert_string_equal(f->controller.settings.policy, "cascade");
}

static void a_lower_k_max_takes_effect_at_once(void **state)
{
	struct fixture *f = *state;
	struct settings settings = defaults();
	struct simulated sim = simulated_make(5, 0, 0.95, 0.05);
	serve(f, &sim, 200);
	/* k_start, which is above it, counts as k_max. */
	settings.k_max = 2;
	assert_true(settings.k_start > settings.k_max);
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	for (int i = 0; i < 200; i++) {
		assert_true(f->page->sessions[0].knobs.k <= 2);
		serve(f, &sim, 1);
	}
}

static void a_bunch_of_records_is_measured_whole_and_planned_for_once(void **state)
{
	struct fixture *f = *state;
	struct controller *c = &f->controller;
	struct settings settings = defaults();
	struct policy_session knobs;
	strcpy(settings.policy, "yield");
	assert_int_equal(controller_set(c, &settings, 0, 1, NULL), 0);
	struct simulated one = simulated_make(5, 0, 0.6, 0.2), two = simulated_make(6, 1, 0.6, 0.2);
	one.sessions = two.sessions = 2;
	const struct yield_shared *shared = policy_shared(c->shared, &policy_yield);
	uint32_t plans = shared->n_plans;
	for (int i = 0; i < 100; i++) {
		struct iteration_record r = simulated_step(&one, 0);
		assert_ptr_equal(controller_record(c, &r), &c->sessions[0]);
		r = simulated_step(&two, 0);
		assert_ptr_equal(controller_record(c, &r), &c->sessions[1]);
	}
	/* The first record of a pass whose second one has not come. */
	struct iteration_record r = simulated_step(&one, 0);
	controller_record(c, &r);
	assert_int_equal(c->sessions[0].iterations, 101);
	assert_int_equal(c->sessions[1].iterations, 100);
	assert_int_equal(shared->n_plans, plans);
	assert_false(policy_lookup(f->page, 0, 5, &knobs));
	controller_settle(c);
	assert_int_equal(shared->n_plans, plans + 1);
	assert_true(policy_lookup(f->page, 0, 5, &knobs));
	assert_true(policy_lookup(f->page, 1, 6, &knobs));
	/* Nothing new: nothing is planned. */
	controller_settle(c);
	assert_int_equal(shared->n_plans, plans + 1);
	r = simulated_step(&two, 0);
	controller_record(c, &r);
	controller_settle(c);
	assert_int_equal(shared->n_plans, plans + 2);
	assert_int_equal(c->sessions[1].iterations, 101);
}

static void what_is_read_says_which_decision_it_is_of(void **state)
{
	struct fixture *f = *state;
	struct simulated one = simulated_make(5, 0, 0.9, 0.1), two = simulated_make(6, 1, 0.9, 0.1);
	struct policy_session knobs;
	uint64_t before = 0;
	serve(f, &one, 1);
	for (int i = 0; i < 100; i++) {
		uint32_t k = f->controller.sessions[0].k;
		serve(f, &one, 1);
		policy_lookup(f->page, 0, 5, &knobs);
		assert_int_equal(knobs.decision, f->controller.sessions[0].decision);
		/* Another K is another decision, and only that of the session itself. */
		if (knobs.k != k)
			assert_true(knobs.decision > before);
		before = knobs.decision;
		serve(f, &two, 1);
		policy_lookup(f->page, 0, 5, &knobs);
		assert_int_equal(knobs.decision, before);
	}
}

static void the_record_that_decides_is_the_one_that_is_waited_for(void **state)
{
	struct fixture *f = *state;
	struct settings settings = defaults();
	struct simulated sim = simulated_make(5, 0, 0.6, 0.2);
	strcpy(settings.policy, "cascade");
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	assert_int_equal(controller_due_ns(&f->controller), 0);
	for (int i = 0; i < 300; i++) {
		const struct controller *c = &f->controller;
		uint64_t decisions = c->n_decisions, due = controller_due_ns(c);
		uint64_t next = c->last_ns + c->last_iteration_ns;
		serve(f, &sim, 1);
		/* Nothing is decided from a record before the one that is due. */
		if (i > 0)
			assert_int_equal(c->n_decisions > decisions, due == next);
	}
	struct iteration_record r = simulated_step(&sim, 2);
	r.k_fixed = 1;
	controller_take(&f->controller, &r);
	assert_int_equal(controller_due_ns(&f->controller), 0);
	strcpy(settings.policy, "static:3");
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	assert_int_equal(controller_due_ns(&f->controller), 0);
}

static void iterations_that_are_missing_are_counted_by_passes_and_tokens(void **state)
{
	struct fixture *f = *state;
	/* Where it was, the pass and the tokens of the next record and where that leaves it; what is missing. */
	static const struct {
		struct policy_place before, after;
		uint32_t emitted, missing, tokens;
	} cases[] = {
		{{10, 100}, {11, 101}, 1, 0, 0}, /* nothing */
		{{10, 100}, {15, 103}, 3, 0, 0}, /* it waited */
		{{10, 100}, {14, 104}, 1, 3, 3}, /* each of one token */
		{{10, 100}, {12, 106}, 2, 1, 4}, /* one that drafted */
		{{10, 100}, {90, 104}, 1, 3, 3}, /* and it waited */
		{{900, 100}, {2, 104}, 0, 4, 4}, /* a verifier that was started again */
		{{10, 100}, {11, 104}, 1, 3, 3}, /* what cannot be is not more than its tokens */
		{{10, 100}, {14, 90}, 1, 0, 0}, {{10, 100}, {14, 3}, 7, 0, 0},
		{{0, 0}, {14, 700}, 1, 0, 0}, /* the first that was seen */
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		uint32_t tokens = 99;
		assert_int_equal(policy_missing(&cases[i].before, &cases[i].after, cases[i].emitted,
					 &tokens),
			cases[i].missing);
		assert_int_equal(tokens, cases[i].tokens);
	}
	struct iteration_record r = {.session = 7,
		.iteration = 20,
		.n_context = 50,
		.emitted = 1,
		.batch_sessions = 1,
		.batch_tokens = 1,
		.iteration_ns = 1000};
	controller_take(&f->controller, &r);
	assert_int_equal(controller_session(&f->controller, 7)->missing, 0);
	r.iteration = 26, r.n_context = 56;
	controller_take(&f->controller, &r);
	r.iteration = 27, r.n_context = 57;
	controller_take(&f->controller, &r);
	assert_int_equal(controller_session(&f->controller, 7)->missing, 5);
	assert_int_equal(controller_session(&f->controller, 7)->iterations, 3);
}

static void names_of_policies_are_read_strictly(void **state)
{
	(void)state;
	uint32_t k;
	assert_ptr_equal(policy_parse("cascade", &k), &policy_cascade);
	assert_ptr_equal(policy_parse("static:0", &k), &policy_static);
	assert_ptr_equal(policy_parse("static:63", &k), &policy_static);
	assert_int_equal(k, 63);
	const char *const wrong[] = {"", "static", "static:", "static:64", "static:-1", "static:3x",
		"static:999999999999", "Cascade ", "cascade:3"};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_null(policy_parse(wrong[i], &k));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(new_sessions_begin_at_k_zero_under_cascade),
		TEST(a_session_that_pays_gets_its_best_k),
		TEST(sessions_are_judged_apart),
		TEST(lost_records_are_counted_and_utility_is_not_skewed),
		TEST(a_knob_of_cascade_is_in_force_at_once),
		TEST(a_drafter_that_rests_follows_when_it_may_not),
		TEST(the_age_of_a_baseline_is_in_passes_not_in_records),
		TEST(passes_without_the_session_are_not_lost),
		TEST(a_session_that_comes_back_on_another_page_is_there_once),
		TEST(prefill_and_fixed_k_measure_nothing),
		TEST(records_out_of_range_are_counted_and_dropped),
		TEST(a_successor_goes_on_from_the_pages_k),
		TEST(decisions_are_kept_with_their_reasons_and_bounded),
		TEST(a_decision_has_the_time_at_which_it_was_made),
		TEST(static_keeps_k_and_shows_utility_when_a_baseline_is_known),
		TEST(static_without_a_draft_has_no_utility),
		TEST(more_records_than_the_ring_holds_are_dropped_and_counted),
		TEST(knobs_are_in_the_page_when_they_are_set),
		TEST(a_session_keeps_what_was_set_for_it_alone),
		TEST(a_policy_is_switched_live_for_one_session),
		TEST(a_lower_k_max_takes_effect_at_once),
		TEST(a_bunch_of_records_is_measured_whole_and_planned_for_once),
		TEST(what_is_read_says_which_decision_it_is_of),
		TEST(the_record_that_decides_is_the_one_that_is_waited_for),
		TEST(iterations_that_are_missing_are_counted_by_passes_and_tokens),
		TEST(names_of_policies_are_read_strictly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
