#include "shared/spec/draft.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t requests_bytes(void)
{
	return ring_bytes(DRAFT_REQUEST_BYTES, DRAFT_REQUEST_SLOTS);
}

static size_t replies_bytes(void)
{
	return ring_bytes(DRAFT_PART_BYTES, DRAFT_REPLY_SLOTS);
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
	ring_format(payload, DRAFT_REQUEST_BYTES, DRAFT_REQUEST_SLOTS);
	ring_format((char *)payload + requests_bytes(), DRAFT_PART_BYTES, DRAFT_REPLY_SLOTS);
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
		DRAFT_PART_BYTES, err);
	if (r < 0)
		return error_prefix(err, r, "draft replies");
	r = ring_attach(&rings->routings, (char *)payload + requests_bytes() + replies_bytes(),
		routings_bytes(), DRAFT_ROUTING_BYTES, err);
	return r < 0 ? error_prefix(err, r, "routings") : 0;
}

/* Room grows in powers of two, so that it suffices after the first drafts of a session. */
static uint32_t rounded(uint32_t n)
{
	uint32_t room = 16;

	while (room < n)
		room *= 2;
	return room;
}

int draft_room(struct draft_reply *reply, uint32_t nodes)
{
	if (nodes <= reply->room)
		return 0;
	uint32_t room = rounded(nodes);
	struct draft_node *node = realloc(reply->node, room * sizeof(*node));

	if (!node)
		return -ENOMEM;
	reply->node = node;
	reply->room = room;
	return 0;
}

int draft_room_supports(struct draft_reply *reply, uint32_t nodes)
{
	if (nodes <= reply->room_supports)
		return 0;
	uint32_t room = rounded(nodes);
	uint32_t *support = realloc(reply->support_room, (room + 1) * sizeof(*support));

	if (!support)
		return -ENOMEM;
	reply->support_room = support;
	struct draft_choice *choice =
		realloc(reply->choice, (size_t)room * LIMIT_DRAFT_SUPPORT * sizeof(*choice));
	if (!choice)
		return -ENOMEM;
	reply->choice = choice;
	reply->room_supports = room;
	return 0;
}

/* The needs of a few large drafts fit into the region. */
#define NEEDS_OF_A_DRAFT (NEEDS_WORDS / 4)

int draft_room_needs(struct draft_reply *reply, uint32_t n_words)
{
	size_t words = (size_t)(1 + reply->n) * n_words;

	if (words > NEEDS_OF_A_DRAFT)
		return -E2BIG;
	reply->needs_words = n_words;
	if (words <= reply->room_needs)
		return 0;
	size_t room = rounded((uint32_t)words);
	uint64_t *needs = realloc(reply->need_room, room * sizeof(*needs));

	if (!needs)
		return -ENOMEM;
	reply->need_room = needs;
	reply->room_needs = room;
	return 0;
}

struct draft_supports draft_supports_of(void *payload)
{
	struct draft_choice *words = payload;

	return (struct draft_supports){
		.words = words, .needs = (uint64_t *)(void *)(words + SUPPORTS_WORDS)};
}

void draft_reply_exit(struct draft_reply *reply)
{
	free(reply->node);
	free(reply->support_room);
	free(reply->choice);
	free(reply->need_room);
	memset(reply, 0, sizeof(*reply));
}

void draft_reply_clear(struct draft_reply *reply)
{
	reply->n = reply->ahead = reply->foreseen = reply->right = 0;
	reply->draft_ns = 0;
	reply->support = NULL;
	reply->needs = NULL;
}

void draft_keep(struct draft_reply *reply, const uint16_t *kept)
{
	int16_t index[LIMIT_DRAFT_NODES]; /* new index of each node that stays */
	uint32_t n = 0;

	for (uint32_t i = 0; i < reply->n; i++) {
		struct draft_node node = reply->node[i];

		if (!kept[i])
			continue;
		if (node.parent >= 0)
			node.parent = index[node.parent];
		index[i] = (int16_t)n;
		reply->node[n++] = node;
	}
	reply->n = n;
	reply->needs = NULL;
}

uint32_t draft_path(const struct draft_reply *reply, int16_t path[LIMIT_DRAFT_DEPTH])
{
	uint32_t n = 0;
	int last = -1;

	for (uint32_t i = 0; i < reply->n && n < LIMIT_DRAFT_DEPTH; i++)
		if (reply->node[i].parent == last) {
			path[n++] = (int16_t)i;
			last = (int)i;
		}
	return n;
}

/* Writes the reply's supports into the region; returns where they begin. Drafts follow one another
 * there and start again at the beginning. The region holds the supports of a full batch, so a draft
 * that is overwritten was copied long ago or is no longer awaited. */
static uint32_t write_supports(struct draft_supports *supports, const struct draft_reply *reply)
{
	if (!reply->support)
		return UINT32_MAX;
	uint32_t n_choices = reply->support[reply->n] - reply->support[0];
	uint32_t words = reply->n + n_choices;
	if (supports->next > SUPPORTS_WORDS - words)
		supports->next = 0;
	struct draft_choice *to = supports->words + supports->next;

	for (uint32_t i = 0; i < reply->n; i++)
		to[i] = (struct draft_choice){
			.token = (int32_t)(reply->support[i + 1] - reply->support[i])};
	memcpy(to + reply->n, reply->choice + reply->support[0], n_choices * sizeof(*to));
	supports->next += words;
	return supports->next - words;
}

/* The same for needs. They are hints: those that are overwritten before they were copied do no harm. */
static uint32_t write_needs(struct draft_supports *supports, const struct draft_reply *reply)
{
	uint32_t words = (1 + reply->n) * reply->needs_words;

	if (supports->next_needs > NEEDS_WORDS - words)
		supports->next_needs = 0;
	memcpy(supports->needs + supports->next_needs, reply->needs, words * sizeof(*reply->needs));
	supports->next_needs += words;
	return supports->next_needs - words;
}

static void fill_part(struct draft_part *part, const struct draft_reply *reply, uint32_t n,
	uint32_t first, uint32_t supports, bool needs)
{
	uint32_t here = n - first < DRAFT_PART_NODES ? n - first : DRAFT_PART_NODES;

	*part = (struct draft_part){
		.session = reply->session,
		.sequence = reply->sequence,
		.n_tokens = reply->n_tokens,
		.draft_ns = (uint32_t)(reply->draft_ns < UINT32_MAX ? reply->draft_ns : UINT32_MAX),
		.supports = supports,
		.page = (uint16_t)reply->page,
		.n = (uint16_t)n,
		.first = (uint16_t)first,
		.ahead = (uint16_t)reply->ahead,
		.method = (uint8_t)reply->method,
		.foreseen = (uint8_t)reply->foreseen,
		.right = (uint8_t)reply->right,
		.needs = needs,
	};
	if (here > 0)
		memcpy(part->node, reply->node + first, here * sizeof(*part->node));
}

bool draft_send(struct ring *replies, struct draft_supports *supports,
	const struct draft_reply *reply, bool quietly)
{
	/* A token that was sampled must never be taken for a certain proposal. */
	uint32_t n = reply->support && !supports->words ? 0 : reply->n;
	uint32_t parts = (n + DRAFT_PART_NODES - 1) / DRAFT_PART_NODES, first = 0;

	if (ring_length(replies) + parts > DRAFT_REPLY_SLOTS)
		return false;
	bool needs = n > 0 && !reply->support && reply->needs && supports->needs;
	uint32_t at = n > 0 ? write_supports(supports, reply) : UINT32_MAX;
	if (needs)
		at = write_needs(supports, reply);
	do {
		struct draft_part *part = ring_reserve(replies);

		if (!part)
			return false;
		fill_part(part, reply, n, first, at, needs);
		first += DRAFT_PART_NODES;
		if (quietly || first < n)
			ring_publish_quietly(replies);
		else
			ring_publish(replies);
	} while (first < n);
	return true;
}

/* Reads each count once, and copies according to that value. */
static int copy_supports(
	struct draft_reply *reply, const struct draft_supports *supports, uint32_t at)
{
	if (!supports->words || at > SUPPORTS_WORDS - reply->n ||
		draft_room_supports(reply, reply->n) < 0)
		return -EPROTO;
	const struct draft_choice *from = supports->words + at;
	uint32_t *end = reply->support_room, room = SUPPORTS_WORDS - at - reply->n;

	end[0] = 0;
	for (uint32_t i = 0; i < reply->n; i++) {
		int32_t n = ((const volatile struct draft_choice *)from)[i].token;

		if (n < 0 || n > LIMIT_DRAFT_SUPPORT)
			return -EPROTO;
		end[i + 1] = end[i] + (uint32_t)n;
	}
	if (end[reply->n] > room)
		return -EPROTO;
	memcpy(reply->choice, from + reply->n, end[reply->n] * sizeof(*from));
	reply->support = end;
	return 0;
}

/* A draft whose needs are not there, or of another size than was asked for, has none. */
static void copy_needs(
	struct draft_reply *reply, const struct draft_supports *supports, uint32_t at)
{
	size_t words = (size_t)(1 + reply->n) * reply->needs_words;

	if (!supports->needs || words == 0 || at > NEEDS_WORDS || words > NEEDS_WORDS - at ||
		draft_room_needs(reply, reply->needs_words) < 0)
		return;
	memcpy(reply->need_room, supports->needs + at, words * sizeof(*reply->need_room));
	reply->needs = reply->need_room;
}

int draft_take(struct draft_reply *reply, uint32_t *n_taken, const struct draft_part *part,
	const struct draft_supports *supports)
{
	bool begins = part->first == 0;

	if (begins) {
		draft_reply_clear(reply);
		*n_taken = 0;
		reply->session = part->session;
		reply->sequence = part->sequence;
		reply->page = part->page;
		reply->n_tokens = part->n_tokens;
		reply->method = part->method;
		reply->draft_ns = part->draft_ns;
		reply->ahead = part->ahead;
		reply->foreseen = part->foreseen;
		reply->right = part->right;
		reply->n = part->n;
	}
	if (reply->n > reply->room || part->first != *n_taken || part->n != reply->n ||
		part->session != reply->session || part->sequence != reply->sequence ||
		(!begins && *n_taken >= reply->n)) {
		reply->n = *n_taken = 0;
		return -EPROTO;
	}
	uint32_t n = reply->n - *n_taken;

	n = n < DRAFT_PART_NODES ? n : DRAFT_PART_NODES;
	memcpy(reply->node + *n_taken, part->node, n * sizeof(*part->node));
	*n_taken += n;
	if (*n_taken < reply->n)
		return 0;
	if (part->needs != 0)
		copy_needs(reply, supports, part->supports);
	else if (part->supports != UINT32_MAX &&
		 copy_supports(reply, supports, part->supports) < 0) {
		reply->n = 0;
		return -EPROTO;
	}
	return 1;
}
