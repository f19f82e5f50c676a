/*
 * Draft requests and replies: region "draft", owned by the verifier; the other side is the drafter.
 * Three rings. A request names a session page and how many committed tokens the verifier has: the drafter reads the tokens from
 * the page. A reply that does not answer the verifier's newest request of that session (sequence) is dropped, so a late or
 * restarted drafter can do no harm. The verifier trusts nothing in a reply: tokens are checked against the vocabulary, parents
 * against their order, q against 0..1. The third ring tells the drafter which experts each verified token went to, for its
 * hints to the expert-cache; what finds no room is lost and counted. The drafter trusts no index in it.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/ipc/ring.h"

#define DRAFT_REGION "draft"
#define DRAFT_LAYOUT 5

enum {
	DRAFT_RING_SLOTS = 512,
	DRAFT_ROUTING_SLOTS = 4096,
};
static_assert(
	DRAFT_RING_SLOTS >= 2 * LIMIT_RUNNING, "a request of every session, and follow requests");

struct draft_request {
	uint64_t session; /* uid */
	/* Grows with each request, over restarts of the verifier too: it starts at its generation, which are ns, and no request
	 * takes less than one. */
	uint64_t sequence;
	uint32_t page; /* index of the session page */
	uint32_t n_tokens; /* committed tokens the draft continues from */
	uint32_t k; /* 0: only follow; no reply but for what was foreseen */
	uint32_t
		last; /* 1: no further request of this round follows: batch what you have and answer */
	/* Of the demands of the pass that comes now, in its first layer with experts (struct slot_demand); the next such
	 * layer has the next. 0: not known. */
	uint64_t iteration;
	uint32_t
		foresight; /* with k = 0: 1 = what would have been drafted is wanted (foreseen, below) */
	uint32_t pad;
};

struct draft_reply {
	uint64_t session, sequence;
	uint32_t page, n_tokens;
	uint32_t n; /* drafted, 0..k */
	uint32_t method; /* enum draft_method that made it */
	uint64_t draft_ns; /* time this took; 0 when it had been drafted ahead */
	uint32_t ahead; /* of n, drafted before the request came */
	uint32_t support; /* 1: q[] is filled (maximal coupling), see below */
	/* Not 0: no draft but a foresight, what the drafter would have answered to a request for so many tokens at some
	 * time since it was asked last: the first `right` of its n came. Only n, method and confidence are filled. */
	uint32_t foreseen, right;
	int32_t token[LIMIT_DRAFT];
	int8_t parent[LIMIT_DRAFT +
		      1]; /* index of the token before, -1 = the committed tokens; a chain is i - 1 */
	float confidence
		[LIMIT_DRAFT]; /* how sure the drafter is of the token: a model's q; 1 when the method cannot say */
	/* Maximal coupling: position i was sampled from q_i with this support, sum of p = 1. 0 = a certain proposal. */
	uint8_t n_support[LIMIT_DRAFT + 1];
	struct {
		int32_t token;
		float p;
	} q[LIMIT_DRAFT][LIMIT_DRAFT_SUPPORT];
};

/* Where one verified token went in some of the layers that have experts; all its layers take several entries, in order. */
enum { DRAFT_ROUTING_ITEMS = 108 };
struct draft_routing {
	uint64_t session; /* uid */
	int32_t token, before; /* and the token before it; -1: none */
	uint32_t page, position;
	uint16_t first; /* the first of these layers, counted among those with experts */
	uint16_t n_layers; /* here */
	uint16_t n_moe; /* layers with experts the model has */
	uint16_t n_used; /* experts per token and layer */
	uint8_t pad[8];
	/* [n_layers][1 + n_used]: the layer's number, its experts by falling weight */
	uint16_t items[DRAFT_ROUTING_ITEMS];
};

#define DRAFT_ROUTING_BYTES 256
static_assert(sizeof(struct draft_routing) == DRAFT_ROUTING_BYTES, "four cache lines");
static_assert((int)DRAFT_ROUTING_ITEMS > (int)LIMIT_EXPERTS_USED, "an entry holds a layer");

#define DRAFT_REQUEST_BYTES 64
#define DRAFT_REPLY_BYTES (((sizeof(struct draft_reply) + 63) / 64) * 64)
static_assert(sizeof(struct draft_request) <= DRAFT_REQUEST_BYTES, "a request is one cache line");

/* Payload: the request ring, the reply ring, the routing ring, each rounded up to a cache line. */
size_t draft_bytes(void);
void draft_format(void *payload);
struct draft_rings {
	struct ring requests, replies, routings;
};
int draft_attach(struct draft_rings *rings, void *payload, size_t bytes, struct error *err);
