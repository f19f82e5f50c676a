/*
 * Draft requests and replies: region "draft", owned by the verifier and also written by the
 * drafter.
 *
 * A draft is a tree of tokens behind the committed ones; a chain is a tree in which each token has
 * one child. Nodes are ordered so that a parent comes before its children. So the first nodes of a
 * draft, however many, are a draft themselves.
 *
 * The region holds three rings.
 *
 * - Requests (verifier to drafter). A request names a session page, the number of committed tokens,
 *   and a budget; the drafter reads the tokens from the page.
 * - Replies (drafter to verifier). A reply is a sequence of parts that follow one another in the
 *   ring. A chain of up to DRAFT_PART_NODES tokens is one part of two cache lines. A reply that
 *   does not answer the verifier's newest request for the session (sequence) is dropped, so a late
 *   or restarted drafter does no harm. The verifier trusts nothing in a reply: tokens are checked
 *   against the vocabulary, parents against their order, the tree against the budget.
 * - Routings (verifier to drafter). They tell the drafter which experts each verified token went
 *   to, for its hints to the expert-cache. An entry that finds no room is lost and counted. The
 *   drafter trusts no index in it.
 *
 * Region "supports", owned by the verifier and written by the drafter: the distribution from which
 * each token of a draft was sampled, used by maximal coupling only; and behind these, the experts
 * that each token is likely to need, for drafts of which the verifier chooses what it verifies. Its
 * pages take memory when they are first written, so the region costs nothing until a session asks for
 * either. The verifier copies a draft's supports and checks the copy. A wrong set of experts
 * costs speed only.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/ipc/ring.h"

#define DRAFT_REGION "draft"
#define DRAFT_LAYOUT 9
#define SUPPORTS_REGION "supports"
#define SUPPORTS_LAYOUT 2

enum {
	DRAFT_REQUEST_SLOTS = 1024,
	DRAFT_REPLY_SLOTS = 2048,
	DRAFT_FORESEEN_SLOTS = 256, /* with this many replies unread, no foresight is sent */
	DRAFT_ROUTING_SLOTS = 4096,
	DRAFT_SHAPE = 8, /* levels of a tree of a fixed shape */
};
static_assert(DRAFT_REQUEST_SLOTS >= 2 * LIMIT_RUNNING,
	"a request of every session, and requests to follow");

/* The largest draft that the verifier wants. nodes 0: none. */
struct draft_budget {
	uint16_t nodes;
	uint8_t depth; /* of one path */
	uint8_t width; /* children of one token, in any depth */
	/* Children of each token of depth i - 1, for trees of a fixed shape; 0 ends it. shape[0] 0:
	 * the drafter chooses the shape. */
	uint8_t shape[DRAFT_SHAPE];
};

/* The most children of a token at this depth (0: of the committed tokens). */
static inline uint32_t draft_width_at(const struct draft_budget *budget, uint32_t depth)
{
	if (budget->shape[0] == 0)
		return budget->width;
	return depth < DRAFT_SHAPE ? budget->shape[depth] : 0;
}

static inline struct draft_budget draft_chain_budget(uint32_t k)
{
	return (struct draft_budget){.nodes = (uint16_t)k, .depth = (uint8_t)k, .width = 1};
}

struct draft_request {
	uint64_t session; /* uid */
	/* Grows with each request, also across restarts of the verifier: it starts at the
	 * verifier's generation, which is in ns, and no request takes less than 1 ns. */
	uint64_t sequence;
	uint32_t page; /* index of the session page */
	uint32_t n_tokens; /* committed tokens, from which the draft continues */
	/* nodes 0: follow the session, and answer only with a foresight */
	struct draft_budget budget;
	/* 1: no other request of this round follows, so take those that are there together and
	 * answer */
	uint32_t last;
	/* Number of the demands that the coming pass makes in its first layer with experts (struct
	 * slot_demand); the next such layer has the next number. 0: unknown. */
	uint64_t iteration;
	/* with nodes = 0: 1 = reply with what would have been drafted (`foreseen` of struct
	 * draft_reply) */
	uint32_t foresight;
	/* with nodes = 0: tokens that the verifier has drafted itself, from masks, and is about to
	 * verify, for hints */
	uint32_t n_own;
	int32_t own[LIMIT_MTP_DRAFT];
	/* with nodes > 0: the experts of each token are wanted, in sets of so many words; 0: not */
	uint32_t needs_words;
};

/* A token of a draft. */
struct draft_node {
	int32_t token;
	int16_t parent; /* index of the preceding node; -1: the committed tokens precede it */
	uint16_t confidence; /* draft_confidence: a model's q; 1 if the method knows none */
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

/* A token that could have been drawn, with its probability. */
struct draft_choice {
	int32_t token;
	float p;
};

/* A reply in the private memory of its sender or its receiver. */
struct draft_reply {
	uint64_t session, sequence;
	uint32_t page, n_tokens;
	uint32_t n; /* number of nodes, within the budget */
	uint32_t method; /* enum draft_method that made it */
	/* time that drafting took, at most UINT32_MAX; 0: it had been drafted ahead */
	uint64_t draft_ns;
	uint32_t ahead; /* how many of the n nodes were drafted before the request came */
	/* Nonzero: the reply is no draft but a foresight, a shadow draft. Asked for a chain of
	 * `foreseen` tokens at some time since its last draft, the drafter would have drafted these
	 * n; the first `right` of them came true. Its nodes have only their confidence set. */
	uint32_t foreseen, right;
	struct draft_node *node; /* [room] */
	/* Maximal coupling: node i was sampled from choice[support[i]] to choice[support[i + 1] -
	 * 1], whose p sum to 1. An empty range is a certain proposal. support NULL: all nodes are
	 * certain; otherwise it points to support_room. */
	uint32_t *support; /* [n + 1] */
	struct draft_choice *choice; /* [room_supports * LIMIT_DRAFT_SUPPORT] */
	uint32_t *support_room; /* [room_supports + 1] */
	uint32_t room, room_supports; /* number of nodes for which there is memory */
	/* Which experts a token is likely to need: [1 + n][needs_words], the newest committed token's
	 * set first, then each node's; bit i * experts of a layer + expert, of the i-th layer with
	 * experts. A layer without a bit is not predicted. needs NULL: nothing is; otherwise it
	 * points to need_room. */
	uint64_t *needs;
	uint32_t needs_words;
	uint64_t *need_room;
	size_t room_needs; /* words for which there is memory */
};

/* The choices of node i; *n: their number, 0 for a certain proposal. */
static inline const struct draft_choice *draft_support(
	const struct draft_reply *reply, uint32_t i, uint32_t *n)
{
	*n = reply->support ? reply->support[i + 1] - reply->support[i] : 0;
	return *n > 0 ? reply->choice + reply->support[i] : NULL;
}

/* One part in the ring: the head of the reply, and some of its nodes. */
enum { DRAFT_PART_NODES = 11 };
struct draft_part {
	uint64_t session, sequence;
	uint32_t n_tokens;
	uint32_t draft_ns;
	/* offset in the region "supports", in words of the supports, or of the needs; UINT32_MAX: it has
	 * neither */
	uint32_t supports;
	uint16_t page;
	uint16_t n; /* nodes of the whole reply */
	uint16_t first; /* number of nodes in the parts before this one */
	uint16_t ahead;
	uint8_t method, foreseen, right, needs; /* needs: 1 = at that offset are needs */
	struct draft_node node[DRAFT_PART_NODES];
};

#define DRAFT_REQUEST_BYTES 128
#define DRAFT_PART_BYTES 128
#define DRAFT_PARTS_MAX ((LIMIT_DRAFT_NODES + DRAFT_PART_NODES - 1) / DRAFT_PART_NODES)
static_assert(sizeof(struct draft_request) <= DRAFT_REQUEST_BYTES, "a request is two cache lines");
static_assert(sizeof(struct draft_part) == DRAFT_PART_BYTES, "a part is two cache lines");
static_assert(
	DRAFT_REPLY_SLOTS >= LIMIT_BATCH / DRAFT_PART_NODES + LIMIT_RUNNING + DRAFT_FORESEEN_SLOTS,
	"the ring holds the drafts of a full batch, and what was foreseen");
static_assert((int)DRAFT_FORESEEN_SLOTS >= (int)LIMIT_RUNNING, "a foresight of every session");

/* Which experts one verified token went to, in some of the layers with experts. All layers of a
 * token take several entries, in order. */
enum { DRAFT_ROUTING_ITEMS = 108 };
struct draft_routing {
	uint64_t session; /* uid */
	int32_t token, before; /* token, and the token before it (-1: none) */
	uint32_t page, position;
	uint16_t first; /* the first of these layers, counted among the layers with experts */
	uint16_t n_layers; /* layers in this entry */
	uint16_t n_moe; /* layers with experts in the model */
	uint16_t n_used; /* experts per token and layer */
	uint8_t pad[8];
	/* [n_layers][1 + n_used]: the layer's number, then its experts by descending weight */
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

/* The payload of region "supports" consists of words, each a struct draft_choice. The supports of a
 * draft are the number of choices of each node (in `token`), then the choices themselves. Behind
 * them are the words of needs, uint64_t: those of a draft follow one another. */
enum { SUPPORTS_WORDS = LIMIT_BATCH * (LIMIT_DRAFT_SUPPORT + 1), NEEDS_WORDS = 1 << 18 };
#define SUPPORTS_BYTES \
	(SUPPORTS_WORDS * sizeof(struct draft_choice) + NEEDS_WORDS * sizeof(uint64_t))

struct draft_supports {
	struct draft_choice *words; /* [SUPPORTS_WORDS]; NULL: there is no region */
	uint64_t *needs; /* [NEEDS_WORDS] likewise */
	/* the writer's: where the next draft's supports, and needs, begin */
	uint32_t next, next_needs;
};
/* The region's parts, from its payload of SUPPORTS_BYTES. */
struct draft_supports draft_supports_of(void *payload);

/* Makes room for `nodes` nodes; the memory is kept. 0 or -ENOMEM. */
int draft_room(struct draft_reply *reply, uint32_t nodes);
/* The same, with room for the supports of `nodes` nodes. */
int draft_room_supports(struct draft_reply *reply, uint32_t nodes);
/* Room for the needs of its n nodes, in sets of n_words. -ENOMEM, or -E2BIG: more than a draft may
 * send. */
int draft_room_needs(struct draft_reply *reply, uint32_t n_words);
void draft_reply_exit(struct draft_reply *reply);
/* Makes it no draft and no foresight; the memory stays. */
void draft_reply_clear(struct draft_reply *reply);

/* Removes all nodes i with kept[i] == 0. kept: [n], 0 or 1; the parents of kept nodes must be kept.
 * For replies without supports. What they need is not kept. */
void draft_keep(struct draft_reply *reply, const uint16_t *kept);

/* The main path: from each token to its first child. path: the indices of its nodes; returns its
 * length. */
uint32_t draft_path(const struct draft_reply *reply, int16_t path[LIMIT_DRAFT_DEPTH]);

/* Drafter: sends all parts of a reply; false, and nothing is sent, when the ring has no room for
 * all. quietly: without ringing the bell. */
bool draft_send(struct ring *replies, struct draft_supports *supports,
	const struct draft_reply *reply, bool quietly);

/* Verifier: adds the next part of a reply. part: a copy that nobody else can write to. 1: the reply
 * is complete. 0: more parts follow. -EPROTO: the part does not belong here or is larger than the
 * room; the reply is reset. Checks the counts of supports, but not their content. */
int draft_take(struct draft_reply *reply, uint32_t *n_taken, const struct draft_part *part,
	const struct draft_supports *supports);
