/* Who computes a layer's experts: cases worked by hand, every split of small layers as the yardstick, and costs that make no
 * sense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "shared/base/rand.h"
#include "shared/spec/balance.h"

#include <math.h>
#include <string.h>

static struct balance_expert experts[LIMIT_EXPERTS];

static struct balance_layer layer_of(uint32_t n)
{
	return (struct balance_layer){.experts = experts, .n = n, .slots = n, .bound = 4};
}

static void set(uint32_t i, enum balance_place place, uint32_t tokens, uint32_t utility)
{
	experts[i] = (struct balance_expert){
		.expert = i, .place = place, .tokens = tokens, .utility = utility};
}

static void assert_who(const struct balance_layer *layer, const char *who)
{
	static const char letters[] = "rsc";
	assert_int_equal(layer->n, strlen(who));
	for (uint32_t i = 0; i < layer->n; i++)
		if (letters[layer->experts[i].who] != who[i])
			fail_msg(
				"expert %u: %c, not %c", i, letters[layer->experts[i].who], who[i]);
}

/* Resident: 10. On the link: 30 each. The CPU: 20 for a token. */
static const struct balance_costs costs = {
	.cpu_token_ns = 20, .gpu_expert_ns = 10, .link_ns = 30, .disk_ns = 100};

static void times_are_those_of_a_schedule(void **state)
{
	(void)state;
	struct balance_layer layer = layer_of(5);
	set(0, BALANCE_IN_SLOT, 1, 0);
	set(1, BALANCE_IN_HOST, 1, 0);
	set(2, BALANCE_IN_HOST, 2, 0);
	set(3, BALANCE_ON_DISK, 1, 0);
	set(4, BALANCE_COMING, 1, 0);
	experts[4].arrives_ns = 25;
	layer.link_busy_ns = 5;
	experts[1].who = experts[3].who = BALANCE_STREAMED;
	experts[2].who = BALANCE_CPU;
	/* The device: 0 until 10, 4 from 25 to 35, 1 (there at 5 + 30) until 45, 3 (read until 100, there at 130) until 140.
	 * The CPU: 2 until 40. */
	struct balance_times t = balance_times(&layer, &costs);
	assert_true(t.cpu_ns == 40 && t.cpu_end_ns == 40);
	assert_true(t.gpu_ns == 40 && t.device_end_ns == 140 && t.end_ns == 140);
	assert_true(t.link_ns == 60 && t.disk_ns == 100);
	/* What is read from the disk is read whoever wants it: the CPU, free from 40 on, waits for 3 until 100. */
	experts[3].who = BALANCE_CPU;
	t = balance_times(&layer, &costs);
	assert_true(t.cpu_end_ns == 120 && t.device_end_ns == 45 && t.end_ns == 120 &&
		    t.disk_ns == 100);
}

static void greedy_takes_the_fewest_tokens_first(void **state)
{
	(void)state;
	struct balance_layer layer = layer_of(5);
	set(0, BALANCE_IN_SLOT, 9, 0);
	set(1, BALANCE_IN_HOST, 3, 0);
	set(2, BALANCE_IN_HOST, 1, 0);
	set(3, BALANCE_IN_HOST, 1, 0);
	set(4, BALANCE_IN_HOST, 2, 0);
	/* All four streamed: 4 * 30 + 10 = 130. The CPU takes 2 (20 <= 130), 3 (40 <= 100); 4 would end at 80, when the
	 * device ends with 1 and 4 at 70: no. */
	assert_int_equal(balance(BALANCE_GREEDY, &layer, &costs), 0);
	assert_who(&layer, "rsccs");
	assert_true(balance_times(&layer, &costs).end_ns == 70);
	/* Off: the device does everything. */
	assert_int_equal(balance(BALANCE_OFF, &layer, &costs), 0);
	assert_who(&layer, "rssss");
	assert_true(balance_times(&layer, &costs).end_ns == 130);
	/* No room: the CPU has to. */
	layer.slots = 1;
	balance(BALANCE_GREEDY, &layer, &costs);
	assert_who(&layer, "rsccc");
	/* A link that is busy, or slow: the CPU alone. */
	layer.slots = 5;
	layer.link_busy_ns = 1000;
	balance(BALANCE_GREEDY, &layer, &costs);
	assert_who(&layer, "rcccc");
	layer.link_busy_ns = 0;
	struct balance_costs slow = costs;
	slow.link_ns = 1000;
	balance(BALANCE_GREEDY, &layer, &slow);
	assert_who(&layer, "rcccc");
	/* A fast link: the device alone. */
	slow.link_ns = 1;
	slow.gpu_expert_ns = 1;
	balance(BALANCE_GREEDY, &layer, &slow);
	assert_who(&layer, "rssss");
}

/* The layer of appendix C.1: two tokens, {0, 3} and {2, 3}; 3 is hot and prefetched. */
static void spac_counts_as_the_papers_example(void **state)
{
	(void)state;
	struct balance_layer layer = layer_of(3);
	set(0, BALANCE_IN_HOST, 1, 0);
	set(1, BALANCE_IN_HOST, 1, 0);
	set(2, BALANCE_IN_SLOT, 2, 2);
	/* T_cpu = r_c gamma k t_cpu = 2/4 * 4 * 20 = 40, T_gpu = r_g b t_gpu = 1/3 * 3 * 10 = 10, for every tau. */
	assert_int_equal(balance(BALANCE_SPAC, &layer, &costs), 1);
	assert_who(&layer, "ccr");
	struct balance_times t = balance_times(&layer, &costs);
	assert_true(t.cpu_ns == 2. / 4 * 4 * 20 && t.gpu_ns == 1. / 3 * 3 * 10);
}

static void spac_finds_the_threshold_that_balances(void **state)
{
	(void)state;
	struct balance_layer layer = layer_of(5);
	for (uint32_t i = 0; i < 5; i++)
		set(i, BALANCE_IN_HOST, 1, i);
	/* tau 1: T_cpu 20, T_gpu 40, n 4: 120 > 40. tau 2: 40, 30, n 3: 90 > 40. tau 3: 60, 20, n 2: 60 <= 60, difference 40.
	 * tau 4: 80, 10, n 1, difference 70. */
	assert_int_equal(balance(BALANCE_SPAC, &layer, &costs), 3);
	assert_who(&layer, "cccss");
	/* Drafting hides 50: tau 2 is feasible, difference 10. */
	layer.window_ns = 50;
	assert_int_equal(balance(BALANCE_SPAC, &layer, &costs), 2);
	assert_who(&layer, "ccsss");
	/* Equation 11: room for one. */
	layer.slots = 1;
	assert_int_equal(balance(BALANCE_SPAC, &layer, &costs), 4);
	assert_who(&layer, "ccccs");
	/* Nothing is feasible: K_u; the rest is left to the CPU. */
	layer.slots = 0;
	assert_int_equal(balance(BALANCE_SPAC, &layer, &costs), 4);
	assert_who(&layer, "ccccc");
}

/* ---- Layers by chance. ---- */

static uint32_t draw(uint32_t *at, uint32_t below)
{
	uint32_t out[4];
	rand_philox(7, RAND_REPLAY, (*at)++, 0, out);
	return out[0] % below;
}

static struct balance_layer any_layer(uint32_t *at, uint32_t most, bool disk)
{
	struct balance_layer layer = layer_of(1 + draw(at, most));
	for (uint32_t i = 0; i < layer.n; i++) {
		set(i, (enum balance_place)draw(at, disk ? 4 : 3), 1 + draw(at, 8), draw(at, 5));
		experts[i].arrives_ns = draw(at, 50);
	}
	layer.slots = draw(at, 4) > 0 ? layer.n : draw(at, layer.n + 1);
	layer.link_busy_ns = draw(at, 3) > 0 ? 0 : draw(at, 200);
	layer.window_ns = draw(at, 2) > 0 ? 0 : draw(at, 200);
	return layer;
}

static struct balance_costs any_costs(uint32_t *at)
{
	return (struct balance_costs){.cpu_expert_ns = draw(at, 100),
		.cpu_token_ns = draw(at, 60),
		.gpu_expert_ns = draw(at, 20),
		.gpu_token_ns = draw(at, 3) > 0 ? 0 : draw(at, 10),
		.link_ns = draw(at, 150),
		.disk_ns = draw(at, 300)};
}

/* Each expert is somebody's who can have it, and no more are streamed than have room. */
static void assert_sound(const struct balance_layer *layer, enum balance_rule rule)
{
	uint32_t n_streamed = 0;
	for (uint32_t i = 0; i < layer->n; i++) {
		const struct balance_expert *expert = &layer->experts[i];
		bool there = expert->place == BALANCE_IN_SLOT || expert->place == BALANCE_COMING;
		assert_int_equal(expert->expert, i);
		assert_int_equal(expert->who == BALANCE_RESIDENT, there);
		assert_true(there || expert->who == BALANCE_STREAMED || expert->who == BALANCE_CPU);
		n_streamed += expert->who == BALANCE_STREAMED;
	}
	assert_true(rule == BALANCE_OFF || n_streamed <= layer->slots);
}

static void every_expert_is_somebodys_and_no_bound_is_broken(void **state)
{
	(void)state;
	uint32_t at = 0;
	for (int i = 0; i < 4000; i++) {
		struct balance_layer layer = any_layer(&at, 60, true);
		struct balance_costs any = any_costs(&at);
		for (int rule = 0; rule < BALANCE_RULES; rule++) {
			for (uint32_t e = 0; e < layer.n; e++)
				experts[e].who = (enum balance_who)77;
			uint32_t tau = balance((enum balance_rule)rule, &layer, &any);
			assert_sound(&layer, (enum balance_rule)rule);
			assert_true(rule == BALANCE_SPAC ? tau >= 1 && tau <= 4 : tau == 0);
			struct balance_times t = balance_times(&layer, &any);
			assert_true(t.end_ns >= t.cpu_ns && t.end_ns >= t.gpu_ns &&
				    t.end_ns >= t.link_ns && t.end_ns >= t.disk_ns);
			if (rule != BALANCE_SPAC || tau == 4)
				continue;
			/* Equation 10, of what was decided. */
			assert_true(t.link_ns <= fmax(t.cpu_ns, t.gpu_ns) + layer.window_ns + 1e-9);
		}
	}
}

/* The earliest end that any split has. */
static double best_end(struct balance_layer *layer, const struct balance_costs *any)
{
	double best = INFINITY;
	uint32_t at[12], n = 0;
	for (uint32_t i = 0; i < layer->n; i++)
		if (experts[i].place >= BALANCE_IN_HOST)
			at[n++] = i;
	for (uint32_t set_of = 0; set_of < 1u << n; set_of++) {
		uint32_t n_streamed = 0;
		for (uint32_t i = 0; i < n; i++) {
			experts[at[i]].who = set_of >> i & 1 ? BALANCE_CPU : BALANCE_STREAMED;
			n_streamed += experts[at[i]].who == BALANCE_STREAMED;
		}
		double end = balance_times(layer, any).end_ns;
		if (n_streamed <= layer->slots && end < best)
			best = end;
	}
	return best;
}

struct ratio {
	double sum, worst;
	uint32_t n, equal;
};

static void add(struct ratio *ratio, double end, double best)
{
	double r = best > 0 ? end / best : 1;
	ratio->sum += r;
	ratio->worst = fmax(ratio->worst, r);
	ratio->n++;
	ratio->equal += r < 1 + 1e-9;
}

static void against_every_split(bool disk, bool by_token, struct ratio of[BALANCE_RULES])
{
	static const char *const names[] = {"off", "greedy", "spac"};
	uint32_t at = 1u << 20;
	for (int i = 0; i < 3000; i++) {
		struct balance_layer layer = any_layer(&at, 10, disk);
		struct balance_costs any = any_costs(&at);
		if (!by_token)
			any.gpu_token_ns = 0;
		double best = best_end(&layer, &any), off = 0;
		for (int rule = 0; rule < BALANCE_RULES; rule++) {
			balance((enum balance_rule)rule, &layer, &any);
			double end = balance_times(&layer, &any).end_ns;
			off = rule == BALANCE_OFF ? end : off;
			if (rule == BALANCE_GREEDY && layer.slots == layer.n)
				assert_true(end <= off + 1e-9);
			add(&of[rule], end, best);
		}
	}
	for (int rule = 0; rule < BALANCE_RULES; rule++)
		print_message("# %s%s: %s ends at %.3f times the best split's end, at most %.2f; "
			      "the best in %u of %u layers\n",
			disk ? "three tiers" : "no disk",
			by_token ? ", the device's time grows with tokens" : "", names[rule],
			of[rule].sum / of[rule].n, of[rule].worst, of[rule].equal, of[rule].n);
}

/* Where an expert costs the link and the device the same whatever its tokens, no split is better: an exchange of two experts
 * cannot help, and neither can one more or one less. */
static void greedy_is_the_best_split_where_only_the_cpu_counts_tokens(void **state)
{
	(void)state;
	struct ratio of[BALANCE_RULES] = {{0}};
	against_every_split(false, false, of);
	assert_int_equal(of[BALANCE_GREEDY].equal, of[BALANCE_GREEDY].n);
	assert_true(of[BALANCE_OFF].sum > of[BALANCE_GREEDY].sum);
}

static void greedy_is_near_the_best_split_elsewhere(void **state)
{
	(void)state;
	struct ratio of[BALANCE_RULES] = {{0}}, with_disk[BALANCE_RULES] = {{0}};
	against_every_split(false, true, of);
	assert_true(of[BALANCE_GREEDY].sum < 1.02 * of[BALANCE_GREEDY].n);
	against_every_split(true, true, with_disk);
	assert_true(with_disk[BALANCE_GREEDY].sum < 1.05 * with_disk[BALANCE_GREEDY].n);
}

/* Nothing measured, free, impossible, nonsense: each expert is still somebody's. */
static void costs_may_be_anything(void **state)
{
	(void)state;
	static const double values[] = {0, 1, -1, INFINITY, -INFINITY, NAN, 1e300};
	enum { N = sizeof(values) / sizeof(*values) };
	uint32_t at = 5;
	for (uint32_t i = 0; i < N * N * N * N; i++) {
		struct balance_layer layer = any_layer(&at, 12, true);
		struct balance_costs any = {.cpu_token_ns = values[i % N],
			.gpu_expert_ns = values[i / N % N],
			.link_ns = values[i / N / N % N],
			.disk_ns = values[i / N / N / N]};
		layer.link_busy_ns = values[i % 5];
		layer.window_ns = values[i % 3];
		for (int rule = 0; rule < BALANCE_RULES; rule++) {
			balance((enum balance_rule)rule, &layer, &any);
			assert_sound(&layer, (enum balance_rule)rule);
			struct balance_times t = balance_times(&layer, &any);
			assert_false(isnan(t.end_ns) || isnan(t.cpu_ns) || isnan(t.link_ns));
		}
	}
	/* A link that does not work: the CPU. A CPU that must not: the link. */
	struct balance_layer layer = layer_of(3);
	struct balance_costs broken = costs;
	for (uint32_t i = 0; i < 3; i++)
		set(i, BALANCE_IN_HOST, 1, i);
	broken.link_ns = INFINITY;
	balance(BALANCE_GREEDY, &layer, &broken);
	assert_who(&layer, "ccc");
	broken.link_ns = 30;
	broken.cpu_token_ns = INFINITY;
	balance(BALANCE_GREEDY, &layer, &broken);
	assert_who(&layer, "sss");
	/* Nobody, or nothing to do. */
	layer.n = 0;
	for (int rule = 0; rule < BALANCE_RULES; rule++)
		balance((enum balance_rule)rule, &layer, &costs);
	assert_true(balance_times(&layer, &costs).end_ns == 0);
	/* A K_u beyond all bounds, or none. */
	layer = layer_of(3);
	for (uint32_t bound = 0; bound < 100; bound += 9) {
		layer.bound = bound;
		balance(BALANCE_SPAC, &layer, &costs);
		assert_sound(&layer, BALANCE_SPAC);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(times_are_those_of_a_schedule),
		cmocka_unit_test(greedy_takes_the_fewest_tokens_first),
		cmocka_unit_test(spac_counts_as_the_papers_example),
		cmocka_unit_test(spac_finds_the_threshold_that_balances),
		cmocka_unit_test(every_expert_is_somebodys_and_no_bound_is_broken),
		cmocka_unit_test(greedy_is_the_best_split_where_only_the_cpu_counts_tokens),
		cmocka_unit_test(greedy_is_near_the_best_split_elsewhere),
		cmocka_unit_test(costs_may_be_anything),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
