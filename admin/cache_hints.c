/* How good the hints for the expert-cache are, in outriderctl cache stats. */
#include "admin/ctl.h"

#include <inttypes.h>

json_t *ctl_hints_json(Outrider__HintQuality *const *hints, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++) {
		const Outrider__HintQuality *h = hints[i];

		json_array_append_new(list,
			json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f}", "source",
				ctl_text_json(h->source), "passes", (json_int_t)h->passes, "used",
				(json_int_t)h->used, "found", (json_int_t)h->found, "hinted",
				(json_int_t)h->hinted, "late", (json_int_t)h->late, "lead_ns",
				(json_int_t)h->lead_ns, "recall",
				ctl_rate(h->found, h->used - h->found), "precision",
				ctl_rate(h->found, h->hinted - h->found), "lead_ms",
				h->found ? (double)h->lead_ns / 1e6 / (double)h->found : 0.0));
	}
	return list;
}

void ctl_hints_text(Outrider__HintQuality *const *hints, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const Outrider__HintQuality *h = hints[i];

		printf("  %-8s recall %5.1f%%  precision %5.1f%%  lead %7.3f ms  late %" PRIu64
		       "\n",
			h->source, 100 * ctl_rate(h->found, h->used - h->found),
			100 * ctl_rate(h->found, h->hinted - h->found),
			h->found ? (double)h->lead_ns / 1e6 / (double)h->found : 0.0, h->late);
	}
}
