/* Hints for layers beyond the next: believed as far as they were right, withdrawn for nearer ones, and left alone where they do
 * not pay. */
#include "services/expert-cache/policies/expectation.h"
#include "services/expert-cache/hints/hint_worth.h"
#include "services/expert-cache/reader/loads.h"
#include "tests/expert-cache/transfer_rig.h"

enum { LAYERS = 4, EXPERTS = 8, SLOTS = 12 };

static const bool all_moe[LAYERS] = {true, true, true, true};
static const struct cache_policy_shape shape = {.n_layers = LAYERS,
	.n_experts = EXPERTS,
	.n_experts_used = 1,
	.n_slots = SLOTS,
	.queue_max = 16,
	.moe = all_moe};

/* ---- Whether they pay. ---- */

static void passes(struct hint_worth *worth, uint32_t n, bool wanted)
{
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(hint_worth_pass(worth), wanted);
}

static void reads(struct hint_worth *worth, uint32_t used, uint32_t vain)
{
	for (uint32_t i = 0; i < used + vain; i++)
		hint_worth_read(worth, i < used);
}

/* The passes of a trial in which so many reads were of use, and so many in vain. */
static void trial(struct hint_worth *worth, uint32_t used, uint32_t vain)
{
	passes(worth, HINT_WORTH_TRIAL, true);
	reads(worth, used, vain);
}

static void a_source_that_is_right_stays(void **state)
{
	(void)state;
	struct hint_worth worth = {0};
	for (int i = 0; i < 5; i++)
		trial(&worth, 30, 20);
	passes(&worth, 1, true);
}

static void a_source_that_reads_in_vain_rests_and_is_tried_again(void **state)
{
	(void)state;
	struct hint_worth worth = {0};
	trial(&worth, 20, 30);
	passes(&worth, HINT_WORTH_REST, false);
	/* What is said of it meanwhile does not count for the next trial. */
	reads(&worth, 0, 100);
	trial(&worth, 20, 0);
	passes(&worth, 1, true);
}

static void a_source_that_nobody_follows_rests(void **state)
{
	(void)state;
	struct hint_worth worth = {0};
	trial(&worth, 2, 0);
	passes(&worth, 1, false);
}

/* ---- What is expected. ---- */

static void tell(struct expectation *x, enum hint_source source, uint32_t expert, uint64_t made_ns)
{
	struct cache_hint hint = {
		.layer = 1, .expert = expert, .source = source, .score = 0.5f, .made_ns = made_ns};
	const uint16_t *superseded;
	expectation_supersede(x, &hint, &superseded);
	expectation_hint(x, &hint);
}

static void runs(struct expectation *x, uint32_t expert)
{
	expectation_use(x, &(struct cache_use){.layer = 1, .expert = expert, .tokens = 1});
	expectation_end(x, 1, 0, false);
}

/* What comes is said from afar, and then from near, as it does. */
static void teach(struct expectation *x, uint32_t n, bool right)
{
	for (uint32_t i = 0; i < n; i++) {
		tell(x, HINT_GATE_FAR, (i + !right) % EXPERTS, 1 + i);
		tell(x, HINT_GATE, i % EXPERTS, 1 + i);
		expectation_refresh(x, 1);
		runs(x, i % EXPERTS);
	}
}

static void far_hints_are_believed_as_far_as_they_were_right(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	assert_int_equal(expectation_init(&x, &shape, &err), 0);
	tell(&x, HINT_GATE_FAR, 3, 1);
	assert_true(expectation_of(&x, EXPERTS + 3) < 0.5); /* nothing is known of them yet */
	runs(&x, 3);
	teach(&x, 400, true);
	tell(&x, HINT_GATE_FAR, 3, 1000);
	assert_true(expectation_of(&x, EXPERTS + 3) > 0.8);
	assert_true(expectation_is_far(&x, 1, 3));
	assert_false(expectation_is_far(&x, 1, 2));
	expectation_exit(&x);
	assert_int_equal(expectation_init(&x, &shape, &err), 0);
	teach(&x, 400, false);
	tell(&x, HINT_GATE_FAR, 3, 1000);
	assert_true(expectation_of(&x, EXPERTS + 3) < 0.2);
	expectation_exit(&x);
}

static void a_later_prediction_takes_the_place_of_an_earlier_one(void **state)
{
	(void)state;
	struct expectation x;
	struct error err;
	const uint16_t *superseded;
	assert_int_equal(expectation_init(&x, &shape, &err), 0);
	teach(&x, 400, true);
	tell(&x, HINT_GATE_FAR, 3, 1000);
	tell(&x, HINT_GATE_FAR, 4, 1000);
	assert_true(expectation_of(&x, EXPERTS + 3) > 0.8 && expectation_of(&x, EXPERTS + 4) > 0.8);
	struct cache_hint later = {
		.layer = 1, .expert = 4, .source = HINT_GATE_FAR, .score = 0.5f, .made_ns = 1001};
	assert_int_equal(expectation_supersede(&x, &later, &superseded), 2);
	assert_int_equal(superseded[0] + superseded[1], 7);
	expectation_hint(&x, &later);
	assert_int_equal(expectation_supersede(&x, &later, &superseded), 0);
	assert_true(expectation_of(&x, EXPERTS + 3) < 0.5 && expectation_of(&x, EXPERTS + 4) > 0.8);
	/* And the next layer's own takes the place of all. */
	tell(&x, HINT_GATE, 5, 1002);
	expectation_refresh(&x, 1);
	assert_true(expectation_of(&x, EXPERTS + 4) < 0.5 && expectation_of(&x, EXPERTS + 5) > 0.8);
	assert_false(expectation_is_far(&x, 1, 4));
	/* It ends with the run. */
	runs(&x, 5);
	assert_true(expectation_of(&x, EXPERTS + 4) < 0.5 && expectation_of(&x, EXPERTS + 5) < 0.5);
	expectation_exit(&x);
}

/* ---- The policy. ---- */

struct policy {
	const struct cache_policy_ops *ops;
	void *state;
	uint64_t iteration, made_ns;
	uint32_t slot; /* the next, of SLOTS */
	uint32_t holds[SLOTS]; /* 1 + layer * EXPERTS + expert */
};

static void open_policy(struct policy *p, const char *name)
{
	struct error err;
	*p = (struct policy){.ops = cache_policy_find(name), .iteration = 1};
	assert_int_equal(p->ops->create(&shape, &p->state, &err), 0);
}

static void hint_for(struct policy *p, enum hint_source source, uint32_t layer, uint32_t expert)
{
	struct cache_hint hint = {.layer = layer,
		.expert = expert,
		.source = source,
		.score = 0.9f,
		.made_ns = ++p->made_ns,
		.iteration = p->iteration + 1};
	p->ops->on_hint(p->state, &hint, SLOT_NONE);
}

static void run_one(struct policy *p, uint32_t layer, uint32_t expert)
{
	struct cache_use use = {.layer = layer,
		.expert = expert,
		.tokens = 1,
		.slot = SLOT_NONE,
		.iteration = ++p->iteration};
	p->ops->on_activation(p->state, &use);
}

/* It comes, into the next slot. */
static void arrive(struct policy *p, uint32_t layer, uint32_t expert, enum load_reason why)
{
	uint32_t slot = p->slot++ % SLOTS;
	if (p->holds[slot] != 0)
		p->ops->on_evict(p->state, slot);
	p->holds[slot] = 1 + layer * EXPERTS + expert;
	p->ops->on_load(p->state, slot, layer, expert, why);
}

/* What the policy wants is read. */
static void load_wanted(struct policy *p)
{
	struct cache_prefetch want;
	while (p->ops->next(p->state, 0, &want)) {
		p->ops->on_begin(p->state, &want);
		arrive(p, want.layer, want.expert, LOAD_PREFETCH);
	}
}

static void drop_all(struct policy *p)
{
	for (uint32_t s = 0; s < SLOTS; s++) {
		if (p->holds[s] != 0)
			p->ops->on_evict(p->state, s);
		p->holds[s] = 0;
	}
}

/* Passes in which layer 3 is foreseen from layer 0, right or not, and from layer 2, right. */
static void run_passes(struct policy *p, uint32_t n, bool right)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t expert = i * 5 % EXPERTS;
		run_one(p, 0, 0);
		hint_for(p, HINT_GATE_FAR, 3, right ? expert : (expert + 1) % EXPERTS);
		load_wanted(p);
		run_one(p, 1, 0);
		run_one(p, 2, 0);
		hint_for(p, HINT_GATE, 3, expert);
		run_one(p, 3, expert);
		drop_all(p);
	}
	run_one(p, 0, 0);
}

/* What a far hint made the policy want, when the layer before has said what it foresees. */
static struct cache_prefetch foresee(struct policy *p, uint32_t far, uint32_t near)
{
	struct cache_prefetch want;
	open_policy(p, "outrider");
	run_passes(p, 200, true);
	load_wanted(p);
	hint_for(p, HINT_GATE_FAR, 3, far);
	assert_true(p->ops->next(p->state, 0, &want));
	assert_int_equal(want.layer * EXPERTS + want.expert, 3 * EXPERTS + far);
	assert_false(p->ops->obsolete(p->state, &want, 0));
	/* Not read yet. */
	run_one(p, 1, 0);
	run_one(p, 2, 0);
	hint_for(p, HINT_GATE, 3, near);
	return want;
}

static void what_a_nearer_hint_does_not_confirm_is_withdrawn(void **state)
{
	(void)state;
	struct policy p;
	struct cache_prefetch want = foresee(&p, 6, 2);
	assert_true(p.ops->obsolete(p.state, &want, 0));
	assert_true(p.ops->next(p.state, 0, &want));
	assert_int_equal(want.layer * EXPERTS + want.expert, 3 * EXPERTS + 2);
	assert_false(p.ops->obsolete(p.state, &want, 0));
	p.ops->destroy(p.state);
}

static void what_is_still_foreseen_is_not_withdrawn(void **state)
{
	(void)state;
	struct policy p;
	struct cache_prefetch want = foresee(&p, 6, 6);
	assert_false(p.ops->obsolete(p.state, &want, 0));
	p.ops->destroy(p.state);
}

static void the_source_is_wanted_as_long_as_it_pays(void **state)
{
	(void)state;
	struct policy p;
	open_policy(&p, "outrider");
	assert_true(cache_policy_wants(p.ops, p.state) >> HINT_GATE_FAR & 1);
	run_passes(&p, 4 * HINT_WORTH_TRIAL, true);
	assert_true(cache_policy_wants(p.ops, p.state) >> HINT_GATE_FAR & 1);
	/* Nothing that it says is believed any more after a while: then it need not be made. */
	run_passes(&p, 4 * HINT_WORTH_TRIAL, false);
	assert_false(cache_policy_wants(p.ops, p.state) >> HINT_GATE_FAR & 1);
	assert_true(cache_policy_wants(p.ops, p.state) >> HINT_GATE & 1);
	p.ops->destroy(p.state);
}

/* What an expert of layer 3 that is foreseen from layer 0 meets with. */
enum fate {
	IN_TIME,
	TAKEN_BACK,
	FOR_ANOTHER, /* nothing is begun for the hint's sake: it is on its way because it is demanded */
	EVICTED, /* before the layer runs */
	LATE, /* after the layer has run */
	LATE_TAKEN_BACK,
};

static void meet(struct policy *p, uint32_t expert, enum fate fate)
{
	struct cache_prefetch want = {.layer = 3, .expert = expert};
	hint_for(p, HINT_GATE_FAR, 3, expert);
	if (fate != FOR_ANOTHER)
		p->ops->on_begin(p->state, &want);
	if (fate == TAKEN_BACK)
		p->ops->on_dropped(p->state, 3, expert);
	else if (fate == IN_TIME || fate == EVICTED)
		arrive(p, 3, expert, LOAD_PREFETCH);
	else if (fate == FOR_ANOTHER)
		arrive(p, 3, expert, LOAD_DEMAND);
	if (fate == EVICTED)
		drop_all(p);
}

/* Whether the source is still wanted after passes in each of which two experts are foreseen and the first is used. */
static bool wanted_after(enum fate first, enum fate second)
{
	struct policy p;
	open_policy(&p, "outrider");
	for (uint32_t i = 0; i < 3 * HINT_WORTH_TRIAL; i++) {
		uint32_t expert = i * 5 % EXPERTS, other = (expert + 1) % EXPERTS;
		run_one(&p, 0, 0);
		meet(&p, other, second);
		meet(&p, expert, first);
		run_one(&p, 1, 0);
		run_one(&p, 2, 0);
		run_one(&p, 3, expert);
		run_one(&p, 0, 0);
		if (second == LATE)
			arrive(&p, 3, other, LOAD_PREFETCH);
		else if (second == LATE_TAKEN_BACK)
			p.ops->on_dropped(p.state, 3, other);
		drop_all(&p);
	}
	bool wanted = cache_policy_wants(p.ops, p.state) >> HINT_GATE_FAR & 1;
	p.ops->destroy(p.state);
	return wanted;
}

static void only_what_was_read_for_the_sources_sake_counts(void **state)
{
	(void)state;
	assert_true(wanted_after(IN_TIME, FOR_ANOTHER));
	assert_true(wanted_after(IN_TIME, TAKEN_BACK));
	assert_true(wanted_after(IN_TIME, LATE_TAKEN_BACK));
	/* Read in vain, as often as of use. */
	assert_false(wanted_after(IN_TIME, IN_TIME));
	assert_false(wanted_after(IN_TIME, LATE));
	assert_false(wanted_after(IN_TIME, EVICTED));
	/* Used, and not for its sake. */
	assert_false(wanted_after(TAKEN_BACK, FOR_ANOTHER));
	assert_false(wanted_after(FOR_ANOTHER, FOR_ANOTHER));
	assert_false(wanted_after(EVICTED, TAKEN_BACK));
}

/* Then the far hint is not the reason. */
static void what_another_source_would_have_read_does_not_count(void **state)
{
	struct policy p;
	(void)state;
	open_policy(&p, "outrider");
	for (uint32_t i = 0; i < 8 * HINT_WORTH_TRIAL; i++) {
		uint32_t expert = i * 5 % EXPERTS;
		run_one(&p, 0, 0);
		hint_for(&p, HINT_HISTORY, 3, expert);
		meet(&p, expert, IN_TIME);
		run_one(&p, 3, expert);
		drop_all(&p);
	}
	assert_false(cache_policy_wants(p.ops, p.state) >> HINT_GATE_FAR & 1);
	p.ops->destroy(p.state);
}

static void no_other_policy_takes_them(void **state)
{
	(void)state;
	for (size_t i = 0; cache_policies[i] != NULL; i++) {
		struct policy p;
		open_policy(&p, cache_policies[i]->name);
		assert_int_equal(cache_policy_wants(p.ops, p.state) >> HINT_GATE_FAR & 1,
			strcmp(p.ops->name, "outrider") == 0);
		p.ops->destroy(p.state);
	}
}

/* ---- The loads. ---- */

static bool not_wanted;
static bool obsolete_when_said(void *policy, const struct cache_prefetch *prefetch, uint64_t now_ns)
{
	(void)policy;
	(void)prefetch;
	(void)now_ns;
	return not_wanted;
}

static uint32_t begun, dropped; /* 1 + layer of the last, 0: none */
static void note_begin(void *policy, const struct cache_prefetch *prefetch)
{
	(void)policy;
	begun = 1 + prefetch->layer;
}

static void note_dropped(void *policy, uint32_t layer, uint32_t expert)
{
	(void)policy;
	(void)expert;
	dropped = 1 + layer;
}

static void a_withdrawn_prefetch_is_not_read_and_a_demand_is(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct loads loads;
	struct error err;
	rig_start(&rig, &(struct rig_options){.budget = 8, .no_worker = true});
	struct cache_policy_ops ops = *rig.store.policy;
	ops.obsolete = obsolete_when_said;
	ops.on_begin = note_begin;
	ops.on_dropped = note_dropped;
	begun = dropped = 0;
	rig.store.policy = &ops;
	assert_int_equal(loads_init(&loads, &rig.store, rig.reader, 1, &err), 0);
	const struct cache_prefetch far = {.layer = 3, .expert = 1},
				    now = {.layer = 1, .expert = 2};
	assert_true(loads_start(&loads, &far, LOAD_PREFETCH, 1));
	assert_true(loads_start(&loads, &now, LOAD_DEMAND, 1));
	not_wanted = false;
	loads_cancel_obsolete(&loads, 2);
	assert_int_equal(loads_busy(&loads), 2);
	/* Of a demand the policy is not told: it has not given it. */
	assert_int_equal(begun, 1 + 3);
	assert_int_equal(dropped, 0);
	not_wanted = true;
	loads_cancel_obsolete(&loads, 3);
	assert_int_equal(loads_busy(&loads), 1);
	assert_int_equal(dropped, 1 + 3);
	assert_int_equal(atomic_load(&rig.store.slots.counts[3].cancelled), 1);
	assert_false(store_loading(&rig.store, 3, 1));
	while (loads_busy(&loads) > 0)
		loads_collect(&loads, NULL, 1000000000);
	assert_int_not_equal(store_find(&rig.store, 1, 2), SLOT_NONE);
	assert_int_equal(store_find(&rig.store, 3, 1), SLOT_NONE);
	assert_int_equal(atomic_load(&rig.store.slots.counts[3].bytes_loaded), 0);
	loads_exit(&loads);
	rig.store.policy = cache_policy_find("lru");
	rig_stop(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_source_that_is_right_stays),
		cmocka_unit_test(a_source_that_reads_in_vain_rests_and_is_tried_again),
		cmocka_unit_test(a_source_that_nobody_follows_rests),
		cmocka_unit_test(far_hints_are_believed_as_far_as_they_were_right),
		cmocka_unit_test(a_later_prediction_takes_the_place_of_an_earlier_one),
		cmocka_unit_test(what_a_nearer_hint_does_not_confirm_is_withdrawn),
		cmocka_unit_test(what_is_still_foreseen_is_not_withdrawn),
		cmocka_unit_test(the_source_is_wanted_as_long_as_it_pays),
		cmocka_unit_test(only_what_was_read_for_the_sources_sake_counts),
		cmocka_unit_test(what_another_source_would_have_read_does_not_count),
		cmocka_unit_test(no_other_policy_takes_them),
		cmocka_unit_test(a_withdrawn_prefetch_is_not_read_and_a_demand_is),
	};
	return cmocka_run_group_tests(tests, group_init, group_exit);
}
