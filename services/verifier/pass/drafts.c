#include "services/verifier/pass/drafts.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/spec/session.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

/* A drafter that dies rings no bell: the wait looks this often whether it lives. */
#define WAIT_SLICE_NS 2000000u
/* After a round timed out, and nothing came later either, this many waiting times pass before the next try. */
#define RETRY_WAITS 20u

int drafts_init(struct drafts *drafts, void *payload, size_t bytes, uint64_t generation,
	uint32_t n_vocab, uint64_t wait_ns, uint64_t spin_ns, struct error *err)
{
	memset(drafts, 0, sizeof(*drafts));
	int rc = draft_attach(&drafts->rings, payload, bytes, err);
	if (rc != 0)
		return rc;
	drafts->sequence = generation;
	drafts->answered = drafts->asked = drafts->sequence;
	drafts->n_vocab = n_vocab;
	drafts->wait_ns = wait_ns;
	drafts->spin_ns = spin_ns;
	doorbell_take_over(&drafts->rings.replies.shared->bell);
	for (uint32_t i = 0; i < DRAFT_RING_SLOTS && ring_peek(&drafts->rings.replies) != NULL; i++)
		ring_release(&drafts->rings.replies);
	return 0;
}

void drafts_tune(struct drafts *drafts, uint64_t wait_ns, uint64_t spin_ns)
{
	drafts->wait_ns = wait_ns;
	drafts->spin_ns = spin_ns;
}

void drafts_peer_joined(struct drafts *drafts, uint64_t generation)
{
	atomic_store_explicit(&drafts->peer, generation, memory_order_relaxed);
}

void drafts_peer_left(struct drafts *drafts)
{
	atomic_store_explicit(&drafts->peer, 0, memory_order_relaxed);
	/* The engine may be asleep waiting for a reply that will not come. */
	doorbell_ring(&drafts->rings.replies.shared->bell);
}

/* Nothing is decided from it here, so what cannot be is only left out. */
static void take_foresight(struct drafts_session *s, const struct draft_reply *shared)
{
	struct drafts_foresight *f = &s->foresight;
	struct draft_reply copy;

	memcpy(&copy, shared, offsetof(struct draft_reply, q));
	f->foreseen = 0;
	if (copy.foreseen == 0 || copy.foreseen > LIMIT_DRAFT || copy.n > copy.foreseen ||
		copy.right > copy.n || copy.method >= DRAFT_METHODS)
		return;
	for (uint32_t i = 0; i < copy.n; i++)
		if (!(copy.confidence[i] >= 0 && copy.confidence[i] <= 1))
			return;
	*f = (struct drafts_foresight){.uid = copy.session,
		.foreseen = copy.foreseen,
		.drafted = copy.n,
		.right = copy.right,
		.method = copy.method};
	memcpy(f->confidence, copy.confidence, copy.n * sizeof(copy.confidence[0]));
}

bool drafts_foresight(
	struct drafts *drafts, uint32_t page, uint64_t uid, struct drafts_foresight *out)
{
	struct drafts_foresight *f = &drafts->sessions[page].foresight;

	if (f->foreseen == 0 || f->uid != uid)
		return false;
	*out = *f;
	f->foreseen = 0;
	return true;
}

/* Copies first and checks the copy: the other side could change the slot meanwhile. */
static void take(struct drafts *drafts, const struct draft_reply *shared)
{
	uint32_t page = ((const volatile struct draft_reply *)shared)->page;
	uint64_t sequence = ((const volatile struct draft_reply *)shared)->sequence;
	struct error err;

	if (page >= LIMIT_SESSIONS)
		return;
	if (((const volatile struct draft_reply *)shared)->foreseen != 0) {
		take_foresight(&drafts->sessions[page], shared);
		return;
	}
	if (sequence > drafts->answered && sequence <= drafts->asked)
		drafts->answered = sequence;
	struct drafts_session *s = &drafts->sessions[page];
	if (s->round != drafts->round || s->sequence != sequence || s->arrived)
		return;
	memcpy(&s->reply, shared, offsetof(struct draft_reply, q));
	if (s->reply.support != 0)
		memcpy(s->reply.q, shared->q, sizeof(s->reply.q));
	if (s->reply.session != s->uid || s->reply.sequence != sequence)
		return;
	s->arrived = true;
	drafts->n_waiting--;
	if (accept_check_draft(&s->reply, drafts->n_vocab, s->k, &err) != 0) {
		drafts->refused++;
		log_limited(LOG_LEVEL_NOTICE, "session %llu: a draft was refused: %s",
			(unsigned long long)s->uid, err.text);
		s->reply.n = 0;
	}
}

static void drain(struct drafts *drafts)
{
	const struct draft_reply *reply;

	/* Bounded: a ring that a broken peer keeps filling must not hold the engine here. */
	for (uint32_t i = 0; i < DRAFT_RING_SLOTS; i++) {
		reply = ring_peek(&drafts->rings.replies);
		if (reply == NULL)
			break;
		take(drafts, reply);
		ring_release(&drafts->rings.replies);
	}
}

/* Whoever has overwritten the counters: both rings begin again, and what was owed will not be answered. */
static void mend(struct drafts *drafts)
{
	bool replies = ring_mend_consumer(&drafts->rings.replies);

	ring_mend_producer(&drafts->rings.routings);
	if (!ring_mend_producer(&drafts->rings.requests) && !replies)
		return;
	drafts->answered = drafts->asked;
	log_limited(LOG_LEVEL_NOTICE, "the draft rings were corrupt; they begin again");
}

bool drafts_begin(struct drafts *drafts, uint64_t now_ns)
{
	uint64_t peer = atomic_load_explicit(&drafts->peer, memory_order_relaxed);

	drain(drafts);
	drafts->round++;
	drafts->n_waiting = 0;
	if (peer != drafts->peer_seen) {
		/* What its predecessor owed will not be answered. */
		drafts->peer_seen = peer;
		drafts->answered = drafts->asked;
		drafts->retry_ns = 0;
	}
	if (peer == 0)
		return false;
	mend(drafts);
	return drafts->answered == drafts->asked || now_ns >= drafts->retry_ns;
}

void drafts_ask(struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens, uint32_t k,
	bool last)
{
	struct drafts_session *s = &drafts->sessions[page];
	struct draft_request *request = ring_reserve(&drafts->rings.requests);

	if (request == NULL)
		return; /* a full ring belongs to a drafter that has stopped reading */
	*request = (struct draft_request){
		.session = uid,
		.sequence = ++drafts->sequence,
		.page = page,
		.n_tokens = n_tokens,
		.k = k,
		.last = last,
		.iteration = drafts->iteration,
	};
	ring_publish(&drafts->rings.requests);
	drafts->asked = drafts->sequence;
	s->uid = uid;
	s->sequence = drafts->sequence;
	s->round = drafts->round;
	s->k = k;
	s->arrived = false;
	drafts->n_waiting++;
}

void drafts_follow(
	struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens, bool foresight)
{
	struct draft_request *request;

	if (atomic_load_explicit(&drafts->peer, memory_order_relaxed) == 0)
		return;
	request = ring_reserve(&drafts->rings.requests);
	if (request == NULL)
		return;
	*request = (struct draft_request){.session = uid,
		.sequence = ++drafts->sequence,
		.page = page,
		.n_tokens = n_tokens,
		.last = 1,
		.iteration = drafts->iteration,
		.foresight = foresight};
	ring_publish(&drafts->rings.requests);
}

void drafts_wait(struct drafts *drafts)
{
	struct doorbell *bell = &drafts->rings.replies.shared->bell;
	uint64_t end_ns = clock_ns() + drafts->wait_ns;
	uint32_t seen = doorbell_read(bell);

	for (;;) {
		drain(drafts);
		if (drafts->n_waiting == 0)
			return;
		if (atomic_load_explicit(&drafts->peer, memory_order_relaxed) != drafts->peer_seen)
			return;
		uint64_t now_ns = clock_ns();
		if (now_ns >= end_ns) {
			drafts->retry_ns = now_ns + RETRY_WAITS * drafts->wait_ns;
			log_debug("no draft for %u sessions within draft_wait", drafts->n_waiting);
			return;
		}
		uint64_t left_ns = end_ns - now_ns;
		seen = doorbell_wait(bell, seen, drafts->spin_ns,
			left_ns < WAIT_SLICE_NS ? left_ns : WAIT_SLICE_NS);
	}
}

const struct draft_reply *drafts_reply(const struct drafts *drafts, uint32_t page)
{
	const struct drafts_session *s = &drafts->sessions[page];

	return s->round == drafts->round && s->arrived ? &s->reply : NULL;
}
