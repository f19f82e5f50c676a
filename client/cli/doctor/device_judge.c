#include "client/cli/doctor/doctor.h"

#include "shared/base/units.h"

#include <stdio.h>
#include <string.h>

/* The device, and what the verifier takes of it. */
static void describe_device(const struct device_plan *p, char *out, size_t out_bytes)
{
	char spare[48] = "";

	if (p->spare > 0)
		snprintf(spare, sizeof(spare), ", spare slots %s", UNITS_SIZE(p->spare));
	snprintf(out, out_bytes,
		"%s: %s, of which %s are free; sessions_max = %lld and context = %lld take: "
		"weights "
		"%s, passes %s, KV cache %s%s",
		p->name, UNITS_SIZE(p->bytes), UNITS_SIZE(p->free), (long long)p->extent.sessions,
		(long long)p->extent.context, UNITS_SIZE(p->weights), UNITS_SIZE(p->passes),
		UNITS_SIZE(p->kv), spare);
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
		snprintf(experts, sizeof(experts), ", with the fewest experts (%u)", p->least);
	struct finding *finding =
		finding_add(&d->findings, "device", must_fit(d) ? FINDING_PROBLEM : FINDING_ADVICE,
			"%s: that does not fit%s", takes, experts);
	if (p->less_runs)
		finding_todo(
			finding, "these settings would fit: %s", device_fit_text(&p->less, text));
	else
		finding_todo(finding,
			"set device = cpu: not even one session with a short context would fit");
}

void doctor_judge_device(struct doctor *d)
{
	const struct device_plan *p = &d->on_device;
	struct error err = {""};
	char takes[384];
	int rc = device_plan_make(d->device ? d->device : "auto", &d->model, d->plan.sessions,
		d->plan.context, &d->on_device, &err);

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
		finding_add(&d->findings, "device", FINDING_OK, "%s: everything fits", takes);
		return;
	}
	struct finding *finding = finding_add(&d->findings, "device",
		p->fit < p->experts ? FINDING_ADVICE : FINDING_OK,
		"%s: beside that %u of %u experts fit (%.0f %%, %s)", takes, p->fit, p->experts,
		100.0 * p->fit / p->experts, UNITS_SIZE(p->fit_bytes));
	if (p->fit < p->experts)
		finding_todo(finding,
			"the others are copied to it when they are needed; a smaller context or "
			"sessions_max leaves room for more of them");
}
