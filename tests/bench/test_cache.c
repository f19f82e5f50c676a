/* outrider-bench cache: traces are read back as written and refused when damaged, replays count what happens. */
#include "bench/src/cache.h"
#include "bench/src/cache_quality.h"
#include "bench/src/cache_replay.h"
#include "shared/spec/slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct cache_trace synth(enum cache_synth_kind kind, uint32_t k, uint32_t passes)
{
	struct cache_synth_options o = {.kind = kind,
		.n_layers = 4,
		.n_experts = 16,
		.n_experts_used = 2,
		.k = k,
		.passes = passes,
		.hint_percent = 90,
		.seed = 5};
	struct cache_trace trace;
	struct error err = {""};
	if (cache_synth(&o, &trace, &err) != 0)
		fail_msg("%s", err.text);
	return trace;
}

/* A file of that trace; its bytes. */
static unsigned char *written(const struct cache_trace *trace, size_t *bytes)
{
	char path[] = "/tmp/outrider-trace-XXXXXX";
	struct error err = {""};
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(cache_trace_write(trace, path, &err), 0);
	/* The name is another file's now. */
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	*bytes = (size_t)lseek(fd, 0, SEEK_END);
	unsigned char *data = malloc(*bytes);
	assert_int_equal(pread(fd, data, *bytes, 0), (ssize_t)*bytes);
	close(fd);
	remove(path);
	return data;
}

static void traces_are_read_back(void **state)
{
	(void)state;
	struct cache_trace trace = synth(SYNTH_ZIPF, 3, 50), read;
	struct error err = {""};
	size_t bytes;
	unsigned char *data = written(&trace, &bytes);
	if (cache_trace_parse(data, bytes, &read, &err) != 0)
		fail_msg("%s", err.text);
	assert_string_equal(read.name, trace.name);
	assert_int_equal(read.k, 3);
	assert_int_equal(read.n_passes, 50);
	assert_int_equal(read.n_layer_runs, 200);
	assert_int_equal(read.n_hints, trace.n_hints);
	assert_memory_equal(read.uses, trace.uses, trace.n_uses * sizeof(*trace.uses));
	assert_memory_equal(read.hints, trace.hints, trace.n_hints * sizeof(*trace.hints));
	assert_memory_equal(read.layers, trace.layers, trace.n_layer_runs * sizeof(*trace.layers));
	free(data);
	cache_trace_exit(&read);
	cache_trace_exit(&trace);
}

static void damaged_traces_are_refused(void **state)
{
	(void)state;
	struct cache_trace trace = synth(SYNTH_UNIFORM, 1, 4), read;
	struct error err = {""};
	size_t bytes;
	unsigned char *data = written(&trace, &bytes);
	for (size_t n = 0; n < bytes; n++) {
		err.text[0] = '\0';
		assert_int_equal(cache_trace_parse(data, n, &read, &err), -EBADMSG);
		assert_true(err.text[0] != '\0');
	}
	for (size_t i = 0; i < bytes; i++) {
		data[i] ^= 0x11;
		int rc = cache_trace_parse(data, bytes, &read, &err);
		assert_true(rc == -EBADMSG);
		data[i] ^= 0x11;
	}
	assert_int_equal(cache_trace_parse(data, bytes, &read, &err), 0);
	cache_trace_exit(&read);
	free(data);
	cache_trace_exit(&trace);
}

static struct replay_totals replayed_with(
	const struct cache_trace *trace, const struct replay_options *with)
{
	struct replay_options options = *with;
	options.link = (struct replay_link){1e9, 10000};
	struct replay_result result;
	struct error err = {""};
	if (cache_replay(trace, &options, &result, &err) != 0)
		fail_msg("%s", err.text);
	assert_int_equal(
		result.decode.uses, result.decode.hits + result.decode.late + result.decode.misses);
	assert_int_equal(result.decode.uses, trace->n_uses);
	assert_int_equal(result.decode.passes, trace->n_passes);
	return result.decode;
}

static struct replay_totals replayed(
	const struct cache_trace *trace, const struct cache_policy_ops *policy, uint32_t n_slots)
{
	struct replay_options options = {.policy = policy, .n_slots = n_slots};
	return replayed_with(trace, &options);
}

/* Belady's with so many runs of each layer known. */
static struct replay_totals foreseen(
	const struct cache_trace *trace, uint32_t n_slots, uint32_t ahead)
{
	struct replay_options options = {
		.policy = &replay_belady, .n_slots = n_slots, .ahead = ahead};
	return replayed_with(trace, &options);
}

/* Three experts in turn, two slots: LRU never hits; Belady's loads 1, 2, 3 (for 2), 2 (for 3)... every second hits. */
static void a_circle_is_replayed_by_the_rule(void **state)
{
	(void)state;
	struct cache_trace trace;
	cache_trace_init(&trace);
	trace.n_layers = 1;
	trace.n_experts = 3;
	trace.n_experts_used = 1;
	trace.expert_bytes = 1000000;
	trace.moe[0] = true;
	for (uint32_t i = 0; i < 8; i++) {
		struct trace_pass pass = {.session = 1, .tokens = 1, .emitted = 1};
		struct trace_layer layer = {.before_ns = 1000, .after_ns = 3000};
		assert_int_equal(cache_trace_add_pass(&trace, &pass), 0);
		assert_int_equal(cache_trace_add_layer(&trace, &layer), 0);
		struct trace_use use = {(uint16_t)(i % 3), 1};
		assert_int_equal(cache_trace_add_use(&trace, use), 0);
	}
	struct replay_totals lru = replayed(&trace, cache_policy_find("lru"), 2);
	assert_int_equal(lru.hits, 0);
	assert_int_equal(lru.loads, 8);
	/* A load is 1 ms on the link and 10 us later there; nothing overlaps it. */
	assert_int_equal(lru.stall_ns, 8 * 1010000);
	assert_int_equal(lru.time_ns, 8 * 1014000);
	/* 0 1 | 2 for 1 | 0 hits | 1 for 0 | 2 hits | 0 for 2 | 1 hits: 5 loads. */
	struct replay_totals belady = replayed(&trace, &replay_belady, 2);
	assert_int_equal(belady.loads, 5);
	assert_int_equal(belady.hits, 3);
	/* It never gives up what comes next: to know that is enough here. */
	assert_int_equal(foreseen(&trace, 2, 1).loads, 5);
	cache_trace_exit(&trace);
}

static void who_sees_further_loads_less_until_all_is_seen(void **state)
{
	(void)state;
	static const enum cache_synth_kind kinds[] = {SYNTH_UNIFORM, SYNTH_ZIPF, SYNTH_PHASES};
	for (size_t kind = 0; kind < 3; kind++) {
		struct cache_trace trace = synth(kinds[kind], 0, 300);
		uint64_t bound = replayed(&trace, &replay_belady, 25).loads;
		uint64_t before = foreseen(&trace, 25, 1).loads;
		assert_true(before > bound);
		for (uint32_t ahead = 2; ahead <= 512; ahead *= 2) {
			uint64_t loads = foreseen(&trace, 25, ahead).loads;
			assert_true(loads <= before && loads >= bound);
			before = loads;
		}
		assert_int_equal(before, bound);
		cache_trace_exit(&trace);
	}
}

static void nothing_loads_less_than_beladys(void **state)
{
	(void)state;
	static const enum cache_synth_kind kinds[] = {SYNTH_UNIFORM, SYNTH_ZIPF, SYNTH_PHASES};
	for (size_t kind = 0; kind < 3; kind++)
		for (uint32_t k = 0; k < 4; k += 3) {
			struct cache_trace trace = synth(kinds[kind], k, 300);
			for (uint32_t slots = 12; slots <= 64; slots += 13) {
				uint64_t bound = replayed(&trace, &replay_belady, slots).loads;
				for (size_t i = 0; cache_policies[i]; i++)
					assert_true(
						replayed(&trace, cache_policies[i], slots).loads >=
						bound);
			}
			cache_trace_exit(&trace);
		}
}

static void with_room_for_all_each_is_loaded_once(void **state)
{
	(void)state;
	struct cache_trace trace = synth(SYNTH_UNIFORM, 3, 200);
	for (size_t i = 0; cache_policies[i]; i++)
		assert_int_equal(replayed(&trace, cache_policies[i], 64).loads, 64);
	cache_trace_exit(&trace);
}

/* Skewed use, and hints that are mostly right: ours reads less than LRU and waits less than those without prefetches. */
static void outrider_beats_what_it_is_made_of(void **state)
{
	(void)state;
	for (uint32_t k = 0; k < 4; k += 3) {
		struct cache_trace trace = synth(SYNTH_ZIPF, k, 2000);
		struct replay_totals ours = replayed(&trace, cache_policy_find("outrider"), 24);
		struct replay_totals lru = replayed(&trace, cache_policy_find("lru"), 24);
		assert_true(ours.loads < lru.loads);
		assert_true(ours.stall_ns < lru.stall_ns);
		cache_trace_exit(&trace);
	}
}

/* Skewed use of many experts, which does not change, and no hints. */
static struct cache_trace skewed(uint64_t seed, uint32_t passes)
{
	struct cache_synth_options o = {.kind = SYNTH_ZIPF,
		.n_layers = 8,
		.n_experts = 128,
		.n_experts_used = 8,
		.passes = passes,
		.seed = seed};
	struct cache_trace trace;
	struct error err = {""};
	if (cache_synth(&o, &trace, &err) != 0)
		fail_msg("%s", err.text);
	return trace;
}

/* What is learnt of 32 experts at once is learnt of 128 as well: the most frequent are kept, as by a policy that does
 * nothing else. */
static void outrider_keeps_the_most_frequent_of_many(void **state)
{
	(void)state;
	struct cache_trace trace = skewed(3, 1000);
	struct replay_totals ours = replayed(&trace, cache_policy_find("outrider"), 512);
	struct replay_totals hot = replayed(&trace, cache_policy_find("static"), 512);
	assert_true(ours.loads < hot.loads);
	cache_trace_exit(&trace);
}

static void count_uses(const struct cache_trace *trace, uint64_t *uses)
{
	memset(uses, 0, sizeof(*uses) * trace->n_layers * trace->n_experts);
	for (uint32_t i = 0; i < trace->n_layer_runs; i++) {
		const struct trace_layer *layer = &trace->layers[i];
		for (uint32_t u = 0; u < layer->n_uses; u++)
			uses[layer->layer * trace->n_experts +
				trace->uses[layer->first_use + u].expert]++;
	}
}

static void a_right_profile_saves_loads_and_a_wrong_one_costs_outrider_few(void **state)
{
	(void)state;
	static uint64_t right[8 * 128], wrong[8 * 128];
	struct cache_trace trace = skewed(3, 200), other = skewed(4, 200);
	count_uses(&trace, right);
	count_uses(&other, wrong);
	struct replay_options options = {.policy = cache_policy_find("outrider"), .n_slots = 512};
	uint64_t without = replayed_with(&trace, &options).loads;
	options.profile = right;
	assert_true(replayed_with(&trace, &options).loads < without * 95 / 100);
	options.profile = wrong;
	uint64_t misled = replayed_with(&trace, &options).loads;
	assert_true(misled > without);
	assert_true(misled < without * 110 / 100);
	options.policy = cache_policy_find("static");
	assert_true(replayed_with(&trace, &options).loads > without * 2);
	cache_trace_exit(&trace);
	cache_trace_exit(&other);
}

/* All that a pass uses is hinted for: what is prefetched is used. */
static void perfect_hints_are_right(void **state)
{
	(void)state;
	struct cache_trace trace = synth(SYNTH_ZIPF, 1, 300);
	uint32_t n_uses = trace.n_uses;
	struct error err;
	assert_int_equal(cache_trace_rehint(&trace, true, &err), 0);
	assert_int_equal(trace.n_hints, n_uses);
	assert_int_equal(trace.n_uses, n_uses);
	struct replay_totals lru = replayed(&trace, cache_policy_find("lru"), 32);
	assert_true(lru.prefetches > 0);
	assert_int_equal(lru.prefetches_used, lru.prefetches_judged);
	assert_int_equal(cache_trace_rehint(&trace, false, &err), 0);
	assert_int_equal(trace.n_hints, 0);
	cache_trace_exit(&trace);
}

/* Two layers of four experts; before each of 40 passes experts 0 and 1 are hinted for in layer 1, which uses 1 and 2; in layer 0
 * nothing is; behind layer 0 the gate says 1 and 2, too late for layer 0. */
static void hints_are_judged_as_the_cache_judges_them(void **state)
{
	(void)state;
	struct cache_trace trace;
	struct trace_quality quality[HINT_SOURCES + 1];
	struct error err;
	cache_trace_init(&trace);
	trace.n_layers = 2;
	trace.n_experts = 4;
	trace.n_experts_used = 2;
	trace.moe[0] = trace.moe[1] = true;
	for (uint32_t i = 0; i < 40; i++) {
		struct trace_pass pass = {
			.session = 1, .tokens = 2, .drafted = 1, .emitted = 1, .draft_ns = 5000};
		assert_int_equal(cache_trace_add_pass(&trace, &pass), 0);
		for (uint16_t e = 0; e < 2; e++)
			assert_int_equal(
				cache_trace_add_hint(&trace, &(struct trace_hint){.layer = 1,
								     .expert = e,
								     .source = HINT_HISTORY,
								     .score = 1,
								     .at_ns = 3000}),
				0);
		for (uint32_t l = 0; l < 2; l++) {
			struct trace_layer layer = {
				.layer = l, .before_ns = 10000, .after_ns = 20000};
			assert_int_equal(cache_trace_add_layer(&trace, &layer), 0);
			for (uint16_t e = 1; e < 3; e++) {
				struct trace_hint hint = {.layer = (uint16_t)(1 - l),
					.expert = e,
					.source = HINT_GATE,
					.score = 1};
				struct trace_use use = {e, 1};
				assert_int_equal(cache_trace_add_use(&trace, use), 0);
				assert_int_equal(cache_trace_add_hint(&trace, &hint), 0);
			}
		}
	}
	assert_int_equal(cache_trace_quality(&trace, quality, &err), 0);
	assert_int_equal(quality[HINT_DRAFT].hinted, 0);
	struct trace_quality *history = &quality[HINT_HISTORY], *gate = &quality[HINT_GATE];
	/* The cache hears of hints only from its first use on. */
	assert_in_range(history->passes, 39, 40);
	assert_int_equal(history->used, 2 * history->passes);
	assert_int_equal(history->hinted, 2 * history->passes);
	assert_int_equal(history->found, history->passes);
	/* 2 us of drafting that were left, layer 0, and layer 1 up to its routing. */
	assert_in_range(history->lead_ns, history->found * 41000, history->found * 43000);
	assert_int_equal(gate->passes, 40);
	assert_int_equal(gate->found, 80);
	assert_int_equal(gate->hinted, 80);
	assert_int_equal(gate->late, 80);
	assert_int_equal(quality[HINT_SOURCES].found, 80);
	cache_trace_exit(&trace);
}

/* A policy that takes the hints of one source is not given the others'. */
static void a_policy_is_given_the_hints_it_takes(void **state)
{
	(void)state;
	struct cache_trace trace = synth(SYNTH_ZIPF, 3, 200);
	struct error err;
	assert_true(replayed(&trace, cache_policy_find("sp-moe"), 40).prefetches > 0);
	for (uint32_t i = 0; i < trace.n_hints; i++)
		trace.hints[i].source = HINT_HISTORY;
	assert_int_equal(replayed(&trace, cache_policy_find("sp-moe"), 40).prefetches, 0);
	assert_true(replayed(&trace, cache_policy_find("lru"), 40).prefetches > 0);
	struct replay_totals with = replayed(&trace, cache_policy_find("outrider"), 24);
	assert_int_equal(cache_trace_rehint(&trace, false, &err), 0);
	assert_true(with.stall_ns < replayed(&trace, cache_policy_find("outrider"), 24).stall_ns);
	cache_trace_exit(&trace);
}

static struct cache_hint told[4];
static uint32_t told_slot[4], n_told;

static void note_hint(void *policy, const struct cache_hint *hint, uint32_t slot)
{
	(void)policy;
	assert_true(n_told < 4);
	told_slot[n_told] = slot;
	told[n_told++] = *hint;
}

/* Two passes of two layers, each pass with a hint of its drafting and each first layer with one of the gate. */
static void add_hinted_pass(struct cache_trace *trace, uint16_t first, uint16_t second)
{
	struct trace_pass pass = {.session = 7, .tokens = 1, .emitted = 1, .draft_ns = 1000};
	struct trace_hint draft = {.layer = 1, .expert = second, .source = HINT_DRAFT, .score = 1};
	struct trace_hint gate = {.layer = 1, .expert = second, .source = HINT_GATE, .score = 1};
	struct trace_use uses[2] = {{first, 1}, {second, 1}};
	assert_int_equal(cache_trace_add_pass(trace, &pass), 0);
	assert_int_equal(cache_trace_add_hint(trace, &draft), 0);
	for (uint32_t l = 0; l < 2; l++) {
		struct trace_layer layer = {.layer = l, .before_ns = 1000, .after_ns = 3000};
		assert_int_equal(cache_trace_add_layer(trace, &layer), 0);
		assert_int_equal(cache_trace_add_use(trace, uses[l]), 0);
		if (l == 0)
			assert_int_equal(cache_trace_add_hint(trace, &gate), 0);
	}
}

/* Such passes with lru, whose hints go to on_hint: what was told of four hints is in told. */
static struct replay_totals told_of_hints(
	void (*on_hint)(void *, const struct cache_hint *, uint32_t))
{
	struct cache_trace trace;
	cache_trace_init(&trace);
	trace.n_layers = trace.n_experts = 2;
	trace.n_experts_used = 1;
	trace.expert_bytes = 1000000;
	trace.moe[0] = trace.moe[1] = true;
	add_hinted_pass(&trace, 0, 0);
	add_hinted_pass(&trace, 0, 1);
	static struct cache_policy_ops noting;
	noting = *cache_policy_find("lru");
	noting.on_hint = on_hint;
	n_told = 0;
	struct replay_totals totals = replayed(&trace, &noting, 4);
	assert_int_equal(n_told, 4);
	cache_trace_exit(&trace);
	return totals;
}

static void hints_say_what_the_service_says(void **state)
{
	(void)state;
	assert_int_equal(told_of_hints(note_hint).prefetches, 0);
	/* Iterations count the runs of layers from 1; hints of both kinds are for the same run of layer 1. */
	static const uint64_t iterations[4] = {2, 2, 4, 4};
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(told[i].iteration, iterations[i]);
		assert_int_equal(told[i].session, 7);
		assert_int_equal(told_slot[i], SLOT_NONE);
		assert_false(told[i].coming);
	}
	/* A pass took two loads of 1010 us and two layers of 4 us: a layer takes 1014 us. Needed after half as long again as two
	 * layers, or after the running one and three more. */
	assert_int_equal(told[2].needed_by_ns - told[2].made_ns, 3 * 1014000);
	assert_int_equal(told[3].needed_by_ns - told[3].made_ns, 4 * 1014000);
}

static void note_and_take(void *policy, const struct cache_hint *hint, uint32_t slot)
{
	note_hint(policy, hint, slot);
	cache_policy_find("lru")->on_hint(policy, hint, slot);
}

/* What the drafting made the link begin is on its way when the gate hints for it. */
static void hints_for_what_is_on_its_way_are_told(void **state)
{
	(void)state;
	struct replay_totals with = told_of_hints(note_and_take);
	assert_true(told[3].coming);
	assert_int_equal(told_slot[3], SLOT_NONE);
	/* And is not read twice. */
	assert_int_equal(with.loads, 3);
}

static uint32_t told_drafts[8], n_told_drafts, n_measured;

static void note_measures(void *policy, const struct cache_measures *measures)
{
	(void)policy;
	n_measured = measures->draft_tokens;
}

/* What was measured when a layer begins. */
static void note_use(void *policy, const struct cache_use *use)
{
	assert_true(n_told_drafts < 8);
	told_drafts[n_told_drafts++] = n_measured;
	cache_policy_find("lru")->on_activation(policy, use);
}

/* As the drafter says it: when it has drafted, not when that was verified. Nobody drafts for a prompt. */
static void a_draft_is_measured_before_its_verification(void **state)
{
	(void)state;
	struct cache_trace trace;
	cache_trace_init(&trace);
	trace.n_layers = trace.n_experts = 2;
	trace.n_experts_used = 1;
	trace.expert_bytes = 1000000;
	trace.moe[0] = trace.moe[1] = true;
	for (uint16_t pass = 0; pass < 4; pass++)
		add_hinted_pass(&trace, 0, 0);
	trace.passes[0].prefill = true;
	for (uint32_t pass = 1; pass < 4; pass++)
		trace.passes[pass].drafted = pass;
	static struct cache_policy_ops noting;
	noting = *cache_policy_find("lru");
	noting.on_measure = note_measures;
	noting.on_activation = note_use;
	n_told_drafts = n_measured = 0;
	const struct replay_options options = {
		.policy = &noting, .n_slots = 4, .link = {1e9, 10000}};
	struct replay_result result;
	struct error err;
	assert_int_equal(cache_replay(&trace, &options, &result, &err), 0);
	static const uint32_t expected[8] = {0, 0, 1, 1, 2, 2, 3, 3};
	assert_int_equal(n_told_drafts, 8);
	assert_memory_equal(told_drafts, expected, sizeof(expected));
	cache_trace_exit(&trace);
}

static void nothing_is_loaded_ahead_where_prefetches_are_off(void **state)
{
	(void)state;
	struct cache_trace trace = synth(SYNTH_ZIPF, 3, 200);
	struct replay_options options = {
		.policy = cache_policy_find("lru"), .n_slots = 40, .demand_only = true};
	struct replay_totals off = replayed_with(&trace, &options);
	assert_int_equal(off.prefetches, 0);
	assert_int_equal(off.loads, off.misses);
	assert_true(replayed(&trace, options.policy, 40).prefetches > 0);
	cache_trace_exit(&trace);
}

/* Knowing an answer's frequencies is worth less than knowing its order, and more than guessing them. */
static void shares_of_an_answer_are_between_the_bound_and_recency(void **state)
{
	(void)state;
	static const enum cache_synth_kind kinds[] = {SYNTH_UNIFORM, SYNTH_ZIPF};
	for (size_t kind = 0; kind < 2; kind++) {
		struct cache_trace trace = synth(kinds[kind], 0, 400);
		struct replay_options options = {
			.policy = &replay_belady, .shares = true, .n_slots = 25};
		uint64_t loads = replayed_with(&trace, &options).loads;
		assert_true(loads > replayed(&trace, &replay_belady, 25).loads);
		assert_true(loads < replayed(&trace, cache_policy_find("lru"), 25).loads);
		assert_true(loads < replayed(&trace, cache_policy_find("outrider"), 25).loads);
		cache_trace_exit(&trace);
	}
}

static void a_cache_smaller_than_a_layer_is_refused(void **state)
{
	(void)state;
	struct cache_trace trace = synth(SYNTH_UNIFORM, 3, 20);
	struct replay_options options = {
		.policy = cache_policy_find("lru"), .n_slots = 1, .link = {1e9, 0}};
	struct replay_result result;
	struct error err = {""};
	assert_int_equal(cache_replay(&trace, &options, &result, &err), -EINVAL);
	assert_non_null(strstr(err.text, "at once"));
	cache_trace_exit(&trace);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(traces_are_read_back),
		cmocka_unit_test(damaged_traces_are_refused),
		cmocka_unit_test(a_circle_is_replayed_by_the_rule),
		cmocka_unit_test(nothing_loads_less_than_beladys),
		cmocka_unit_test(who_sees_further_loads_less_until_all_is_seen),
		cmocka_unit_test(with_room_for_all_each_is_loaded_once),
		cmocka_unit_test(outrider_beats_what_it_is_made_of),
		cmocka_unit_test(outrider_keeps_the_most_frequent_of_many),
		cmocka_unit_test(a_right_profile_saves_loads_and_a_wrong_one_costs_outrider_few),
		cmocka_unit_test(perfect_hints_are_right),
		cmocka_unit_test(hints_are_judged_as_the_cache_judges_them),
		cmocka_unit_test(a_policy_is_given_the_hints_it_takes),
		cmocka_unit_test(hints_say_what_the_service_says),
		cmocka_unit_test(hints_for_what_is_on_its_way_are_told),
		cmocka_unit_test(a_draft_is_measured_before_its_verification),
		cmocka_unit_test(nothing_is_loaded_ahead_where_prefetches_are_off),
		cmocka_unit_test(shares_of_an_answer_are_between_the_bound_and_recency),
		cmocka_unit_test(a_cache_smaller_than_a_layer_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
