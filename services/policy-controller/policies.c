#include "services/policy-controller/policy.h"

#include "shared/base/round.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Mean of drafted tokens per iteration, which fades. Below this the last draft was long ago (as in
 * admin/ctl.h). */
#define DRAFTED_LEAST 0.01f

const char *const phase_names[] = {"baseline", "test", "set", "off"};
const struct policy_ops *const policies_all[] = {
	&policy_static, &policy_cascade, &policy_yield, &policy_goodput, NULL};

const struct policy_ops *policy_parse(const char *text, uint32_t *k)
{
	*k = 0;
	for (uint32_t i = 0; policies_all[i]; i++)
		if (policies_all[i] != &policy_static && strcmp(text, policies_all[i]->name) == 0)
			return policies_all[i];
	size_t n = strlen(policy_static.name);
	if (strncmp(text, policy_static.name, n) != 0 || text[n] != ':')
		return NULL;
	const char *digits = text + n + 1;
	uint8_t shape[DRAFT_SHAPE];
	*k = policy_shape(text, shape);
	if (*k > 0)
		return &policy_static;
	if (*digits == '\0' || strlen(digits) > 2 || strspn(digits, "0123456789") != strlen(digits))
		return NULL;
	*k = (uint32_t)strtoul(digits, NULL, 10);
	return *k <= LIMIT_DRAFT_DEPTH ? &policy_static : NULL;
}

uint32_t policy_shape(const char *text, uint8_t shape[DRAFT_SHAPE])
{
	uint32_t depth = 0, level = 1, nodes = 0;
	const char *at = strchr(text, ':');
	memset(shape, 0, DRAFT_SHAPE);
	/* Without an x it is a K. */
	if (!at || !strchr(at, 'x'))
		return 0;
	do {
		size_t digits = strspn(++at, "0123456789");
		unsigned long width = digits > 0 && digits <= 2 ? strtoul(at, NULL, 10) : 0;
		if (width == 0 || width > POLICY_SHAPE_WIDTH || depth == DRAFT_SHAPE)
			return 0;
		shape[depth++] = (uint8_t)width;
		level *= (uint32_t)width;
		nodes += level;
		if (nodes > LIMIT_DRAFT_NODES)
			return 0;
		at += digits;
	} while (*at == 'x');
	return *at == '\0' ? depth : 0;
}

/* Where the policy's part begins; NULL: where the last policy's part ends. */
static size_t shared_at(const struct policy_ops *policy)
{
	size_t at = 0;
	for (uint32_t i = 0; policies_all[i] && policies_all[i] != policy; i++)
		at += round_lines(policies_all[i]->shared_bytes);
	return at;
}

void *policy_shared(void *memory, const struct policy_ops *policy)
{
	return (char *)memory + shared_at(policy->shares ? policy->shares : policy);
}

void policies_init(void *memory)
{
	assert(shared_at(NULL) <= POLICIES_SHARED_BYTES);
	for (uint32_t i = 0; policies_all[i]; i++)
		if (policies_all[i]->init)
			policies_all[i]->init(policy_shared(memory, policies_all[i]));
}

bool policy_is_older(const struct policy_state *state, const struct iteration_record *record)
{
	/* The counter of decisions may wrap. */
	return (int32_t)(record->decision - (uint32_t)state->decision) < 0;
}

void policy_decide(struct verdict *verdict, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(verdict->reason, sizeof(verdict->reason), format, args);
	va_end(args);
	verdict->decided = true;
}

/* static:K. Its utility is known only when K = 0 was measured in a batch of the same size
 * (controller.c). */
static uint32_t static_first_k(const struct settings *settings, const void *shared)
{
	uint32_t k;
	(void)shared;
	policy_parse(settings->policy, &k);
	return k;
}

static void static_begin(struct policy_state *state, uint32_t k_hint, struct verdict *verdict)
{
	(void)k_hint;
	state->k = state->static_k;
	state->phase = state->k ? PHASE_SET : PHASE_OFF;
	policy_shape(state->settings.policy, state->shape);
	policy_decide(
		verdict, "%s: K = %u for the whole session", state->settings.policy, state->k);
}

uint32_t policy_missing(const struct policy_place *before, const struct policy_place *after,
	uint32_t emitted, uint32_t *tokens)
{
	*tokens = 0;
	if (before->n_context == 0 || after->n_context < emitted ||
		after->n_context - emitted <= before->n_context)
		return 0;
	*tokens = after->n_context - emitted - before->n_context;
	/* A restarted verifier counts its passes anew. */
	if (after->iteration < before->iteration + 2)
		return *tokens;
	uint64_t passes = after->iteration - before->iteration - 1;
	return passes < *tokens ? (uint32_t)passes : *tokens;
}

/* The cache or the load may have changed since, and nothing measures K = 0 again. */
static bool has_baseline(const struct policy_state *state)
{
	return state->base_ns > 0 && state->base_age <= (uint64_t)state->settings.refresh;
}

static void static_observe(
	struct policy_state *state, const struct iteration_record *record, struct verdict *verdict)
{
	(void)record;
	(void)verdict;
	/* Without speculation there is none: two runs at K = 0 differ only by noise. */
	bool drafts = state->k > 0 && state->drafted >= DRAFTED_LEAST;
	bool known = drafts && has_baseline(state) && state->iteration_ns > 0;
	state->utility =
		known ? (float)((double)state->etr * state->base_ns / state->iteration_ns) : 0;
}

static void static_explain(const struct policy_state *state, struct explanation *out)
{
	explain_say(out, "The policy is %s: K = %u in every iteration, whether it pays or not.",
		state->settings.policy, state->k);
	if (state->k > 0 && state->utility > 0)
		explain_say(out,
			"It %s: utility %.2f against recent iterations at K = 0 in such a batch.",
			state->utility >= 1 ? "pays" : "does not pay", (double)state->utility);
	else if (state->k > 0 && has_baseline(state))
		explain_say(out,
			"Whether it pays is not known: no recent iteration of this session at this "
			"K has drafted, so there is none to compare with those at K = 0.");
	else if (state->k > 0)
		explain_say(out, "Whether it pays is not known: there was no recent iteration at K "
				 "= 0 in such a batch.");
}

const struct policy_ops policy_static = {
	.name = "static",
	.first_k = static_first_k,
	.begin = static_begin,
	.observe = static_observe,
	.explain = static_explain,
	.options_are = "",
};
