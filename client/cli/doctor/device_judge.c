#include "client/cli/doctor/doctor.h"

#include "shared/base/units.h"

#include <stdio.h>
#include <string.h>

/* The device, and what the verifier takes of it. */
static void describe_device(const struct device_plan *p, char *out, size_t out_bytes)
{
	char spare[64] = "", limit[64] = "";

	if (p->spare > 0)
		snprintf(
			spare, sizeof(spare), ", spare slots for experts %s", UNITS_SIZE(p->spare));
	if (p->limited)
		snprintf(limit, sizeof(limit), "; device_memory allows %s", UNITS_SIZE(p->limit));
	snprintf(out, out_bytes,
		"%s: %s, of which %s are free%s; with sessions_max = %lld and context = %lld the "
		"weights take %s, passes %s, the KV cache %s%s",
		p->name, UNITS_SIZE(p->bytes), UNITS_SIZE(p->free), limit,
		(long long)p->extent.sessions, (long long)p->extent.context, UNITS_SIZE(p->weights),
		UNITS_SIZE(p->passes), UNITS_SIZE(p->kv), spare);
}

/* Whether a service ends if the device has too little memory: with auto the CPU computes instead. */
static bool must_fit(const struct doctor *d)
{
	return d->device && strcmp(d->device, "auto") != 0;
}

static void say_too_little(struct doctor *d, const char *takes)
{
	const struct device_plan *p = &d->on_device;
	char text[DEVICE_FIT_TEXT], experts[64] = "";

	if (p->least > 0)
		snprintf(experts, sizeof(experts), " beside the fewest experts (%u)", p->least);
	struct finding *finding =
		finding_add(&d->findings, "device", must_fit(d) ? FINDING_PROBLEM : FINDING_ADVICE,
			"%s; that does not fit%s", takes, experts);
	if (p->less_runs)
		finding_todo(
			finding, "these settings would fit: %s", device_fit_text(&p->less, text));
	else
		finding_todo(finding,
			"%sset device = cpu: not even one session with a short context would fit",
			p->limited ? "set a larger device_memory, or " : "");
}

void doctor_judge_device(struct doctor *d)
{
	const struct device_plan *p = &d->on_device;
	struct error err = {""};
	char takes[448];
	const struct device_wants wants = {
		.device = d->device ? d->device : "auto",
		.memory = d->device_memory ? d->device_memory : "auto",
		.sessions = d->plan.sessions,
		.context = d->plan.context,
	};
	int rc = device_plan_make(&wants, &d->model, &d->on_device, &err);

	if (rc < 0)
		finding_todo(finding_add(&d->findings, "device", FINDING_PROBLEM, "%s", err.text),
			"name a device that can be used, or --device cpu");
	d->has_device = rc > 0;
	if (rc <= 0)
		return;
	describe_device(p, takes, sizeof(takes));
	if (!p->runs) {
		say_too_little(d, takes);
		return;
	}
	if (p->experts == 0) {
		finding_add(&d->findings, "device", FINDING_OK, "%s; everything fits", takes);
		return;
	}
	struct finding *finding = finding_add(&d->findings, "device",
		p->fit < p->experts ? FINDING_ADVICE : FINDING_OK,
		"%s; beside that, %u of %u experts fit (%.0f %%, %s)", takes, p->fit, p->experts,
		100.0 * p->fit / p->experts, UNITS_SIZE(p->fit_bytes));
	if (p->fit < p->experts)
		finding_todo(finding,
			"the others are copied to it when they are needed, or with hybrid = greedy "
			"computed by the CPU; a smaller context or sessions_max leaves room for "
			"more of them");
}
