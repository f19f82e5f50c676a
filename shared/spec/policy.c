#include "shared/spec/policy.h"

#include "shared/base/round.h"

#include <string.h>

void policy_record_confidence(struct iteration_record *record, const float *confidence, uint32_t n)
{
	memset(record->confidence, 0, sizeof(record->confidence));
	for (uint32_t i = 0; i < n && i < LIMIT_DRAFT_DEPTH; i++)
		record->confidence[i] = (uint8_t)(confidence[i] * (float)POLICY_CONFIDENCE + 0.5f);
}

void policy_record_draft(struct iteration_record *record, const struct draft_reply *draft,
	const int16_t *accepted, uint32_t n_accepted)
{
	float any[LIMIT_DRAFT_NODES + 1], confidence[LIMIT_DRAFT_DEPTH];
	int16_t first[LIMIT_DRAFT_NODES + 1];
	uint32_t depth = 0, at = 0;

	/* For each node's children (at the node's index + 1): the sum of their confidences, and the
	 * first child. */
	any[0] = 0;
	first[0] = -1;
	for (uint32_t i = 0; i < draft->n; i++) {
		uint32_t parent = (uint32_t)(draft->node[i].parent + 1);

		any[i + 1] = 0;
		first[i + 1] = -1;
		any[parent] += draft_confidence_of(&draft->node[i]);
		if (first[parent] < 0)
			first[parent] = (int16_t)i;
	}
	for (; depth < LIMIT_DRAFT_DEPTH && first[at] >= 0; depth++) {
		confidence[depth] = any[at] < 1 ? any[at] : 1;
		at = (uint32_t)((depth < n_accepted ? accepted[depth] : first[at]) + 1);
	}
	/* The accepted path leaves the main path at its first token that is no first child. */
	uint32_t on = 0;
	at = 0;
	while (on < n_accepted && accepted[on] == first[at])
		at = (uint32_t)accepted[on++] + 1;
	record->beside = (uint8_t)(n_accepted - on);
	record->drafted = (uint16_t)draft->n;
	record->depth = (uint8_t)depth;
	policy_record_confidence(record, confidence, depth);
}

static size_t page_bytes(void)
{
	return round_lines(sizeof(struct policy_page));
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

/* K comes from another process, so it is limited to what a draft can hold. */
static uint32_t clamp_k(uint32_t k)
{
	return k > LIMIT_DRAFT_DEPTH ? LIMIT_DRAFT_DEPTH : k;
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

/* True when a path ends before its token at this depth (from 0). product: of the confidences up to
 * that token. */
static bool ends(const struct policy_session *knobs, uint32_t depth, float product)
{
	return product < knobs->cut[depth];
}

uint32_t policy_cut_path(const struct policy_session *knobs, const float *confidence, uint32_t n)
{
	float product = 1;
	for (uint32_t i = 0; i < n && i < LIMIT_DRAFT_DEPTH; i++) {
		product *= confidence[i];
		if (ends(knobs, i, product))
			return i;
	}
	return n;
}

void policy_cut(const struct policy_session *knobs, struct draft_reply *draft)
{
	float product[LIMIT_DRAFT_NODES];
	uint8_t depth[LIMIT_DRAFT_NODES];
	uint16_t kept[LIMIT_DRAFT_NODES];

	for (uint32_t i = 0; i < draft->n; i++) {
		int parent = draft->node[i].parent;

		kept[i] = parent < 0 || kept[parent];
		product[i] = parent < 0 ? 1 : product[parent];
		product[i] *= draft_confidence_of(&draft->node[i]);
		depth[i] = (uint8_t)(parent < 0 ? 0 : depth[parent] + 1);
		kept[i] = kept[i] && !ends(knobs, depth[i], product[i]);
	}
	draft_keep(draft, kept);
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
		if (out->width > LIMIT_DRAFT_WIDTH)
			out->width = LIMIT_DRAFT_WIDTH;
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
