/* How good the hints for the expert-cache are, in outriderctl cache stats. */
#include "admin/ctl.h"

#include <inttypes.h>

json_t *ctl_hints_json(Outrider__HintQuality *const *hints, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++) {
		const Outrider__HintQuality *h = hints[i];

		json_array_append_new(list,
			json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:o}", "source",
				json_text(h->source), "passes", (json_int_t)h->passes, "used",
				(json_int_t)h->used, "found", (json_int_t)h->found, "hinted",
				(json_int_t)h->hinted, "late", (json_int_t)h->late, "lead_ns",
				(json_int_t)h->lead_ns, "recall",
				ctl_share_json((double)h->found, (double)h->used), "precision",
				ctl_share_json((double)h->found, (double)h->hinted), "lead_ms",
				ctl_share_json((double)h->lead_ns / 1e6, (double)h->found)));
	}
	return list;
}

void ctl_hints_text(Outrider__HintQuality *const *hints, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const Outrider__HintQuality *h = hints[i];
		char recall[16], precision[16], lead[24] = "-";

		if (h->found)
			snprintf(lead, sizeof lead, "%.3f ms",
				(double)h->lead_ns / 1e6 / (double)h->found);
		printf("  %-8s recall %6s  precision %6s  lead %10s  late %" PRIu64 "\n", h->source,
			ctl_share((double)h->found, (double)h->used, 1, recall, sizeof recall),
			ctl_share((double)h->found, (double)h->hinted, 1, precision,
				sizeof precision),
			lead, h->late);
	}
}
