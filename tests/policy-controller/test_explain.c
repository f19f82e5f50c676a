/* What is explained is what is in force: for every policy, at every moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "services/policy-controller/published/cascade.h"
#include "services/policy-controller/yield/yield.h"
#include "tests/policy-controller/simulate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct fixture {
	void *payload;
	struct policy_page *page;
	struct ring ring;
	struct controller controller;
	struct explanation explanation;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct settings settings;
	config_defaults(settings_keys, &settings);
	f->payload = page_make(&f->page, (struct ring *[]){&f->ring}, 1);
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

static void use(struct fixture *f, const char *policy)
{
	struct settings settings = f->controller.settings;
	snprintf(settings.policy, sizeof(settings.policy), "%s", policy);
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
}

static const struct explained_k *option(const struct explanation *e, uint32_t k)
{
	for (uint32_t i = 0; i < e->n_options; i++)
		if (e->options[i].k == k)
			return &e->options[i];
	return NULL;
}

static double figure(const struct explanation *e, const char *name)
{
	for (uint32_t i = 0; i < e->n_figures; i++)
		if (strcmp(e->figures[i].name, name) == 0)
			return e->figures[i].value;
	fail_msg("no figure \"%s\"", name);
	return NAN;
}

/* The newest decision says what is in force, and what comes after a trial. */
static void check_decision(const struct controller *c, uint64_t uid)
{
	const struct policy_state *s = controller_session(c, uid);
	const struct decision *d = controller_decision(c, s->decision - 1);
	if (s->decision == 0 || d->session != uid)
		return;
	assert_int_equal(d->number, s->decision);
	assert_int_equal(d->k_then, d->trial_n ? s->k_then : d->k_new);
	assert_true(s->trial_n == 0 || d->trial_n == s->trial_n);
}

/* Every K once, in order, that in force among them; where a figure is missing a word is there. */
static void check_options(const struct explanation *e)
{
	uint32_t weighed = 0, in_force = 0;
	for (uint32_t i = 0; i < e->n_options; i++) {
		weighed += e->options[i].weighed;
		in_force += e->options[i].k == e->k;
	}
	assert_int_equal(in_force, e->n_options > 0);
	for (uint32_t i = 0; i < e->n_options; i++) {
		const struct explained_k *o = &e->options[i];
		assert_true(i == 0 || o->k > e->options[i - 1].k);
		assert_true(isfinite(o->utility));
		bool lacks = !(o->time_ns > 0) || (weighed > 0 && !o->weighed);
		assert_int_equal(lacks, o->note != NULL && *o->note);
	}
}

/* One iteration as a verifier makes it, after what is explained was held against the page. */
static void step(struct fixture *f, struct simulated *sim, struct policy_trial *trial)
{
	struct explanation *e = &f->explanation;
	struct policy_session knobs;
	bool known = policy_lookup(f->page, sim->page, sim->uid, &knobs);
	if (known) {
		char number[16];
		assert_int_equal(explain_session(&f->controller, sim->uid, e), 0);
		assert_int_equal(e->k, knobs.k);
		assert_int_equal(e->trial_n, knobs.trial_n);
		assert_int_equal(e->k_then, knobs.k_then);
		assert_true(e->n_words > 0 && e->n_figures > 0);
		snprintf(number, sizeof(number), "%u", e->k);
		/* Words of the K in force, but for those that say why it is off. */
		if (e->k > 0)
			assert_non_null(strstr(e->words[0], number));
		check_options(e);
	}
	sim->decision = (uint32_t)knobs.decision;
	struct iteration_record r = simulated_step(sim, policy_next_k(&knobs, trial));
	controller_take(&f->controller, &r);
	check_decision(&f->controller, sim->uid);
}

/* The total counts all iterations, the means know only the last. */
static void a_mean_of_the_last_iterations_says_so(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(1, 0, 1.0, 0.2);
	struct policy_trial trial = {0};
	use(f, "static:3");
	for (int i = 0; i < 100; i++)
		step(f, &sim, &trial);
	double before = figure(&f->explanation, "tokens per iteration, lately");
	use(f, "static:0");
	for (int i = 0; i < 60; i++)
		step(f, &sim, &trial);
	assert_int_equal(explain_session(&f->controller, sim.uid, &f->explanation), 0);
	assert_int_equal((int)figure(&f->explanation, "iterations"), 160);
	assert_true(before > 3.9);
	assert_true(figure(&f->explanation, "tokens per iteration, lately") < 1.1);
	assert_true(figure(&f->explanation, "drafted per iteration, lately") < 0.1);
	assert_true(figure(&f->explanation, "accepted per iteration, lately") < 0.1);
	assert_true(figure(&f->explanation, "iteration, lately") > 0);
}

static void the_k_that_is_explained_is_the_one_in_force(void **state)
{
	struct fixture *f = *state;
	static const char *const policies[] = {"cascade", "yield", "static:2", "static:0"};
	static const double chances[] = {0.9, 0.5, 0.05};
	uint64_t uid = 1;
	for (uint32_t p = 0; p < 4; p++)
		for (uint32_t c = 0; c < 3; c++) {
			struct simulated sim = simulated_make(uid++, 0, chances[c], 0.2);
			struct policy_trial trial = {0};
			use(f, policies[p]);
			for (int i = 0; i < 500; i++)
				step(f, &sim, &trial);
			assert_int_equal(f->explanation.n_decisions > 0, 1);
		}
}

/* What K = 0 took once says nothing of a cache or a load that has changed since. */
static void a_fixed_k_is_held_against_what_was_seen_lately(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(1, 0, 0.9, 0.2);
	struct policy_trial trial = {0};
	for (int i = 0; i < 240; i++) {
		if (i % 120 == 0)
			use(f, i == 0 ? "static:0" : "static:2");
		step(f, &sim, &trial);
		if (i == 180)
			assert_non_null(strstr(f->explanation.words[1], "It pays"));
	}
	assert_non_null(strstr(f->explanation.words[1], "not known"));
}

/* The time at K = 0 is shown below the words: they do not deny it. */
static void a_fixed_k_that_has_not_drafted_yet_is_not_said_to_lack_a_baseline(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(1, 0, 0.9, 0.2);
	struct policy_trial trial = {0};
	struct explanation *e = &f->explanation;
	use(f, "static:0");
	for (int i = 0; i < 20; i++)
		step(f, &sim, &trial);
	use(f, "static:2");
	assert_int_equal(explain_session(&f->controller, 1, e), 0);
	assert_true(figure(e, "iteration at K = 0, measured") > 0);
	assert_int_equal((int)figure(e, "age of that measurement"), 0);
	assert_non_null(strstr(
		e->words[1], "not known: no recent iteration of this session at this K has"));
	/* Of one that has ended the last K is known. */
	assert_int_equal(e->k, 2);
	assert_int_equal(e->k_last, 0);
	step(f, &sim, &trial);
	step(f, &sim, &trial);
	assert_non_null(strstr(e->words[1], "utility"));
	assert_int_equal(e->k_last, 2);
}

static void cascade_shows_the_trials_of_its_last_test_and_what_ended_it(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.85, 0.15);
	struct policy_trial trial = {0};
	const struct policy_state *s = &f->controller.sessions[0];
	use(f, "cascade");
	for (int i = 0; i < 40 || s->phase != PHASE_SET; i++)
		step(f, &sim, &trial);
	struct explanation *e = &f->explanation;
	assert_int_equal(explain_session(&f->controller, 0, e), 0);
	const struct explained_k *best = option(e, e->k), *none = option(e, 0);
	assert_non_null(best);
	assert_non_null(none);
	assert_int_equal(e->n_options, f->controller.settings.k_max + 1);
	check_options(e);
	assert_true(fabs(none->utility - 1) < 1e-9);
	/* The figures are of what the words speak of: cascade's own baseline. */
	assert_true(fabs(figure(e, "iteration at K = 0, measured") - none->time_ns / 1e6) < 1e-9);
	for (uint32_t i = 0; i < e->n_options; i++)
		assert_true(e->options[i].utility <= best->utility);
	assert_true(fabs(best->utility - best->tokens_per_s / none->tokens_per_s) < 1e-3);
	assert_non_null(strstr(e->words[1], cascade_of(s)->ended));
	/* Also while the next one has had no trial yet. */
	char words[64];
	snprintf(words, sizeof(words), "Its best: K = %u with", e->k);
	while (s->phase == PHASE_SET)
		step(f, &sim, &trial);
	if (s->phase == PHASE_TEST && cascade_of(s)->ended) {
		assert_int_equal(explain_session(&f->controller, 0, e), 0);
		assert_non_null(strstr(e->words[1], words));
	}
}

static void cascade_says_when_its_baseline_is_measured_again(void **state)
{
	struct fixture *f = *state;
	struct simulated bad = simulated_make(5, 0, 0, 0.5), good = simulated_make(6, 0, 1, 0.1);
	const struct policy_state *s = &f->controller.sessions[0];
	struct policy_trial trial = {0};
	use(f, "cascade");
	for (int i = 0; i < 40 || s->phase != PHASE_OFF; i++)
		step(f, &bad, &trial);
	for (int i = 0; i < 20; i++)
		step(f, &bad, &trial);
	struct explanation *e = &f->explanation;
	assert_int_equal(explain_session(&f->controller, 0, e), 0);
	assert_non_null(strstr(e->words[3], "measured 0 iterations ago; every iteration of this "));
	for (int i = 0; i < 10 || s->phase != PHASE_SET; i++)
		step(f, &good, &trial);
	assert_int_equal(explain_session(&f->controller, 0, e), 0);
	assert_non_null(strstr(e->words[2], "when that is 100 or more, it is measured again "));
	struct settings settings = f->controller.settings;
	settings.set = 400;
	assert_int_equal(controller_set(&f->controller, &settings, 0, 1, NULL), 0);
	for (int i = 0; i < 40 || s->phase != PHASE_SET; i++)
		step(f, &good, &trial);
	assert_int_equal(explain_session(&f->controller, 0, e), 0);
	assert_non_null(strstr(e->words[2], "after 100 it is measured again, within this phase"));
	while (s->phase == PHASE_SET)
		step(f, &good, &trial);
	assert_int_equal(explain_session(&f->controller, 0, e), 0);
	assert_non_null(strstr(e->words[0], "to measure again what an iteration takes"));
	assert_non_null(strstr(e->words[2], "it is being measured again"));
}

static void yield_shows_every_k_and_the_best_is_the_one_it_chose(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.85, 0.15);
	struct policy_trial trial = {0};
	use(f, "yield");
	for (int i = 0; i < 300 || f->controller.sessions[0].trial_n; i++)
		step(f, &sim, &trial);
	struct explanation *e = &f->explanation;
	assert_int_equal(explain_session(&f->controller, 5, e), 0);
	assert_int_equal(e->n_options, f->controller.settings.k_max + 1);
	assert_true(e->k > 0);
	for (uint32_t i = 0; i < e->n_options; i++) {
		const struct explained_k *o = &e->options[i];
		assert_int_equal(o->k, i);
		assert_true(o->tokens_per_s <= 1.01 * option(e, e->k)->tokens_per_s);
		assert_true(fabs(o->tokens / o->time_ns * 1e9 / o->tokens_per_s - 1) < 1e-3);
	}
	/* What it expects is what happens. */
	double expected = simulated_utility(&sim, e->k);
	assert_true(fabs(option(e, e->k)->utility / expected - 1) < 0.15);
}

static void acceptance_by_position_is_what_was_accepted(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.5, 0.2);
	use(f, "static:4");
	for (int i = 0; i < 600; i++) {
		struct iteration_record r = simulated_step(&sim, 4);
		r.accepted = i % 4 == 0 ? 0 : i % 4 == 1 ? 2 : 1; /* 75%, a third, none */
		r.emitted = (uint8_t)(r.accepted + 1);
		controller_take(&f->controller, &r);
	}
	struct explanation *e = &f->explanation;
	assert_int_equal(explain_session(&f->controller, 5, e), 0);
	assert_int_equal(e->n_positions, 3);
	static const double expected[] = {0.75, 1 / 3.0, 0};
	for (uint32_t i = 0; i < 3; i++)
		assert_true(fabs(e->positions[i].accepted / e->positions[i].reached - expected[i]) <
			    0.03);
}

static void a_request_that_fixed_k_is_named(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.5, 0.2);
	for (int i = 0; i < 10; i++) {
		/* The end of the answer cuts the last one. */
		struct iteration_record r = simulated_step(&sim, i < 9 ? 3 : 1);
		r.k_fixed = 1 + 3;
		controller_take(&f->controller, &r);
	}
	f->controller.sessions[0].unfollowed = true;
	struct explanation *e = &f->explanation;
	assert_int_equal(explain_session(&f->controller, 5, e), 0);
	assert_true(e->k_fixed);
	assert_int_equal(e->k, 3);
	assert_non_null(strstr(e->words[0], "request itself fixed K = 3"));
	assert_int_equal(e->n_words, 1);
	/* Nothing was decided about it, whatever policies came and went. */
	assert_int_equal(e->n_decisions, 0);
	use(f, "cascade");
	assert_int_equal(explain_session(&f->controller, 5, e), 0);
	assert_int_equal(e->n_decisions, 0);
	assert_null(controller_decision(&f->controller, 0));
}

static const char *word_with(const struct explanation *e, const char *text)
{
	for (uint32_t i = 0; i < e->n_words; i++)
		if (strstr(e->words[i], text))
			return e->words[i];
	return NULL;
}

static void who_emptied_the_purse_is_said_and_what_the_next_session_has(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.95, 0.1);
	struct policy_trial trial = {0};
	const struct policy_state *s = &f->controller.sessions[0];
	struct explanation *e = &f->explanation;
	use(f, "yield");
	for (int i = 0; i < 300 || s->k == 0 || s->trial_n; i++)
		step(f, &sim, &trial);
	assert_int_equal(explain_session(&f->controller, 5, e), 0);
	assert_null(word_with(e, "emptied"));
	/* What pays until then fails, and takes three times as long. */
	uint64_t iteration = 0;
	uint32_t k = 0, drafted = 0;
	for (int i = 0; i < 1000 && yield_of(s)->purse > 0; i++) {
		k = s->k > 0 ? s->k : 1;
		struct iteration_record r = simulated_step(&sim, k);
		r.accepted = 0;
		r.emitted = 1;
		r.iteration_ns *= 3;
		drafted = r.drafted;
		controller_take(&f->controller, &r);
		iteration = s->iterations;
	}
	assert_true(yield_of(s)->purse <= 0);
	char expected[128];
	snprintf(expected, sizeof(expected),
		"Iteration %llu of the session emptied the purse: at K = %u, with 0 of %u drafted",
		(unsigned long long)iteration, k, drafted);
	assert_int_equal(explain_session(&f->controller, 5, e), 0);
	assert_non_null(word_with(e, expected));
	/* What it says a new session has is what it gets. */
	const char *begins = strstr(word_with(e, "a new session has"), "has ");
	double has = strtod(begins + 4, NULL);
	struct simulated next = simulated_make(6, 1, 0.5, 0.1);
	struct iteration_record r = simulated_step(&next, 0);
	controller_take(&f->controller, &r);
	assert_true(has > 0 && fabs(yield_of(&f->controller.sessions[1])->granted - has) < 0.02);
}

static void a_target_is_held_against_the_best_k_which_is_named_once(void **state)
{
	struct fixture *f = *state;
	const struct yield_view *view = &yield_of(&f->controller.sessions[0])->view;
	struct simulated bad = simulated_make(5, 0, 0.05, 0.6);
	struct policy_trial trial = {0};
	struct explanation *e = &f->explanation;
	f->controller.settings.tpot_ns = 50000000;
	use(f, "goodput");
	for (int i = 0; i < 300 || view->best > 0; i++)
		step(f, &bad, &trial);
	assert_int_equal(explain_session(&f->controller, 5, e), 0);
	const char *target = word_with(e, "Target: 50.000 ms");
	assert_non_null(target);
	assert_string_equal(strstr(target, " expected"), " expected at K = 0.");
}

static void decisions_are_the_sessions_own_and_the_newest(void **state)
{
	struct fixture *f = *state;
	struct simulated one = simulated_make(5, 0, 0.9, 0.1), two = simulated_make(6, 1, 0.9, 0.1);
	struct policy_trial trials[2] = {{0}};
	use(f, "cascade");
	for (int i = 0; i < 400; i++) {
		step(f, &one, &trials[0]);
		step(f, &two, &trials[1]);
	}
	struct explanation *e = &f->explanation;
	assert_int_equal(explain_session(&f->controller, 5, e), 0);
	assert_int_equal(e->n_decisions, EXPLAIN_DECISIONS);
	for (uint32_t i = 0; i < e->n_decisions; i++) {
		assert_int_equal(e->decisions[i]->session, 5);
		if (i > 0)
			assert_true(e->decisions[i]->number > e->decisions[i - 1]->number);
	}
	assert_int_equal(e->decisions[e->n_decisions - 1]->k_new, f->controller.sessions[0].k);
}

static void the_k_of_a_trial_is_that_of_its_decision(void **state)
{
	static const char *const policies[] = {"yield", "cascade"};
	struct fixture *f = *state;
	uint32_t trials = 0;
	for (uint32_t p = 0; p < 2; p++) {
		struct simulated sim = simulated_make(5 + p, 0, 0.6, 0.2);
		struct policy_trial trial = {0};
		use(f, policies[p]);
		for (int i = 0; i < 300; i++)
			step(f, &sim, &trial);
		const struct decision *d;
		for (uint64_t after = 0; (d = controller_decision(&f->controller, after)) != NULL;
			after = d->number) {
			const char *trying = strstr(d->reason, "trying K = ");
			if (trying) {
				assert_int_equal(strtoul(trying + 11, NULL, 10), d->k_new);
				assert_true(d->trial_n > 0);
			}
			assert_true(d->trial_n == 0 || d->phase == PHASE_TEST);
			trials += d->trial_n > 0 && d->k_new > 0;
		}
	}
	assert_true(trials > 0);
}

static void a_session_that_is_not_known_is_said_to_be_so(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(explain_session(&f->controller, 0, &f->explanation), -ENOENT);
	assert_int_equal(explain_session(&f->controller, 9, &f->explanation), -ENOENT);
	struct simulated one = simulated_make(5, 0, 0.9, 0.1), two = simulated_make(6, 1, 0.9, 0.1);
	struct iteration_record r = simulated_step(&one, 0);
	controller_take(&f->controller, &r);
	simulated_step(&two, 0);
	r = simulated_step(&two, 0);
	controller_take(&f->controller, &r);
	assert_int_equal(explain_session(&f->controller, 9, &f->explanation), -ENOENT);
	assert_int_equal(explain_session(&f->controller, 0, &f->explanation), 0);
	assert_int_equal(f->explanation.state->uid, 6);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_k_that_is_explained_is_the_one_in_force),
		TEST(a_mean_of_the_last_iterations_says_so),
		TEST(a_fixed_k_that_has_not_drafted_yet_is_not_said_to_lack_a_baseline),
		TEST(a_fixed_k_is_held_against_what_was_seen_lately),
		TEST(cascade_shows_the_trials_of_its_last_test_and_what_ended_it),
		TEST(cascade_says_when_its_baseline_is_measured_again),
		TEST(yield_shows_every_k_and_the_best_is_the_one_it_chose),
		TEST(acceptance_by_position_is_what_was_accepted),
		TEST(a_request_that_fixed_k_is_named),
		TEST(who_emptied_the_purse_is_said_and_what_the_next_session_has),
		TEST(a_target_is_held_against_the_best_k_which_is_named_once),
		TEST(decisions_are_the_sessions_own_and_the_newest),
		TEST(the_k_of_a_trial_is_that_of_its_decision),
		TEST(a_session_that_is_not_known_is_said_to_be_so),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
