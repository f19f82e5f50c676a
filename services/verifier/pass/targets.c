#include "services/verifier/pass/targets.h"

#include <stdio.h>
#include <string.h>

void targets_begin(struct targets *targets, const struct request_classes *classes)
{
	if (memcmp(&targets->classes, classes, sizeof(*classes)) == 0)
		return;
	targets->classes = *classes;
	for (uint32_t i = 0; i < LIMIT_CLASSES; i++) {
		atomic_store_explicit(&targets->of[i].tpot_ns, 0, memory_order_relaxed);
		atomic_store_explicit(&targets->of[i].ttft_ns, 0, memory_order_relaxed);
	}
}

static void smooth(_Atomic uint64_t *to, uint64_t ns)
{
	uint64_t was = atomic_load_explicit(to, memory_order_relaxed);

	atomic_store_explicit(to, was == 0 ? ns : (15 * was + ns) / 16, memory_order_relaxed);
}

/* The index of a class; LIMIT_CLASSES: the settings have lost it. */
static size_t index_of(const struct targets *targets, const char *name)
{
	const struct request_class *found = classes_find(&targets->classes, name);

	return found != NULL ? (size_t)(found - targets->classes.at) : LIMIT_CLASSES;
}

void targets_tokens(struct targets *targets, const char *name, uint32_t n, uint64_t ns)
{
	size_t i = index_of(targets, name);

	if (i < LIMIT_CLASSES && n > 0)
		smooth(&targets->of[i].tpot_ns, ns / n);
}

void targets_first(struct targets *targets, const char *name, uint64_t ns)
{
	size_t i = index_of(targets, name);

	if (i < LIMIT_CLASSES)
		smooth(&targets->of[i].ttft_ns, ns);
}

void targets_pass(struct targets *targets, const struct sched_cost *cost)
{
	atomic_store_explicit(&targets->pass_ns, (uint64_t)cost->base_ns, memory_order_relaxed);
	atomic_store_explicit(&targets->token_ns, (uint64_t)cost->token_ns, memory_order_relaxed);
}

static size_t describe(const char *name, uint64_t ns, uint64_t target_ns, char *out, size_t bytes)
{
	double ms = (double)ns / 1e6, target_ms = (double)target_ns / 1e6;
	int n;

	if (ns == 0 && target_ns == 0)
		return 0;
	if (ns == 0)
		n = snprintf(out, bytes, "; %s not measured, target %.1f ms", name, target_ms);
	else if (target_ns == 0)
		n = snprintf(out, bytes, "; %s %.1f ms", name, ms);
	else if (ns > target_ns)
		n = snprintf(out, bytes, "; %s %.1f ms, %.1f ms over its target of %.1f ms", name,
			ms, ms - target_ms, target_ms);
	else
		n = snprintf(out, bytes, "; %s %.1f ms, within its target of %.1f ms", name, ms,
			target_ms);
	return (size_t)n < bytes ? (size_t)n : bytes;
}

void targets_describe(const struct targets *targets, const struct request_classes *classes,
	uint32_t i, char *out, size_t bytes)
{
	const struct request_class *one = &classes->at[i];
	size_t n = (size_t)snprintf(out, bytes, "priority %d", one->priority);

	n += describe("tpot", atomic_load_explicit(&targets->of[i].tpot_ns, memory_order_relaxed),
		one->tpot_ns, out + n, bytes - n);
	(void)describe("ttft", atomic_load_explicit(&targets->of[i].ttft_ns, memory_order_relaxed),
		one->ttft_ns, out + n, bytes - n);
}
