#include "services/verifier/pass/drafts.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/spec/session.h"

#include <stdatomic.h>
#include <string.h>

/* A drafter that dies rings no bell, so the wait checks this often whether it lives. */
#define WAIT_SLICE_NS 2000000u
/* When nothing comes, the next try is made after this many times draft_wait. A request of that age
 * is not answered any more. */
#define RETRY_WAITS 20u

int drafts_init(struct drafts *drafts, void *payload, size_t bytes, void *supports,
	uint64_t generation, uint32_t n_vocab, const struct tuning *tuning, struct error *err)
{
	memset(drafts, 0, sizeof(*drafts));
	int rc = draft_attach(&drafts->rings, payload, bytes, err);
	if (rc != 0)
		return rc;
	drafts->supports = draft_supports_of(supports);
	drafts->sequence = generation;
	drafts->n_vocab = n_vocab;
	drafts->tuning = tuning;
	doorbell_take_over(&drafts->rings.replies.shared->bell);
	for (uint32_t i = 0; i < DRAFT_REPLY_SLOTS && ring_peek(&drafts->rings.replies) != NULL;
		i++)
		ring_release(&drafts->rings.replies);
	return 0;
}

void drafts_exit(struct drafts *drafts)
{
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		draft_reply_exit(&drafts->sessions[i].reply);
}

void drafts_peer_joined(struct drafts *drafts, uint64_t generation)
{
	atomic_store_explicit(&drafts->peer, generation, memory_order_relaxed);
}

void drafts_peer_left(struct drafts *drafts)
{
	atomic_store_explicit(&drafts->peer, 0, memory_order_relaxed);
	/* The engine may sleep in wait for a reply that will not come. */
	doorbell_ring(&drafts->rings.replies.shared->bell);
}

void drafts_wake(struct drafts *drafts)
{
	doorbell_ring(&drafts->rings.requests.shared->bell);
}

/* Nothing here depends on it, so an impossible part is only left out. */
static void take_foresight(struct drafts_session *s, const struct draft_part *part)
{
	struct drafts_foresight *f = &s->foresight;

	f->foreseen = 0;
	if (part->foreseen > LIMIT_DRAFT_DEPTH || part->n > part->foreseen ||
		part->n > DRAFT_PART_NODES || part->right > part->n ||
		part->method >= DRAFT_METHODS)
		return;
	*f = (struct drafts_foresight){.uid = part->session,
		.foreseen = part->foreseen,
		.drafted = part->n,
		.right = part->right,
		.method = part->method};
	for (uint32_t i = 0; i < part->n; i++)
		f->confidence[i] = draft_confidence_of(&part->node[i]);
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

/* How long the reply that is seen now took. One that came while nobody looked cannot have come
 * before its drafting time had passed. */
static uint64_t took_ns(
	const struct drafts *drafts, const struct drafts_session *s, bool watching, uint64_t now_ns)
{
	uint64_t least_ns = drafts->looked_ns > s->asked_ns ? drafts->looked_ns - s->asked_ns : 0;

	if (watching)
		return now_ns - s->asked_ns;
	if (s->reply.draft_ns > least_ns)
		least_ns = s->reply.draft_ns;
	return least_ns < now_ns - s->asked_ns ? least_ns : now_ns - s->asked_ns;
}

static void refuse(struct drafts *drafts, struct drafts_session *s, const char *why)
{
	drafts->refused++;
	log_limited(LOG_LEVEL_NOTICE, "session %llu: a draft was refused: %s",
		(unsigned long long)s->uid, why);
	draft_reply_clear(&s->reply);
}

/* Copies first and checks the copy, because the other process could change the slot between a check
 * and a use. */
static void take(
	struct drafts *drafts, const struct draft_part *shared, bool watching, uint64_t now_ns)
{
	struct draft_part part;
	struct error err;

	memcpy(&part, shared, sizeof(part));
	if (part.page >= LIMIT_SESSIONS)
		return;
	struct drafts_session *s = &drafts->sessions[part.page];
	if (part.foreseen != 0) {
		take_foresight(s, &part);
		return;
	}
	if (!s->out || s->epoch != drafts->epoch || s->sequence != part.sequence ||
		s->uid != part.session)
		return;
	int rc = draft_take(&s->reply, &s->n_taken, &part, &drafts->supports);
	if (rc == 0)
		return;
	s->out = false;
	drafts->n_out--;
	drafts->n_awaited -= s->awaited == drafts->round;
	drafts->silent_ns = drafts->n_out > 0 ? now_ns : 0;
	uint64_t ns = took_ns(drafts, s, watching, now_ns);
	pace_took(&s->pace, ns);
	pace_took(&drafts->pace, ns);
	if (rc < 0)
		refuse(drafts, s, "its parts do not belong together, or it is too large");
	else if (accept_check_draft(&s->reply, drafts->n_vocab, s->budget, &err) != 0)
		refuse(drafts, s, err.text);
}

/* watching: the engine has done nothing else since it last looked. */
static void drain(struct drafts *drafts, bool watching, uint64_t now_ns)
{
	const struct draft_part *part;

	/* Bounded, so that a ring that a broken peer keeps filling does not hold the engine here.
	 */
	for (uint32_t i = 0; i < DRAFT_REPLY_SLOTS; i++) {
		part = ring_peek(&drafts->rings.replies);
		if (part == NULL)
			break;
		take(drafts, part, watching, now_ns);
		ring_release(&drafts->rings.replies);
	}
	drafts->looked_ns = now_ns;
}

/* Gives up the requests that are out. */
static void forget(struct drafts *drafts)
{
	drafts->epoch++;
	drafts->n_out = 0;
	drafts->silent_ns = 0;
}

/* Resets both rings if their counters were overwritten. */
static void mend(struct drafts *drafts)
{
	bool replies = ring_mend_consumer(&drafts->rings.replies);

	ring_mend_producer(&drafts->rings.routings);
	if (!ring_mend_producer(&drafts->rings.requests) && !replies)
		return;
	forget(drafts);
	log_limited(LOG_LEVEL_NOTICE, "the draft rings were corrupt; they start again empty");
}

bool drafts_begin(struct drafts *drafts, uint64_t now_ns)
{
	uint64_t peer = atomic_load_explicit(&drafts->peer, memory_order_relaxed);

	drain(drafts, false, now_ns);
	drafts->round++;
	drafts->n_awaited = 0;
	if (peer != drafts->peer_seen) {
		/* The requests to its predecessor will not be answered. */
		drafts->peer_seen = peer;
		forget(drafts);
	}
	if (peer == 0)
		return false;
	mend(drafts);
	if (drafts->silent_ns == 0 || now_ns < drafts->silent_ns + drafts->tuning->draft_wait)
		return true;
	if (now_ns < drafts->silent_ns + (1 + RETRY_WAITS) * drafts->tuning->draft_wait)
		return false;
	forget(drafts);
	return true;
}

/* Whether a request about the session is out that may still be answered. */
static bool is_out(const struct drafts *drafts, const struct drafts_session *s)
{
	return s->out && s->epoch == drafts->epoch &&
	       drafts->looked_ns < s->asked_ns + RETRY_WAITS * drafts->tuning->draft_wait;
}

enum drafts_state drafts_state(
	const struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens)
{
	const struct drafts_session *s = &drafts->sessions[page];

	if (s->uid != uid || s->sequence == 0)
		return DRAFTS_NONE;
	if (is_out(drafts, s))
		return s->n_tokens == n_tokens ? DRAFTS_OUT : DRAFTS_BEHIND;
	return !s->out && s->n_tokens == n_tokens ? DRAFTS_HERE : DRAFTS_NONE;
}

void drafts_ask(struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens,
	struct draft_budget budget, uint32_t needs_words, bool last)
{
	struct drafts_session *s = &drafts->sessions[page];
	struct draft_request *request;

	/* Without memory for its draft the session gets none. */
	if (draft_room(&s->reply, budget.nodes) != 0)
		return;
	request = ring_reserve(&drafts->rings.requests);
	if (request == NULL)
		return; /* a full ring belongs to a drafter that has stopped reading */
	*request = (struct draft_request){
		.session = uid,
		.sequence = ++drafts->sequence,
		.page = page,
		.n_tokens = n_tokens,
		.budget = budget,
		.last = last,
		.iteration = drafts->iteration,
		.needs_words = needs_words,
	};
	ring_publish(&drafts->rings.requests);
	uint64_t now_ns = clock_ns();
	drafts->n_out += !(s->out && s->epoch == drafts->epoch);
	if (drafts->silent_ns == 0)
		drafts->silent_ns = now_ns;
	if (s->uid != uid)
		s->pace = (struct pace){0};
	s->uid = uid;
	s->sequence = drafts->sequence;
	s->epoch = drafts->epoch;
	s->asked_ns = now_ns;
	s->n_tokens = n_tokens;
	s->budget = budget;
	s->reply.needs_words = needs_words;
	s->n_taken = 0;
	s->out = true;
}

static void tell_own(const struct drafts *drafts, struct draft_request *request)
{
	const struct draft_reply *draft = drafts_reply(drafts, request->page);

	if (drafts_state(drafts, request->page, request->session, request->n_tokens) !=
			DRAFTS_HERE ||
		draft->method != DRAFT_MTP_LORA)
		return;
	request->n_own = draft->n < LIMIT_MTP_DRAFT ? draft->n : LIMIT_MTP_DRAFT;
	for (uint32_t i = 0; i < request->n_own; i++)
		request->own[i] = draft->node[i].token;
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
	tell_own(drafts, request);
	ring_publish(&drafts->rings.requests);
}

const struct pace *drafts_pace(const struct drafts *drafts, uint32_t page, uint64_t uid)
{
	const struct drafts_session *s = &drafts->sessions[page];

	return s->uid == uid && s->pace.n_times > 0 ? &s->pace : &drafts->pace;
}

uint64_t drafts_elapsed_ns(const struct drafts *drafts, uint32_t page, uint64_t now_ns)
{
	uint64_t asked_ns = drafts->sessions[page].asked_ns;

	return now_ns > asked_ns ? now_ns - asked_ns : 0;
}

void drafts_yielded(struct drafts *drafts, uint32_t page, uint32_t n_accepted)
{
	pace_yielded(&drafts->sessions[page].pace, n_accepted);
	pace_yielded(&drafts->pace, n_accepted);
}

void drafts_await(struct drafts *drafts, uint32_t page)
{
	drafts->sessions[page].awaited = drafts->round;
	drafts->n_awaited++;
}

void drafts_wait(struct drafts *drafts, uint64_t limit_ns, bool ready)
{
	struct doorbell *bell = &drafts->rings.replies.shared->bell;
	uint64_t start_ns = clock_ns();
	uint32_t seen = doorbell_read(bell), n_awaited = drafts->n_awaited;

	for (uint64_t now_ns = start_ns;; now_ns = clock_ns()) {
		drain(drafts, true, now_ns);
		if (drafts->n_awaited == 0)
			return;
		if (atomic_load_explicit(&drafts->peer, memory_order_relaxed) != drafts->peer_seen)
			return;
		bool any = ready || drafts->n_awaited < n_awaited;
		uint64_t most_ns = any ? limit_ns : drafts->tuning->draft_wait;
		uint64_t passed_ns = now_ns - start_ns;
		if (passed_ns >= most_ns)
			return;
		uint64_t left_ns = most_ns - passed_ns;
		seen = doorbell_wait(bell, seen, drafts->tuning->draft_spin,
			left_ns < WAIT_SLICE_NS ? left_ns : WAIT_SLICE_NS);
	}
}

void drafts_put(struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens,
	const struct drafts_own *own)
{
	struct drafts_session *s = &drafts->sessions[page];

	if (draft_room(&s->reply, own->n) != 0)
		return;
	/* A request that is out is given up, and its reply will not be taken. */
	drafts->n_out -= s->out && s->epoch == drafts->epoch;
	if (drafts->n_out == 0)
		drafts->silent_ns = 0;
	if (s->uid != uid)
		s->pace = (struct pace){0};
	s->out = false;
	s->uid = uid;
	s->sequence = ++drafts->sequence;
	s->n_tokens = n_tokens;
	draft_reply_clear(&s->reply);
	s->reply.method = own->method;
	s->reply.n = own->n;
	for (uint32_t i = 0; i < own->n; i++)
		s->reply.node[i] = (struct draft_node){.token = own->tokens[i],
			.parent = (int16_t)((int)i - 1),
			.confidence = own->chance != NULL ? draft_confidence(own->chance[i])
							  : DRAFT_CONFIDENCE};
}

void drafts_keep(struct drafts *drafts, uint32_t page, const uint16_t *kept, uint32_t n)
{
	struct draft_reply *reply = &drafts->sessions[page].reply;

	if (reply->support != NULL)
		reply->n = n;
	else
		draft_keep(reply, kept);
}

const struct draft_reply *drafts_reply(const struct drafts *drafts, uint32_t page)
{
	return &drafts->sessions[page].reply;
}
