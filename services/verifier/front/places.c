/* Which sessions have places, and which make room for others: sessions whose clients wait come
 * before sessions whose clients are gone or take nothing. */
#include "services/verifier/front/front.h"

/* Others come before a client that has taken nothing for this long. */
#define ASIDE_NS 1000000000u

static bool is_aside(const struct front_session *fs, uint64_t now_ns)
{
	return !fs->attached || (fs->blocked_ns != 0 && now_ns - fs->blocked_ns >= ASIDE_NS);
}

void places_look(struct front *front, uint32_t index, uint64_t now_ns)
{
	atomic_store_explicit(&front->slots[index].aside, is_aside(&front->sessions[index], now_ns),
		memory_order_relaxed);
	sleep_look(front, index, now_ns);
}

void places_number(struct front *front, uint32_t index)
{
	const struct bus_address *client = &front->sessions[index].client;
	uint64_t number = 0;

	for (uint32_t i = 0; i < LIMIT_SESSIONS && number == 0; i++)
		if (i != index && front->sessions[i].used && front->sessions[i].attached &&
			inbox_same_client(&front->sessions[i].client, client))
			number =
				atomic_load_explicit(&front->slots[i].client, memory_order_relaxed);
	atomic_store_explicit(&front->slots[index].client, number != 0 ? number : ++front->clients,
		memory_order_relaxed);
}

static bool stands_aside(const struct front *front, uint32_t i)
{
	return atomic_load_explicit(&front->slots[i].aside, memory_order_relaxed);
}

static bool is_done(const struct front *front, uint32_t i)
{
	return journal_state(front->slots[i].page) == SESSION_DONE;
}

/* Counts the sessions that want a place in the batch: not finished, and their clients take tokens.
 */
int64_t places_waiting(struct front *front, uint32_t more)
{
	int64_t n = more;

	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		const struct slot *slot = &front->slots[i];

		if (!front->sessions[i].used || is_done(front, i) || stands_aside(front, i) ||
			atomic_load_explicit(&slot->asleep, memory_order_relaxed) != SLEEP_NOT)
			continue;
		uint64_t credit = atomic_load_explicit(&slot->credit, memory_order_relaxed);
		if (front_outputs(slot) < credit + (uint64_t)front->config->ahead_max)
			n++;
	}
	return n - front->config->sessions_max;
}

/* An index that is free, or can be freed at once; -1: there is none. */
static int take_now(struct front *front)
{
	int told = -1, untold = -1;

	if (front->n_used < verifier_config_places(front->config))
		return (int)bits_next(front->free, LIMIT_SESSIONS, 0);
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		const struct front_session *fs = &front->sessions[i];

		if (!fs->used || !is_done(front, i))
			continue;
		int *oldest = fs->done_sent ? &told : &untold;
		if (!fs->done_sent && !stands_aside(front, i))
			continue;
		if (*oldest < 0 || fs->heard_ns < front->sessions[*oldest].heard_ns)
			*oldest = (int)i;
	}
	if (told >= 0) {
		front_release(front, (uint32_t)told);
		return told;
	}
	if (untold >= 0)
		front_shelve(front, (uint32_t)untold);
	return untold;
}

/* Whether the engine may be asked to let go of a session. A finished one is with the engine for its
 * records, and will be done soon. */
static bool may_yield(const struct front *front, uint32_t i)
{
	const struct front_session *fs = &front->sessions[i];

	return fs->used && !fs->yielding && stands_aside(front, i) && !is_done(front, i) &&
	       atomic_load_explicit(&front->slots[i].page->end, memory_order_relaxed) ==
		       SESSION_END_NONE;
}

/* Whether to let go of a rather than of b: its client is gone, or fewer of its tokens have to be
 * computed again. */
static bool is_better(const struct front *front, uint32_t a, uint32_t b)
{
	if (front->sessions[a].attached != front->sessions[b].attached)
		return !front->sessions[a].attached;
	return journal_n_tokens(front->slots[a].page) < journal_n_tokens(front->slots[b].page);
}

static int choose_victim(const struct front *front)
{
	int victim = -1;

	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		if (may_yield(front, i) && (victim < 0 || is_better(front, i, (uint32_t)victim)))
			victim = (int)i;
	return victim;
}

int places_take(struct front *front, uint32_t before, struct places_round *round, struct error *err)
{
	int index = round->full ? -1 : take_now(front);

	if (index >= 0)
		return index;
	round->full = true;
	if (front->n_yielding > before)
		return -EINPROGRESS;
	index = round->no_victim ? -1 : choose_victim(front);
	round->no_victim = index < 0;
	if (index < 0)
		return error_set(err, EAGAIN,
			"all %u sessions are taken by clients that have not read their answers",
			front->n_used);
	front->sessions[index].yielding = true;
	front->n_yielding++;
	atomic_store_explicit(&front->slots[index].yield, true, memory_order_relaxed);
	engine_changed(front->engine, (uint32_t)index);
	return -EINPROGRESS;
}

/* A session that the engine has let go of goes back to it if the client came back in the meantime,
 * or wants its end. */
void places_settle(struct front *front, uint32_t index)
{
	struct front_session *fs = &front->sessions[index];
	struct slot *slot = &front->slots[index];
	bool yielded = atomic_load_explicit(&slot->yielded, memory_order_acquire);

	if (!yielded && !is_done(front, index))
		return;
	fs->yielding = false;
	front->n_yielding--;
	atomic_store_explicit(&slot->yield, false, memory_order_relaxed);
	if (is_done(front, index))
		return;
	if (stands_aside(front, index) &&
		!atomic_load_explicit(&slot->cancel, memory_order_relaxed)) {
		front_shelve(front, index);
		return;
	}
	atomic_store_explicit(&slot->yielded, false, memory_order_relaxed);
	engine_submit(front->engine, index);
}
