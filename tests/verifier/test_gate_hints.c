/* What the verifier tells of its passes: hints from the next layers' routers, and which experts tokens went to. */
#include "services/verifier/pass/gate_hints.h"
#include "services/verifier/pass/routing_feed.h"
#include "tests/hints_region.h"
#include "tests/model/rig.h"

#include "shared/ipc/region.h"
#include "shared/model/gguf/gguf_watch.h"

#define MODEL "models/outrider-demo-moe-q8_0.gguf"

enum { TOKENS = 5 };
static const int32_t text[TOKENS] = {301, 522, 1045, 700, 919};

struct fixture {
	struct rig rig;
	struct region region, hints;
	struct slots slots; /* the cache's side */
	struct experts_cached *cached;
	struct gate_hints gates;
	struct routing_feed feed;
	void *draft;
	struct draft_rings drafter; /* the drafter's side */
	struct draft_rings verifier;
	struct kv_seq seq;
	/* Of the last pass, from the hook. */
	uint16_t chosen[LIMIT_LAYERS][TOKENS][LIMIT_EXPERTS_USED];
	float *logits;
	uint32_t first; /* of the text's tokens */
	uint32_t meanwhile; /* calls of gate_hints_meanwhile in a layer at most */
};

static void need_model(void)
{
	if (access(MODEL, R_OK) == 0)
		return;
	print_message("# no " MODEL "\n");
	skip();
}

static void open_region(struct fixture *f, uint32_t n_slots)
{
	struct slots_geometry geometry;
	struct error err;
	slots_geometry_init(&geometry, f->rig.model);
	struct slots_shape shape = {.n_layers = geometry.n_layers,
		.n_experts = geometry.n_experts,
		.n_experts_used = geometry.n_experts_used,
		.n_slots = n_slots,
		.slot_bytes = geometry.slot_bytes,
		.model_fingerprint = f->rig.model->fingerprint};
	assert_int_equal(region_create(EXPERTS_REGION, EXPERTS_LAYOUT, slots_payload_bytes(&shape),
				 0, &f->region, &err),
		0);
	slots_format(&f->region, &shape);
	((struct slots_header *)region_payload(&f->region))->model_files =
		gguf_files(f->rig.model->gguf);
	assert_int_equal(slots_map(&f->region, NULL, &f->slots, &err), 0);
	make_hints(&f->hints, &f->slots);
}

/* As the engine does, but that experts come from the mapping: there is no cache. */
static void on_layer(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct fixture *f = arg;
	uint32_t k = f->rig.model->config.n_experts_used;
	(void)weights;
	for (uint32_t t = 0; t < n_tokens; t++)
		memcpy(f->chosen[layer][t], experts + (size_t)t * k, k * sizeof(*experts));
	gate_hints_layer(&f->gates, layer, hidden);
	for (uint32_t i = 0; i < f->meanwhile && gate_hints_meanwhile(&f->gates); i++)
		continue;
	routing_feed_layer(&f->feed, layer, n_tokens, experts);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct error err = {""};
	*state = f;
	if (access(MODEL, R_OK) != 0)
		return 0;
	rig_open(&f->rig, MODEL, NULL, 1, KV_Q16_0);
	open_region(f, 40);
	struct experts_cached_options options = {.backend = f->rig.backend, .generation = 100};
	assert_int_equal(experts_cached_create(f->rig.model, &options, &f->cached, &err), 0);
	assert_int_equal(experts_cached_attach(f->cached, &f->region, &f->hints, &err), 0);
	assert_int_equal(gate_hints_init(&f->gates, f->rig.model, f->rig.backend, f->cached,
				 VERIFIER_GATES_AUTO, &err),
		0);
	gate_hints_queue(&f->gates, forward_queue(f->rig.forward));
	size_t bytes = (draft_bytes() + CACHE_LINE) / CACHE_LINE * CACHE_LINE;
	f->draft = aligned_alloc(CACHE_LINE, bytes);
	memset(f->draft, 0, bytes);
	draft_format(f->draft);
	assert_int_equal(draft_attach(&f->drafter, f->draft, draft_bytes(), &err), 0);
	assert_int_equal(draft_attach(&f->verifier, f->draft, draft_bytes(), &err), 0);
	assert_int_equal(
		routing_feed_init(&f->feed, f->rig.model, &f->verifier.routings, RIG_BATCH, &err),
		0);
	f->logits = calloc((size_t)TOKENS * f->rig.n_vocab, sizeof(float));
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	if (f->cached) {
		gate_hints_exit(&f->gates);
		routing_feed_exit(&f->feed);
		experts_cached_destroy(&f->cached);
		region_close(&f->region);
		region_close(&f->hints);
		rig_close(&f->rig);
		free(f->draft);
		free(f->logits);
	}
	free(f);
	return 0;
}

static void want(struct fixture *f, uint32_t sources)
{
	atomic_store(&f->slots.header->hint_sources, sources);
}

/* One pass over n tokens of the text with the hooks. */
static void pass_of(struct fixture *f, uint32_t n, bool hooks, float *logits)
{
	const struct forward_hooks all = {.layer = on_layer, .arg = f};
	struct kv_seq seq;
	forward_set_hooks(f->rig.forward, hooks ? &all : NULL);
	gate_hints_begin(&f->gates);
	rig_seq(&f->rig, &seq);
	rig_chain(&f->rig, &seq, text + f->first, n, n, logits);
	gate_hints_end(&f->gates, 6000000, 0, true);
	kv_seq_exit(&f->rig.kv, &seq);
}

static void pass(struct fixture *f, bool hooks, float *logits)
{
	pass_of(f, TOKENS, hooks, logits);
}

static void hints_are_of_the_next_layer_and_mostly_right(void **state)
{
	struct fixture *f = *state;
	need_model();
	uint32_t k = f->rig.model->config.n_experts_used, found = 0, n = 0;
	uint32_t last = f->rig.model->config.n_layers - 1;
	struct slot_hint hint;
	want(f, 1u << HINT_GATE);
	pass(f, true, NULL);
	while (ring_get(&f->slots.gates, &hint, sizeof(hint))) {
		assert_in_range(hint.layer, 1, last);
		assert_in_range(hint.expert, 0, f->rig.model->config.n_experts - 1);
		assert_int_equal(hint.source, HINT_GATE);
		assert_true(hint.score > 0);
		assert_true(hint.iteration > 100);
		assert_true(hint.made_ns > 0 && hint.needed_by_ns >= hint.made_ns);
		bool used = false;
		for (uint32_t t = 0; t < TOKENS; t++)
			for (uint32_t j = 0; j < k; j++)
				used |= f->chosen[hint.layer][t][j] == hint.expert;
		found += used;
		n++;
	}
	/* At random about as many would be right as the layer uses of its experts. */
	assert_true(n >= last * k);
	assert_true(found > n * 6 / 10);
	assert_int_equal(f->gates.sent, n);
}

/* Hints of the source in the ring, by how many layers ahead of the last one they were made; how many are right. */
static uint32_t read_far(struct fixture *f, uint32_t n_tokens, uint32_t *n)
{
	uint32_t k = f->rig.model->config.n_experts_used, found = 0;
	uint32_t last = f->rig.model->config.n_layers - 1;
	struct slot_hint hint;
	*n = 0;
	while (ring_get(&f->slots.gates, &hint, sizeof(hint))) {
		bool used = false;
		if (hint.source != HINT_GATE_FAR)
			continue;
		assert_in_range(hint.layer, 2, last);
		assert_in_range(hint.expert, 0, f->rig.model->config.n_experts - 1);
		assert_true(hint.score > 0 && hint.iteration > 101);
		assert_true(hint.made_ns > 0 && hint.needed_by_ns >= hint.made_ns);
		for (uint32_t t = 0; t < n_tokens; t++)
			for (uint32_t j = 0; j < k; j++)
				used |= f->chosen[hint.layer][t][j] == hint.expert;
		found += used;
		++*n;
	}
	return found;
}

static void few_tokens_are_looked_farther_ahead_for(void **state)
{
	struct fixture *f = *state;
	need_model();
	uint32_t k = f->rig.model->config.n_experts_used, layers = f->rig.model->config.n_layers;
	uint32_t n, found, sum = 0, right = 0;
	want(f, 1u << HINT_GATE | 1u << HINT_GATE_FAR);
	/* Nothing is missing: the farthest at once. From the last layer but two on that is the last. */
	for (f->first = 0; f->first < TOKENS; f->first++, sum += n, right += found) {
		pass_of(f, 1, true, NULL);
		found = read_far(f, 1, &n);
		assert_int_equal(n, (layers - 2) * k);
	}
	assert_true(
		right * f->rig.model->config.n_experts > sum * k * 2); /* twice as chance has it */
	/* While somebody waits, nearer ones too. */
	f->meanwhile = UINT32_MAX;
	for (f->first = sum = right = 0; f->first < TOKENS; f->first++, sum += n, right += found) {
		pass_of(f, 1, true, NULL);
		found = read_far(f, 1, &n);
		assert_int_equal(n, ((layers - 3) * 2 + 1) * k);
	}
	assert_true(right * f->rig.model->config.n_experts > sum * k * 2);
	f->first = 0;
	/* A slice is not all. */
	f->meanwhile = 1;
	pass_of(f, GATE_FAR_TOKENS, true, NULL);
	read_far(f, GATE_FAR_TOKENS, &n);
	assert_true(n > 0);
	/* Of more tokens none. */
	f->meanwhile = UINT32_MAX;
	pass_of(f, GATE_FAR_TOKENS + 1, true, NULL);
	read_far(f, GATE_FAR_TOKENS + 1, &n);
	assert_int_equal(n, 0);
	assert_true(f->gates.far_sent > 0 && f->gates.far_sent < f->gates.sent);
}

static void far_hints_are_made_only_for_who_wants_them(void **state)
{
	struct fixture *f = *state;
	need_model();
	f->meanwhile = UINT32_MAX;
	want(f, 1u << HINT_GATE);
	pass_of(f, 1, true, NULL);
	want(f, 0);
	pass_of(f, 1, true, NULL);
	want(f, UINT32_MAX);
	f->gates.choice = VERIFIER_GATES_NEAR;
	pass_of(f, 1, true, NULL);
	assert_true(f->gates.sent > 0);
	assert_int_equal(f->gates.far_sent, 0);
	f->gates.choice = VERIFIER_GATES_ON;
	pass_of(f, 1, true, NULL);
	assert_true(f->gates.far_sent > 0);
}

static void a_pass_with_far_hints_gives_the_same_bits(void **state)
{
	struct fixture *f = *state;
	need_model();
	size_t n = (size_t)GATE_FAR_TOKENS * f->rig.n_vocab;
	float *plain = calloc(n, sizeof(*plain));
	pass_of(f, GATE_FAR_TOKENS, false, plain);
	want(f, UINT32_MAX);
	for (f->meanwhile = 0; f->meanwhile < 4; f->meanwhile++) {
		pass_of(f, GATE_FAR_TOKENS, true, f->logits);
		assert_memory_equal(plain, f->logits, n * sizeof(*plain));
	}
	assert_true(f->gates.far_sent > 0);
	free(plain);
}

static void a_pass_with_hints_gives_the_same_bits(void **state)
{
	struct fixture *f = *state;
	need_model();
	size_t n = (size_t)TOKENS * f->rig.n_vocab;
	float *plain = calloc(n, sizeof(*plain));
	pass(f, false, plain);
	want(f, UINT32_MAX);
	f->feed.on = true;
	pass(f, true, f->logits);
	assert_memory_equal(plain, f->logits, n * sizeof(*plain));
	assert_true(f->gates.sent > 0);
	free(plain);
}

static void what_nobody_wants_is_not_made(void **state)
{
	struct fixture *f = *state;
	need_model();
	want(f, 0);
	pass(f, true, NULL);
	want(f, 1u << HINT_DRAFT);
	pass(f, true, NULL);
	assert_int_equal(f->gates.sent, 0);
	/* Forced where the cache wants any. */
	f->gates.choice = VERIFIER_GATES_ON;
	pass(f, true, NULL);
	assert_true(f->gates.sent > 0);
	uint64_t sent = f->gates.sent;
	want(f, 0);
	pass(f, true, NULL);
	f->gates.choice = VERIFIER_GATES_OFF;
	want(f, UINT32_MAX);
	pass(f, true, NULL);
	assert_int_equal(f->gates.sent, sent);
}

static void a_full_ring_is_no_obstacle(void **state)
{
	struct fixture *f = *state;
	need_model();
	want(f, 1u << HINT_GATE);
	for (int i = 0; i < 400; i++)
		pass(f, true, NULL);
	assert_int_equal(f->gates.sent, SLOTS_GATE_RING);
	assert_true(ring_dropped(&f->slots.gates) > 0);
}

static void the_time_of_a_layer_is_published(void **state)
{
	struct fixture *f = *state;
	need_model();
	want(f, 0);
	pass(f, true, NULL);
	assert_int_equal(atomic_load(&f->slots.header->verify_layer_ns),
		6000000 / f->rig.model->config.n_layers);
	/* A prompt's pass says nothing about a verification. */
	gate_hints_end(&f->gates, 1, 0, false);
	gate_hints_end(&f->gates, 5, 6, true);
	assert_int_equal(atomic_load(&f->slots.header->verify_layer_ns),
		6000000 / f->rig.model->config.n_layers);
}

static void every_token_is_told_with_its_experts(void **state)
{
	struct fixture *f = *state;
	need_model();
	const struct model_config *c = &f->rig.model->config;
	struct draft_routing entry;
	uint32_t layers[TOKENS] = {0};
	f->feed.on = true;
	pass(f, true, NULL);
	/* A chain whose last token is a second child of the first. */
	struct batch_token batch[TOKENS];
	for (int i = 0; i < TOKENS; i++)
		batch[i] = (struct batch_token){.token = text[i],
			.position = 20 + (uint32_t)i,
			.parent = i == TOKENS - 1 ? 0 : i - 1};
	routing_feed_publish(&f->feed, batch, 0, TOKENS, 77, 6, 1234, NULL);
	while (ring_get(&f->drafter.routings, &entry, sizeof(entry))) {
		uint32_t t = entry.position - 20;
		assert_in_range(t, 0, TOKENS - 1);
		assert_int_equal(entry.session, 77);
		assert_int_equal(entry.page, 6);
		assert_int_equal(entry.token, text[t]);
		assert_int_equal(entry.before, t == 0		 ? 1234
					       : t == TOKENS - 1 ? text[0]
								 : text[t - 1]);
		assert_int_equal(entry.n_moe, c->n_layers);
		assert_int_equal(entry.n_used, c->n_experts_used);
		for (uint32_t l = 0; l < entry.n_layers; l++, layers[t]++) {
			const uint16_t *items = entry.items + l * (1 + c->n_experts_used);
			assert_int_equal(items[0], entry.first + l);
			assert_memory_equal(items + 1, f->chosen[items[0]][t],
				c->n_experts_used * sizeof(*items));
		}
	}
	for (int t = 0; t < TOKENS; t++)
		assert_int_equal(layers[t], c->n_layers);
	/* Nobody listens: it is counted, and the pass goes on. */
	for (int i = 0; i < DRAFT_ROUTING_SLOTS; i++)
		routing_feed_publish(&f->feed, batch, 0, TOKENS, 77, 6, 1234, NULL);
	assert_true(ring_dropped(&f->drafter.routings) > 0);
	assert_int_equal(ring_length(&f->drafter.routings), DRAFT_ROUTING_SLOTS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(hints_are_of_the_next_layer_and_mostly_right),
		TEST(few_tokens_are_looked_farther_ahead_for),
		TEST(far_hints_are_made_only_for_who_wants_them),
		TEST(a_pass_with_far_hints_gives_the_same_bits),
		TEST(a_pass_with_hints_gives_the_same_bits),
		TEST(what_nobody_wants_is_not_made),
		TEST(a_full_ring_is_no_obstacle),
		TEST(the_time_of_a_layer_is_published),
		TEST(every_token_is_told_with_its_experts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
