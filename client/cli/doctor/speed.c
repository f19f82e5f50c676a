#include "client/cli/doctor/doctor.h"

#include "shared/base/plural.h"
#include "shared/base/units.h"

#include <string.h>

static void say_bandwidth(struct doctor *d)
{
	const struct measured *m = &d->measured;
	char text[384];
	size_t used = 0;

	for (uint32_t i = 0; i < m->n_counts && used < sizeof(text); i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used,
			"%s%u thread%s %.1f GB/s", i ? ", " : "", m->counts[i].threads,
			plural(m->counts[i].threads), m->counts[i].gb_s);
	finding_add(&d->findings, "bandwidth", FINDING_OK,
		"reading %s of memory: %.300s; a hand-over to the threads takes %.1f us",
		UNITS_SIZE(m->read_bytes), text, m->hand_over_us);
}

static void say_disk(struct doctor *d)
{
	const struct measured_disk *m = &d->measured.disk;
	char layer[64] = "", cached[64] = "";

	if (m->random_gb_s <= 0) {
		finding_add(&d->findings, "disk", FINDING_OK,
			"not measured: the file is small, or its experts are very large");
		return;
	}
	if (m->layer_gb_s > 0)
		snprintf(layer, sizeof(layer), " (a layer's at a time %.2f)", m->layer_gb_s);
	if (m->cached_gb_s > 0)
		snprintf(cached, sizeof(cached), ", from the page cache %.2f", m->cached_gb_s);
	bool needed = !d->plan.all;
	bool slow = needed && m->direct && m->random_gb_s < 0.5;
	bool hidden = needed && !m->direct;
	struct finding *finding = finding_add(&d->findings, "disk",
		slow || hidden ? FINDING_ADVICE : FINDING_OK,
		"%s, %u reads of up to %zu KiB at once: random %.2f GB/s%s, in order %.2f%s%s",
		m->link, m->depth, m->piece_bytes >> 10, m->random_gb_s, layer, m->sequential_gb_s,
		cached, m->direct ? "" : "; through the page cache, which hides the disk");
	if (slow)
		finding_todo(
			finding, "put the model on an NVMe SSD: not all experts fit in memory");
	else if (hidden)
		finding_todo(finding,
			"put the model on a file system with O_DIRECT (ext4, xfs): the page cache "
			"takes memory that experts could have");
}

static void say_expected(struct doctor *d)
{
	const struct prediction *p = &d->prediction;
	char speed[PREDICT_SPEED_TEXT];

	finding_add(&d->findings, "expected", FINDING_OK,
		"%s tokens/s%s for one session without drafts: a token reads %s%s",
		predict_speed_text(p->expected_tokens_s, 3, speed),
		d->has_device ? " on the CPU" : "", UNITS_SIZE((uint64_t)p->token_bytes),
		p->expected_tokens_s < p->tokens_s ? ", and waits for the disk" : " of memory");
}

void doctor_measure(struct doctor *d)
{
	const struct plan *plan = &d->plan;
	struct error err = {""};
	uint64_t bytes = d->has_model ? d->model.bytes : 0;

	if (measure_memory(&d->machine.cpus, bytes, &d->measured, &err) != 0) {
		finding_todo(
			finding_add(&d->findings, "bandwidth", FINDING_PROBLEM, "%s", err.text),
			"make memory free, and ask again");
		return;
	}
	d->has_measured = true;
	say_bandwidth(d);
	if (!d->has_model)
		return;
	bool cached = d->storage.cached_bytes >= 0 &&
		      (uint64_t)d->storage.cached_bytes >= d->storage.bytes;
	if (measure_disk(&d->model, cached, &d->measured.disk, &err) != 0) {
		finding_todo(finding_add(&d->findings, "disk", FINDING_PROBLEM, "%s", err.text),
			"look at the disk (dmesg), and at who may read the file");
		return;
	}
	say_disk(d);
	uint64_t least =
		d->model.experts ? slots_min(d->model.geometry) * d->model.geometry->slot_bytes : 0;
	d->has_prediction = plan->runs && predict(&d->model, d->has_draft ? &d->draft : NULL,
						  &d->measured, d->machine.kernels, plan->share,
						  plan->all_bytes, least, &d->prediction) == 0;
	if (d->has_prediction)
		say_expected(d);
}
