#include "shared/spec/policy.h"

#include <string.h>

void policy_record_confidence(struct iteration_record *record, const float *confidence, uint32_t n)
{
	memset(record->confidence, 0, sizeof(record->confidence));
	for (uint32_t i = 0; i < n && i < LIMIT_DRAFT; i++)
		record->confidence[i] = (uint8_t)(confidence[i] * (float)POLICY_CONFIDENCE + 0.5f);
}

static size_t page_bytes(void)
{
	return (sizeof(struct policy_page) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

size_t policy_bytes(void)
{
	return page_bytes() + ring_bytes(POLICY_RECORD_BYTES, POLICY_RECORD_SLOTS);
}

void policy_format(void *payload)
{
	ring_format((char *)payload + page_bytes(), POLICY_RECORD_BYTES, POLICY_RECORD_SLOTS);
}

int policy_attach(void *payload, size_t bytes, struct policy_page **page, struct ring *records,
	struct error *err)
{
	if (bytes < policy_bytes())
		return error_set(err, EBADMSG, "policy region: %zu bytes, %zu needed", bytes,
			policy_bytes());
	int r = ring_attach(records, (char *)payload + page_bytes(), bytes - page_bytes(),
		POLICY_RECORD_BYTES, err);
	if (r < 0)
		return error_prefix(err, r, "iteration records");
	*page = payload;
	return 0;
}

/* K comes from another process: it is cut to what a draft can hold, whatever the page says. */
static uint32_t clamp_k(uint32_t k)
{
	return k > LIMIT_DRAFT ? LIMIT_DRAFT : k;
}

uint32_t policy_next_k(const struct policy_session *knobs, struct policy_trial *trial)
{
	if (knobs->trial_n == 0)
		return clamp_k(knobs->k);
	if (trial->session != knobs->session || trial->id != knobs->trial_id)
		*trial = (struct policy_trial){knobs->session, knobs->trial_id, 0};
	if (trial->used >= knobs->trial_n)
		return clamp_k(knobs->k_then);
	trial->used++;
	return clamp_k(knobs->k);
}

uint32_t policy_cut(const struct policy_session *knobs, const float *confidence, uint32_t n)
{
	float product = 1;
	for (uint32_t i = 0; i < n && i < LIMIT_DRAFT; i++) {
		product *= confidence[i];
		if (product < knobs->cut[i])
			return i;
	}
	return n;
}

bool policy_lookup(
	const struct policy_page *page, uint32_t slot, uint64_t session, struct policy_session *out)
{
	*out = (struct policy_session){.session = session};
	if (!page || slot >= LIMIT_SESSIONS)
		return false;
	const struct policy_page_session *own = &page->sessions[slot];
	struct policy_session knobs;
	if (page_read(&own->lock, &own->knobs, &knobs, sizeof(knobs)) && knobs.session == session) {
		*out = knobs;
		out->k = clamp_k(knobs.k);
		return true;
	}
	struct policy_defaults defaults;
	if (page_read(&page->defaults_lock, &page->defaults, &defaults, sizeof(defaults))) {
		out->k = clamp_k(defaults.k);
		out->unfollowed = defaults.unfollowed;
		out->foresight = defaults.foresight;
	}
	return false;
}
