/* A session under cascade, fed with iterations by hand: for tests. */
#pragma once

#include "services/policy-controller/estimates/passes.h"
#include "services/policy-controller/published/cascade.h"

#define TEST(name) cmocka_unit_test_setup(name, setup)

static inline struct settings defaults(void)
{
	struct settings settings;
	config_defaults(settings_keys, &settings);
	return settings;
}

/* What policies know of all sessions. */
static struct passes passes;
static struct cascade_shared shared;

static inline int setup(void **state)
{
	(void)state;
	passes_init(&passes);
	shared = (struct cascade_shared){0};
	return 0;
}

static inline struct policy_state begin(uint32_t k_hint)
{
	struct policy_state s = {.uid = 7,
		.settings = defaults(),
		.ops = &policy_cascade,
		.passes = &passes,
		.shared = &shared};
	shared = (struct cascade_shared){0}; /* the first session there is */
	struct verdict verdict = {.decided = false};
	policy_cascade.begin(&s, k_hint, &verdict);
	assert_true(verdict.decided);
	return s;
}

static inline double base_ns(const struct policy_state *s)
{
	struct cascade_base base;
	assert_true(cascade_base(s, &base));
	return base.ns;
}

/* n iterations at the K the policy asks for, of the given time and tokens. Returns decisions made.
 */
static inline uint32_t feed(struct policy_state *s, uint32_t n, uint64_t us, uint32_t emitted)
{
	uint32_t decisions = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct verdict verdict = {.decided = false};
		struct iteration_record r = {.session = s->uid,
			.k = (uint8_t)s->k,
			.depth = (uint8_t)s->k,
			.drafted = (uint16_t)s->k,
			.emitted = (uint8_t)emitted,
			.accepted = (uint8_t)(emitted - 1),
			.batch_sessions = 1,
			.iteration_ns = us * 1000};
		s->ops->observe(s, &r, &verdict);
		decisions += verdict.decided;
	}
	return decisions;
}
