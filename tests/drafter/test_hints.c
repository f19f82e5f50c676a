/* Hints of the draft thread, as they arrive in the expert region. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/drafter/fake_verifier.h"
#include "tests/hints_region.h"
#include "tests/until.h"

#include <unistd.h>

enum { LAYERS = 4, EXPERTS = 16, USED = 2, UID = 77 };

struct fixture {
	struct drafter_config config;
	struct worker worker;
	struct fake fake;
	struct region experts, hints;
	struct slots slots; /* the cache's side */
};

/* It reads the one and writes to the other. */
static void as_the_drafter(struct fixture *f, struct region *experts, struct region *hints)
{
	struct error err;
	assert_int_equal(region_attach(dup(f->experts.fd), EXPERTS_REGION, EXPERTS_LAYOUT,
				 REGION_DATA, false, experts, &err),
		0);
	assert_int_equal(region_attach(dup(f->hints.fd), HINTS_REGION, HINTS_LAYOUT, REGION_DATA,
				 true, hints, &err),
		0);
}

static void open_experts(struct fixture *f, uint64_t model)
{
	struct slots_shape shape = {.n_layers = LAYERS,
		.n_experts = EXPERTS,
		.n_experts_used = USED,
		.n_slots = 8,
		.slot_bytes = SLOTS_PAGE,
		.model_fingerprint = model};
	struct error err;
	assert_int_equal(region_create(EXPERTS_REGION, EXPERTS_LAYOUT, slots_payload_bytes(&shape),
				 0, &f->experts, &err),
		0);
	slots_format(&f->experts, &shape);
	assert_int_equal(slots_map(&f->experts, NULL, &f->slots, &err), 0);
	make_hints(&f->hints, &f->slots);
	atomic_store(&f->slots.header->hint_sources, UINT32_MAX);
	struct region experts, hints;
	as_the_drafter(f, &experts, &hints);
	worker_give(&f->worker, WORKER_EXPERTS, &experts);
	worker_give(&f->worker, WORKER_HINTS, &hints);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct error err = {""};
	config_defaults(drafter_config_keys, &f->config);
	assert_int_equal(drafter_config_resolve(&f->config, &err), 0);
	assert_int_equal(worker_init(&f->worker, &f->config, NULL, NULL, &err), 0);
	assert_int_equal(worker_start(&f->worker, &err), 0);
	fake_open(&f->fake, 1);
	open_experts(f, 1);
	fake_offer(&f->fake, &f->worker);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	worker_exit(&f->worker);
	fake_close(&f->fake);
	region_close(&f->experts);
	region_close(&f->hints);
	free(f);
	return 0;
}

/* A token wants the experts token % 8 and token % 8 + 8 in every layer. */
static void teach(struct fixture *f, int32_t before, int32_t token)
{
	struct draft_routing r = {.session = UID,
		.page = 2,
		.token = token,
		.before = before,
		.n_layers = LAYERS,
		.n_moe = LAYERS,
		.n_used = USED};
	for (uint16_t l = 0; l < LAYERS; l++) {
		uint16_t *items = r.items + l * (1 + USED);
		items[0] = l;
		items[1] = (uint16_t)(token % 8);
		items[2] = (uint16_t)(token % 8 + 8);
	}
	assert_true(ring_put(&f->fake.rings.routings, &r, sizeof(r)));
}

static const int32_t prompt[] = {5, 6, 7, 4, 1, 5, 6, 7};

/* Several times what the prompt's tokens want. */
static void teach_prompt(struct fixture *f)
{
	for (int i = 0; i < 20; i++)
		for (int t = 0; t < 8; t++)
			teach(f, t > 0 ? prompt[t - 1] : -1, prompt[t]);
}

static void request(struct fixture *f, uint32_t n_tokens, uint32_t k, uint64_t iteration)
{
	struct draft_request r = {.session = UID,
		.sequence = ++f->fake.sequence,
		.page = 2,
		.n_tokens = n_tokens,
		.budget = draft_chain_budget(k),
		.last = 1,
		.iteration = iteration};
	assert_true(ring_put(&f->fake.rings.requests, &r, sizeof(r)));
}

/* The next hint, within 20 s. */
static bool next(struct fixture *f, struct slot_hint *hint)
{
	struct patience patience;
	patience_init(&patience, 20000);
	while (patience_step_ms(&patience) > 0) {
		if (ring_get(&f->slots.hints, hint, sizeof(*hint)))
			return true;
		usleep(200);
	}
	return false;
}

/* Until the thread has learnt everything that it was told. */
static void learnt(struct fixture *f, uint64_t n)
{
	UNTIL(atomic_load(&f->worker.hints.learnt) >= n);
	assert_int_equal(atomic_load(&f->worker.hints.learnt), n);
}

static void at_k_0_the_newest_tokens_experts_are_hinted_for_layer_by_layer(void **state)
{
	struct fixture *f = *state;
	struct slot_hint hint;
	fake_begin(&f->fake, 2, UID, DRAFT_NONE, prompt, 8);
	teach_prompt(f);
	learnt(f, 160);
	request(f, 8, 0, 1000);
	for (uint32_t i = 0; i < LAYERS * USED; i++) {
		assert_true(next(f, &hint));
		assert_int_equal(hint.layer, i / USED);
		assert_int_equal(hint.expert % 8, 7);
		assert_int_equal(hint.source, HINT_HISTORY);
		assert_int_equal(hint.session, UID);
		assert_int_equal(hint.iteration, 1000 + hint.layer);
		assert_true(hint.score > 0.5f && hint.score <= 1);
		assert_true(hint.needed_by_ns >= hint.made_ns);
	}
	/* The same pass is not hinted for twice; the next is. */
	request(f, 8, 0, 1000);
	request(f, 8, 0, 1004);
	assert_true(next(f, &hint));
	assert_int_equal(hint.iteration, 1004);
}

/* The verifier's own draft behind the prompt: 4, which followed 7, and 1. */
static void tokens_that_the_verifier_drafted_are_hinted_for_at_once(void **state)
{
	struct fixture *f = *state;
	struct slot_hint hint;
	bool wanted[8] = {false};
	fake_begin(&f->fake, 2, UID, DRAFT_MTP_LORA, prompt, 8);
	teach_prompt(f);
	learnt(f, 160);
	struct draft_request r = {.session = UID,
		.sequence = ++f->fake.sequence,
		.page = 2,
		.n_tokens = 8,
		.last = 1,
		.iteration = 3000,
		.n_own = 2,
		.own = {4, 1}};
	assert_true(ring_put(&f->fake.rings.requests, &r, sizeof(r)));
	for (uint32_t i = 0; i < LAYERS * USED * 2; i++) {
		assert_true(next(f, &hint));
		wanted[hint.expert % 8] = true;
		assert_int_equal(hint.iteration, 3000 + hint.layer);
	}
	assert_true(wanted[7] && wanted[4] && wanted[1]);
	/* More of them than there can be, and tokens that are none, do no harm. */
	r.sequence = ++f->fake.sequence;
	r.iteration = 3010;
	r.n_own = UINT32_MAX;
	r.own[0] = INT32_MIN;
	r.own[1] = INT32_MAX;
	assert_true(ring_put(&f->fake.rings.requests, &r, sizeof(r)));
	assert_true(next(f, &hint));
}

static void ngram_drafts_are_hinted_for_after_the_reply(void **state)
{
	struct fixture *f = *state;
	struct fake_drafted reply;
	struct slot_hint hint;
	bool wanted[8] = {false};
	fake_begin(&f->fake, 2, UID, DRAFT_NGRAM, prompt, 8);
	teach_prompt(f);
	learnt(f, 160);
	request(f, 8, 2, 2000);
	assert_true(fake_reply(&f->fake, &reply));
	assert_int_equal(reply.n, 2);
	/* 7, and what followed it: 4 and 1. */
	for (uint32_t i = 0; i < LAYERS * USED * 2; i++) {
		assert_true(next(f, &hint));
		wanted[hint.expert % 8] = true;
	}
	assert_true(wanted[7] && wanted[4] && wanted[1]);
}

static void nobody_is_hinted_for_who_did_not_say_which_pass_it_is(void **state)
{
	struct fixture *f = *state;
	struct slot_hint hint;
	fake_begin(&f->fake, 2, UID, DRAFT_NONE, prompt, 8);
	teach_prompt(f);
	learnt(f, 160);
	request(f, 8, 0, 0);
	request(f, 8, 0, 3000);
	assert_true(next(f, &hint));
	assert_int_equal(hint.iteration, 3000);
}

static void a_cache_that_wants_none_gets_none(void **state)
{
	struct fixture *f = *state;
	struct fake_drafted reply;
	fake_begin(&f->fake, 2, UID, DRAFT_NGRAM, prompt, 8);
	teach_prompt(f);
	learnt(f, 160);
	atomic_store(&f->slots.header->hint_sources, 1u << HINT_GATE);
	request(f, 8, 2, 1000);
	assert_true(fake_reply(&f->fake, &reply));
	request(f, 8, 2, 1004);
	assert_true(fake_reply(&f->fake, &reply));
	assert_int_equal(ring_length(&f->slots.hints), 0);
}

/* What the cache plans with. */
static void the_length_of_drafts_is_published(void **state)
{
	struct fixture *f = *state;
	struct fake_drafted reply;
	fake_begin(&f->fake, 2, UID, DRAFT_NGRAM, prompt, 8);
	request(f, 8, 3, 1000);
	assert_true(fake_reply(&f->fake, &reply));
	/* The second answer comes after the first round's accounts. */
	request(f, 8, 3, 1004);
	assert_true(fake_reply(&f->fake, &reply));
	assert_int_equal(atomic_load(&f->slots.hinted->draft_tokens), 3);
	assert_int_equal(atomic_load(&f->slots.hinted->draft_layer_ns), 0);
}

/* MoE-SpAc, equation 10: of the target's layers, whatever the draft model has. */
static void a_draft_models_time_is_published_by_the_targets_layers(void **state)
{
	struct fixture *f = *state;
	struct hints hints;
	struct region experts, region;
	struct error err;
	hints_init(&hints, &f->config);
	as_the_drafter(f, &experts, &region);
	assert_int_equal(hints_attach(&hints, &experts, NULL, &err), 0);
	assert_false(hints.attached);
	assert_int_equal(hints_attach(&hints, NULL, &region, &err), 0);
	assert_true(hints.attached);
	hints_step_took(&hints, 1200);
	hints_measured(&hints, 3, true);
	assert_int_equal(atomic_load(&f->slots.hinted->draft_tokens), 3);
	assert_int_equal(atomic_load(&f->slots.hinted->draft_layer_ns), 1200 / LAYERS);
	hints_measured(&hints, 2, false);
	assert_int_equal(atomic_load(&f->slots.hinted->draft_tokens), 2);
	assert_int_equal(atomic_load(&f->slots.hinted->draft_layer_ns), 0);
	hints_exit(&hints);
}

static void rubbish_from_either_peer_harms_nobody(void **state)
{
	struct fixture *f = *state;
	struct fake_drafted reply;
	struct slot_hint hint;
	uint64_t seed = 88172645463325252u;
	fake_begin(&f->fake, 2, UID, DRAFT_NGRAM, prompt, 8);
	for (int i = 0; i < 3000; i++) {
		uint64_t words[DRAFT_ROUTING_BYTES / 8];
		for (size_t w = 0; w < DRAFT_ROUTING_BYTES / 8; w++) {
			seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
			words[w] = i % 3 ? seed : seed & 0x000f000f000f000f;
		}
		ring_put(&f->fake.rings.routings, words, sizeof(words));
	}
	atomic_store(&f->slots.header->verify_layer_ns, UINT64_MAX);
	atomic_store(&f->slots.hints.shared->head, UINT64_MAX / 3);
	atomic_store(&f->fake.rings.routings.shared->head, UINT64_MAX / 5);
	request(f, 8, 2, UINT64_MAX);
	assert_true(fake_reply(&f->fake, &reply));
	assert_int_equal(reply.n, 2);
	/* The rings are put right, each by its own end; then hints go on. */
	ring_mend_producer(&f->fake.rings.routings);
	ring_mend_consumer(&f->slots.hints);
	uint64_t before = atomic_load(&f->worker.hints.learnt);
	teach_prompt(f);
	learnt(f, before + 160);
	request(f, 8, 0, 5000);
	assert_true(next(f, &hint));
}

static void another_models_region_forgets_what_was_learnt(void **state)
{
	struct fixture *f = *state;
	struct slot_hint hint;
	fake_begin(&f->fake, 2, UID, DRAFT_NONE, prompt, 8);
	teach_prompt(f);
	learnt(f, 160);
	region_close(&f->experts);
	region_close(&f->hints);
	open_experts(f, 2);
	/* 12 wants 4 and 12; 7 was never seen with this model. Until the thread has the region. */
	uint64_t iteration = 1000;
	struct patience patience;
	patience_init(&patience, 20000);
	do {
		teach(f, 6, 12);
		request(f, 8, 0, iteration += LAYERS);
		usleep(1000);
	} while (
		!ring_get(&f->slots.hints, &hint, sizeof(hint)) && patience_step_ms(&patience) > 0);
	assert_int_equal(hint.expert % 8, 4);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(at_k_0_the_newest_tokens_experts_are_hinted_for_layer_by_layer),
		TEST(tokens_that_the_verifier_drafted_are_hinted_for_at_once),
		TEST(ngram_drafts_are_hinted_for_after_the_reply),
		TEST(nobody_is_hinted_for_who_did_not_say_which_pass_it_is),
		TEST(a_cache_that_wants_none_gets_none),
		TEST(the_length_of_drafts_is_published),
		TEST(a_draft_models_time_is_published_by_the_targets_layers),
		TEST(rubbish_from_either_peer_harms_nobody),
		TEST(another_models_region_forgets_what_was_learnt),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
