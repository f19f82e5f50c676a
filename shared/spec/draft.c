#include "shared/spec/draft.h"

static size_t requests_bytes(void)
{
	return ring_bytes(DRAFT_REQUEST_BYTES, DRAFT_RING_SLOTS);
}

static size_t replies_bytes(void)
{
	return ring_bytes(DRAFT_REPLY_BYTES, DRAFT_RING_SLOTS);
}

static size_t routings_bytes(void)
{
	return ring_bytes(DRAFT_ROUTING_BYTES, DRAFT_ROUTING_SLOTS);
}

size_t draft_bytes(void)
{
	return requests_bytes() + replies_bytes() + routings_bytes();
}

void draft_format(void *payload)
{
	ring_format(payload, DRAFT_REQUEST_BYTES, DRAFT_RING_SLOTS);
	ring_format((char *)payload + requests_bytes(), DRAFT_REPLY_BYTES, DRAFT_RING_SLOTS);
	ring_format((char *)payload + requests_bytes() + replies_bytes(), DRAFT_ROUTING_BYTES,
		DRAFT_ROUTING_SLOTS);
}

int draft_attach(struct draft_rings *rings, void *payload, size_t bytes, struct error *err)
{
	if (bytes < draft_bytes())
		return error_set(
			err, EBADMSG, "draft region: %zu bytes, %zu needed", bytes, draft_bytes());
	int r = ring_attach(&rings->requests, payload, requests_bytes(), DRAFT_REQUEST_BYTES, err);
	if (r < 0)
		return error_prefix(err, r, "draft requests");
	r = ring_attach(&rings->replies, (char *)payload + requests_bytes(), replies_bytes(),
		DRAFT_REPLY_BYTES, err);
	if (r < 0)
		return error_prefix(err, r, "draft replies");
	r = ring_attach(&rings->routings, (char *)payload + requests_bytes() + replies_bytes(),
		routings_bytes(), DRAFT_ROUTING_BYTES, err);
	return r < 0 ? error_prefix(err, r, "routings") : 0;
}
