/* The policies that choose K: the controller's, and three of other engines, after their public
 * descriptions. */
#include "bench/src/policy_sim.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The controller as in service: through the records and the page. */
struct ours {
	struct policy_page page;
	struct controller controller;
};

static void ours_choose(
	void *state, uint32_t slot, uint64_t uid, uint32_t sessions, struct policy_session *out)
{
	struct ours *o = state;
	(void)sessions;
	policy_lookup(&o->page, slot, uid, out);
}

static void ours_record(void *state, const struct iteration_record *record)
{
	struct ours *o = state;
	controller_record(&o->controller, record);
	controller_settle(&o->controller);
}

/*
 * SGLang (#21599, #24055): tiers of draft steps 1, 3, 7; a moving average of the accepted length,
 * weight 0.2, looked at every 5 batches after 10: up a tier when it passes the tier's steps - 0.5,
 * down when it falls to the tier below's - 0.5 - 0.25. One average for the batch.
 */
struct sglang {
	double accepted;
	uint32_t n, tier, k_max;
};
static const uint32_t sglang_tiers[] = {1, 3, 7};

static void sglang_choose(
	void *state, uint32_t slot, uint64_t uid, uint32_t sessions, struct policy_session *out)
{
	const struct sglang *s = state;
	(void)slot, (void)sessions;
	*out = (struct policy_session){.session = uid, .k = sglang_tiers[s->tier]};
}

static void sglang_record(void *state, const struct iteration_record *record)
{
	struct sglang *s = state;
	s->accepted += (s->n ? 0.2 : 1) * (record->accepted - s->accepted);
	if (++s->n < 10 || s->n % 5 != 0)
		return;
	if (s->tier < 2 && s->accepted > sglang_tiers[s->tier] - 0.5)
		s->tier++;
	else if (s->tier > 0 && s->accepted <= sglang_tiers[s->tier - 1] - 0.75)
		s->tier--;
}

/* vLLM (#32374): K by the size of the batch; the table its author gives as the example: 1-16: 3,
 * 64-128: 2, 256 up: 0, gaps inherit. */
static void vllm_choose(
	void *state, uint32_t slot, uint64_t uid, uint32_t sessions, struct policy_session *out)
{
	(void)state, (void)slot;
	*out = (struct policy_session){.session = uid, .k = sessions < 64 ? 3 : 2};
}

/* llama.cpp: a draft goes on while the draft model gives its token at least p-min = 0.75, up to a
 * fixed length. */
static void llama_choose(
	void *state, uint32_t slot, uint64_t uid, uint32_t sessions, struct policy_session *out)
{
	const struct sglang *s = state;
	(void)slot, (void)sessions;
	*out = (struct policy_session){.session = uid, .k = s->k_max};
	for (uint32_t i = 0; i < LIMIT_DRAFT_DEPTH; i++)
		out->cut[i] = 0.75f;
}

static void ignore_record(void *state, const struct iteration_record *record)
{
	(void)state, (void)record;
}

/* Cascade without Outrider's additions: speculation starts in every session, the baseline ages by
 * iterations alone, the drafter follows at K = 0, and times are averaged. The paper names no
 * largest K; its figures are for 1 to 3. */
static void as_published(struct settings *settings)
{
	snprintf(settings->policy, sizeof(settings->policy), "cascade");
	settings->carry = 0;
	settings->refresh_missed = settings->rest_at_zero = settings->medians = false;
	settings->k_max = settings->k_start = 3;
}

static int open_ours(struct sim_driver *driver, const char *policy, const struct settings *settings,
	struct error *err)
{
	struct settings own = *settings;
	snprintf(own.policy, sizeof(own.policy), "%s", policy);
	if (strcmp(policy, "cascade-published") == 0)
		as_published(&own);
	int r = settings_check(&own, err);
	if (r < 0)
		return r;
	struct ours *o = calloc(1, sizeof(*o));
	if (!o)
		return error_set(err, ENOMEM, "no memory for a controller");
	controller_init(&o->controller, &o->page, &own);
	*driver = (struct sim_driver){
		.state = o, .choose = ours_choose, .record = ours_record, .close = free};
	return 0;
}

int sim_driver_open(struct sim_driver *driver, const char *policy, const struct settings *settings,
	struct error *err)
{
	static const struct {
		const char *name;
		struct sim_driver driver;
	} peers[] = {
		{"sglang", {.choose = sglang_choose, .record = sglang_record, .close = free}},
		{"vllm", {.choose = vllm_choose, .record = ignore_record, .close = free}},
		{"llama.cpp", {.choose = llama_choose,
				      .record = ignore_record,
				      .close = free,
				      .per_token = true}},
	};
	for (size_t i = 0; i < sizeof(peers) / sizeof(*peers); i++) {
		if (strcmp(policy, peers[i].name) != 0)
			continue;
		struct sglang *s = calloc(1, sizeof(*s));
		if (!s)
			return error_set(err, ENOMEM, "no memory for a policy");
		s->k_max = (uint32_t)settings->k_max;
		*driver = peers[i].driver;
		driver->state = s;
		return 0;
	}
	int r = open_ours(driver, policy, settings, err);
	uint32_t k;
	if (r < 0 && !policy_parse(policy, &k) && strcmp(policy, "cascade-published") != 0)
		return error_set(err, EINVAL,
			"--policy %s: takes cascade, cascade-published, yield, static:K with K "
			"from 0 to %d, sglang, "
			"vllm and llama.cpp",
			policy, LIMIT_DRAFT_DEPTH);
	return r;
}
