/*
 * Draft requests and replies: region "draft", owned by the verifier; the other side is the drafter.
 *
 * A draft is a tree of tokens behind the committed ones; a chain is a tree in which each token has one child. Nodes are in an order
 * in which a parent comes before its children, so the first nodes of a draft, however many, are a draft.
 *
 * The region holds three rings. A request names a session page, the number of committed tokens and a budget: the drafter reads the
 * tokens from the page. A reply is a sequence of parts, one after the other in its ring; a chain of up to DRAFT_PART_NODES tokens
 * is one part of two cache lines. A reply that does not answer the verifier's newest request for the session (sequence)
 * is dropped, so a late or restarted drafter can do no harm. The verifier trusts nothing in a reply: tokens are checked against
 * the vocabulary, parents against their order, the tree against the budget. The third ring tells the drafter which experts each
 * verified token went to, for its hints to the expert-cache; an entry that finds no room is lost and counted. The drafter trusts
 * no index in it.
 *
 * Region "supports", owned by the verifier and written by the drafter: what each token of a draft was sampled from, for maximal
 * coupling alone. Its pages take memory when they are first written, so the region costs nothing until a session asks for that
 * coupling. The verifier copies a draft's supports and checks the copy.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/ipc/ring.h"

#define DRAFT_REGION "draft"
#define DRAFT_LAYOUT 6
#define SUPPORTS_REGION "supports"
#define SUPPORTS_LAYOUT 1

enum {
	DRAFT_REQUEST_SLOTS = 1024,
	DRAFT_REPLY_SLOTS = 2048,
	DRAFT_FORESEEN_SLOTS = 256, /* with so many replies unread, no foresight is sent */
	DRAFT_ROUTING_SLOTS = 4096,
};
static_assert(DRAFT_REQUEST_SLOTS >= 2 * LIMIT_RUNNING,
	"a request of every session, and requests to follow");

/* The largest draft that is wanted. nodes 0: none. */
struct draft_budget {
	uint16_t nodes;
	uint8_t depth; /* tokens of one path */
	uint8_t width; /* children of one token */
};

static inline struct draft_budget draft_chain_budget(uint32_t k)
{
	return (struct draft_budget){.nodes = (uint16_t)k, .depth = (uint8_t)k, .width = 1};
}

struct draft_request {
	uint64_t session; /* uid */
	/* Grows with each request, over restarts of the verifier too: it starts at its generation, which are ns, and no request
	 * takes less than one. */
	uint64_t sequence;
	uint32_t page; /* index of the session page */
	uint32_t n_tokens; /* committed tokens the draft continues from */
	struct draft_budget budget; /* nodes 0: follow the session; only a foresight is answered */
	uint32_t
		last; /* 1: no further request of this round follows: batch what you have and answer */
	/* Number of the demands of the coming pass in its first layer with experts (struct slot_demand); the next such
	 * layer has the next. 0: not known. */
	uint64_t iteration;
	uint32_t
		foresight; /* with nodes = 0: 1 = tell what would have been drafted (foreseen, below) */
	uint32_t pad;
};

/* A token of a draft. */
struct draft_node {
	int32_t token;
	int16_t parent; /* index of the node before it; -1: the committed tokens end before it */
	uint16_t confidence; /* draft_confidence: a model's q; 1 when the method cannot say */
};

#define DRAFT_CONFIDENCE 65535

static inline uint16_t draft_confidence(float value)
{
	return (uint16_t)(value * (float)DRAFT_CONFIDENCE + 0.5f);
}

static inline float draft_confidence_of(const struct draft_node *node)
{
	return (float)node->confidence / (float)DRAFT_CONFIDENCE;
}

/* A token that could have been drawn, and its probability. */
struct draft_choice {
	int32_t token;
	float p;
};

/* A reply as its maker and its reader hold it, in memory of their own. */
struct draft_reply {
	uint64_t session, sequence;
	uint32_t page, n_tokens;
	uint32_t n; /* nodes drafted, up to the budget's */
	uint32_t method; /* enum draft_method that made it */
	uint64_t
		draft_ns; /* time this took, at most UINT32_MAX; 0 when it had been drafted ahead */
	uint32_t ahead; /* of n, drafted before the request came */
	/* Not 0: no draft but a foresight, what the drafter would have answered to a request for a chain of so many tokens at
	 * some time since it was asked last: the first `right` of its n came. Its nodes have a confidence alone. */
	uint32_t foreseen, right;
	struct draft_node *node; /* [room] */
	/* Maximal coupling: node i was sampled from choice[support[i]] to choice[support[i + 1] - 1]; their p sum to 1. An empty
	 * range is a certain proposal. support NULL: all are; else it is support_room. */
	uint32_t *support; /* [n + 1] */
	struct draft_choice *choice; /* [room_supports * LIMIT_DRAFT_SUPPORT] */
	uint32_t *support_room; /* [room_supports + 1] */
	uint32_t room, room_supports; /* nodes there is memory for */
};

/* Choices of node i; *n: how many, 0 for a certain proposal. */
static inline const struct draft_choice *draft_support(
	const struct draft_reply *reply, uint32_t i, uint32_t *n)
{
	*n = reply->support ? reply->support[i + 1] - reply->support[i] : 0;
	return *n > 0 ? reply->choice + reply->support[i] : NULL;
}

/* What lies in the ring: the reply's head in each part, and some of its nodes. */
enum { DRAFT_PART_NODES = 11 };
struct draft_part {
	uint64_t session, sequence;
	uint32_t n_tokens;
	uint32_t draft_ns;
	uint32_t
		supports; /* where they begin in that region, in words; UINT32_MAX: there are none */
	uint16_t page;
	uint16_t n; /* nodes of the reply */
	uint16_t first; /* nodes in the parts before this one */
	uint16_t ahead;
	uint8_t method, foreseen, right, pad;
	struct draft_node node[DRAFT_PART_NODES];
};

#define DRAFT_REQUEST_BYTES 64
#define DRAFT_PART_BYTES 128
#define DRAFT_PARTS_MAX ((LIMIT_DRAFT_NODES + DRAFT_PART_NODES - 1) / DRAFT_PART_NODES)
static_assert(sizeof(struct draft_request) <= DRAFT_REQUEST_BYTES, "a request is one cache line");
static_assert(sizeof(struct draft_part) == DRAFT_PART_BYTES, "a part is two cache lines");
static_assert(
	DRAFT_REPLY_SLOTS >= LIMIT_BATCH / DRAFT_PART_NODES + LIMIT_RUNNING + DRAFT_FORESEEN_SLOTS,
	"the ring holds the drafts of a full batch, and what was foreseen");
static_assert((int)DRAFT_FORESEEN_SLOTS >= (int)LIMIT_RUNNING, "a foresight of every session");

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

/* Payload: the request ring, the reply ring, the routing ring, each rounded up to a cache line. */
size_t draft_bytes(void);
void draft_format(void *payload);
struct draft_rings {
	struct ring requests, replies, routings;
};
int draft_attach(struct draft_rings *rings, void *payload, size_t bytes, struct error *err);

/* The payload of region "supports": words, each a struct draft_choice. A draft's supports are the numbers of choices of its nodes
 * (in `token`), then the choices themselves. */
enum { SUPPORTS_WORDS = LIMIT_BATCH * (LIMIT_DRAFT_SUPPORT + 1) };
#define SUPPORTS_BYTES (SUPPORTS_WORDS * sizeof(struct draft_choice))

struct draft_supports {
	struct draft_choice *words; /* [SUPPORTS_WORDS]; NULL: there is no region */
	uint32_t next; /* the writer's: where the next draft's begin */
};

/* Memory for so many nodes, which is kept; 0 or -ENOMEM. */
int draft_room(struct draft_reply *reply, uint32_t nodes);
/* With memory for the supports of so many nodes. */
int draft_room_supports(struct draft_reply *reply, uint32_t nodes);
void draft_reply_exit(struct draft_reply *reply);
/* No draft and no foresight; the memory stays. */
void draft_reply_clear(struct draft_reply *reply);

/* Leaves those nodes that are kept ([n], each 0 or 1), whose parents are kept too. Without supports. */
void draft_keep(struct draft_reply *reply, const uint16_t *kept);

/* The main path: at each token the first child. Its nodes' indices; returns its length. */
uint32_t draft_path(const struct draft_reply *reply, int16_t path[LIMIT_DRAFT_DEPTH]);

/* The drafter: all parts of a reply, or, where the ring has no room for all of them, none. quietly: the bell is not rung. */
bool draft_send(struct ring *replies, struct draft_supports *supports,
	const struct draft_reply *reply, bool quietly);

/* The verifier: takes the next part of a reply up. part: a copy that nobody else writes to. 1: the reply is whole; 0: more parts
 * follow; -EPROTO: it is no part that can come now, or larger than the room, and the reply begins anew. Of supports, numbers are
 * checked here; what they say is not. */
int draft_take(struct draft_reply *reply, uint32_t *n_taken, const struct draft_part *part,
	const struct draft_supports *supports);
