#include "services/verifier/pass/recall.h"

#include "services/verifier/pass/engine.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"
#include "shared/model/kv/kv_content.h"
#include "shared/model/kv/kv_prefix.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define PATIENCE_NS 2000000000u /* a disk that brings nothing for so long is not waited for */

/* The id on disk of the page that ends with token n; 0: there is none. */
static uint64_t id_before(struct engine *engine, const struct engine_session *s, uint32_t n)
{
	uint64_t id = 0;

	for (uint32_t at = 0; at < n; at += KV_PAGE_CELLS) {
		id = prefix_disk_find(
			engine->disk.disk, id, kv_domain_at(&s->domains, at), s->page->tokens + at);
		if (id == 0)
			break;
	}
	return id;
}

static bool has_states(const struct engine *engine)
{
	return engine->kv.snapshots.n > 0;
}

/* With snapshots: finds the last one on disk within the first n tokens. False: there is
 * none behind those that the session has. */
static bool find_state(struct engine *engine, struct engine_session *s, uint32_t n)
{
	struct recall *r = &s->recall;
	struct prefix_disk *disk = engine->disk.disk;
	uint32_t most = recall_states_of(&engine->kv.layout), states = 0;
	uint64_t id = 0;

	r->until = 0;
	for (uint32_t at = 0; at + KV_PAGE_CELLS <= n; at += KV_PAGE_CELLS) {
		uint64_t domain = kv_domain_at(&s->domains, at);
		uint32_t end = at + KV_PAGE_CELLS, pages = end / KV_PAGE_CELLS;

		id = prefix_disk_find(disk, id, domain, s->page->tokens + at);
		if (id == 0)
			break;
		states = prefix_disk_find(disk, id, domain, prefix_state_tokens) != 0 ? states + 1
										      : 0;
		if (states < (pages < most ? pages : most) || session_goes_on(s, end) != end)
			continue;
		r->until = end;
		r->state_end = end - ((pages < most ? pages : most) - 1) * KV_PAGE_CELLS;
	}
	if (r->until <= s->seq.n)
		return false;
	r->snapshot = snapshots_reserve(&engine->kv);
	return r->snapshot != SNAPSHOT_NONE;
}

/* Asks for the next state. False: it is not on disk any more. */
static bool ask_state(struct engine *engine, struct engine_session *s)
{
	struct recall *r = &s->recall;

	if (r->until == 0 || r->state != NULL)
		return true;
	r->state_id = prefix_disk_find(engine->disk.disk, id_before(engine, s, r->state_end),
		kv_domain_at(&s->domains, r->state_end - KV_PAGE_CELLS), prefix_state_tokens);
	if (r->state_id == 0)
		return false;
	unsigned char *place = recall_state_to_read(engine, r->snapshot);
	if (place == NULL)
		return true;
	r->state = prefix_disk_read(engine->disk.disk, r->state_id, place);
	if (r->state == NULL)
		recall_state_dropped(engine);
	return true;
}

/* Asks for the next pages, as many as there are buffers for. */
static void ask(struct engine *engine, struct engine_session *s)
{
	struct recall *r = &s->recall;
	uint32_t end = has_states(engine) ? r->until : session_prefix_tokens(s);

	while (r->more && r->n < RECALL_AHEAD) {
		uint32_t at = r->from + r->n * KV_PAGE_CELLS;
		uint64_t id = 0;

		if (at + KV_PAGE_CELLS <= end)
			id = prefix_disk_find(engine->disk.disk, r->last,
				kv_domain_at(&s->domains, at), s->page->tokens + at);
		r->more = id != 0;
		if (id == 0)
			break;
		struct prefix_buffer *buffer = prefix_disk_read(engine->disk.disk, id, NULL);
		if (buffer == NULL)
			break;
		r->buffer[r->n] = buffer;
		r->id[r->n++] = r->last = id;
	}
}

void recall_begin(struct engine *engine, struct engine_session *s, uint32_t n)
{
	struct recall *r = &s->recall;

	if (engine->disk.disk == NULL || r->asked || s->seq.n + KV_PAGE_CELLS > n ||
		(s->seq.owner != 0 && s->seq.own != KV_NONE))
		return;
	*r = (struct recall){.asked = true, .from = s->seq.n, .heard_ns = clock_ns()};
	if (has_states(engine) && !find_state(engine, s, n)) {
		r->until = 0;
		return;
	}
	r->before = r->last = id_before(engine, s, s->seq.n);
	r->more = s->seq.n == 0 || r->last != 0;
	ask(engine, s);
	(void)ask_state(engine, s);
	r->on = r->n > 0 || r->more;
	if (!r->on) {
		recall_end(engine, s);
		r->asked = true;
		return;
	}
	s->sched.paused = true;
	engine->order_stale = true;
}

void recall_end(struct engine *engine, struct engine_session *s)
{
	struct recall *r = &s->recall;

	for (uint32_t i = 0; i < r->n; i++)
		prefix_disk_give(engine->disk.disk, &r->buffer[i]);
	/* The thread may still write to the snapshot. */
	if (r->until != 0 && r->state != NULL)
		recall_add_loose(
			engine, &(struct recall_loose){.snapshot = r->snapshot, .read = r->state});
	else if (r->until != 0)
		snapshots_give(&engine->kv, r->snapshot);
	memset(r, 0, sizeof(*r));
}

void recall_add_loose(struct engine *engine, const struct recall_loose *loose)
{
	struct engine_disk *disk = &engine->disk;

	/* Each has a buffer of the disk's. */
	assert(disk->n_loose < PREFIX_BUFFERS);
	disk->loose[disk->n_loose++] = *loose;
}

void recall_settle(struct engine *engine)
{
	struct engine_disk *disk = &engine->disk;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < disk->n_loose; i++) {
		struct recall_loose *loose = &disk->loose[i];
		const struct prefix_header *header;
		bool goes_on = loose->read != NULL
				       ? prefix_disk_arrived(loose->read, &header) == -EINPROGRESS
				       : prefix_disk_pending(disk->disk, loose->id);

		if (goes_on) {
			disk->loose[kept++] = *loose;
			continue;
		}
		if (loose->read != NULL) {
			prefix_disk_give(disk->disk, &loose->read);
			recall_state_dropped(engine);
		} else {
			recall_state_written(engine);
		}
		if (loose->snapshot != SNAPSHOT_NONE)
			snapshots_give(&engine->kv, loose->snapshot);
	}
	disk->n_loose = kept;
}

/* The session starts, with what it has got. */
static void finish(struct engine *engine, struct engine_session *s)
{
	recall_end(engine, s);
	/* Without a state or a window its pages are of no use to it; it may find others in memory. */
	if (has_states(engine) && s->seq.owner != 0 && !snapshots_ready(&engine->kv, &s->seq)) {
		kv_seq_exit(&engine->kv, &s->seq);
		s->waits = false;
		s->sched.n_kv = s->sched.n_pages = 0;
	}
	s->recall.asked = true;
	s->sched.paused = false;
	engine->order_stale = true;
}

/* Whether the file holds what the index said: these tokens, behind that page. */
static bool is_right(const struct engine_session *s, const struct prefix_header *header)
{
	return header->before == s->recall.before &&
	       header->domain == kv_domain_at(&s->domains, s->recall.from) &&
	       memcmp(header->tokens, s->page->tokens + s->recall.from, sizeof(header->tokens)) ==
		       0;
}

/* Makes the content of the oldest buffer the session's next page, unless memory has that by now.
 * False: it cannot go on. */
static bool append(struct engine *engine, struct engine_session *s)
{
	struct recall *r = &s->recall;
	struct kv *kv = &engine->kv;
	const struct prefix_header *header;
	uint32_t tip;

	(void)prefix_disk_arrived(r->buffer[0], &header);
	if (s->seq.owner == 0 &&
		kv_seq_init(&s->seq, s->uid, (uint32_t)engine->o.config->context) != 0)
		return false;
	s->waits = true;
	/* It gets another one when its pages are there, or loses them. */
	snapshots_unpin(kv, &s->seq);
	if (kv_prefix_pages(kv, &s->seq, &s->domains, s->page->tokens, r->from + KV_PAGE_CELLS,
		    &tip) > r->from)
		return kv_prefix_share(kv, &s->seq, tip) && s->seq.n > r->from;
	if (s->seq.n != r->from || !is_right(s, header) ||
		kv_content_append(
			kv, &s->seq, header->order, prefix_buffer_content(r->buffer[0])) != 0)
		return false;
	kv_prefix_enter(kv, &s->seq, &s->domains, s->page->tokens);
	kv->pages[s->seq.cell[r->from] / KV_PAGE_CELLS].tag = r->id[0];
	counter_add(&engine->disk.recalled_tokens, KV_PAGE_CELLS);
	return s->seq.own == KV_NONE;
}

static void next_buffer(struct engine *engine, struct recall *r)
{
	prefix_disk_give(engine->disk.disk, &r->buffer[0]);
	r->before = r->id[0];
	r->n--;
	memmove(r->buffer, r->buffer + 1, r->n * sizeof(*r->buffer));
	memmove(r->id, r->id + 1, r->n * sizeof(*r->id));
	r->from += KV_PAGE_CELLS;
}

/* The last page of the session's first n tokens, all of which lie in shared pages. */
static uint32_t page_before(const struct engine_session *s, uint32_t n)
{
	return s->seq.cell[n - 1] / KV_PAGE_CELLS;
}

/* Takes the states that have arrived, of all pages that need some. False: it cannot go on; *waits: not
 * yet. */
static bool take_states(struct engine *engine, struct engine_session *s, bool *waits)
{
	struct recall *r = &s->recall;

	for (; r->state_end <= r->until; r->state_end += KV_PAGE_CELLS) {
		const struct prefix_header *header;

		if (!ask_state(engine, s))
			return false;
		int rc = r->state != NULL ? prefix_disk_arrived(r->state, &header) : -EINPROGRESS;
		*waits = rc == -EINPROGRESS;
		if (*waits)
			return true;
		r->heard_ns = clock_ns();
		bool right =
			rc == 0 && header->before == id_before(engine, s, r->state_end) &&
			header->domain == kv_domain_at(&s->domains, r->state_end - KV_PAGE_CELLS);
		if (right)
			right = recall_state_arrived(
				engine, r->snapshot, page_before(s, r->state_end));
		else
			recall_state_dropped(engine);
		prefix_disk_give(engine->disk.disk, &r->state);
		r->state = NULL;
		if (!right)
			return false;
	}
	return true;
}

/* Once the pages are there: makes what has arrived the snapshot of the last one. False: it cannot go
 * on; *waits: not yet. */
static bool take_snapshot(struct engine *engine, struct engine_session *s, bool *waits)
{
	struct recall *r = &s->recall;
	struct kv *kv = &engine->kv;

	*waits = false;
	if (s->seq.n != r->until || s->seq.tip == KV_NONE)
		return false;
	if (!snapshots_has(kv, s->seq.tip)) {
		kv_windows_expect(kv, &s->seq);
		if (!take_states(engine, s, waits))
			return false;
		if (*waits)
			return true;
		r->until = 0;
		if (!snapshots_put(kv, r->snapshot, s->seq.tip, r->state_id))
			return false;
	} else {
		kv_windows_regain(kv, &s->seq);
	}
	snapshots_pin(kv, &s->seq);
	return snapshots_ready(kv, &s->seq);
}

static void step(struct engine *engine, struct engine_session *s, uint64_t now_ns)
{
	struct recall *r = &s->recall;
	const struct prefix_header *header;
	bool goes_on = true;
	int rc;

	while (goes_on && r->n > 0 &&
		(rc = prefix_disk_arrived(r->buffer[0], &header)) != -EINPROGRESS) {
		goes_on = rc == 0 && append(engine, s);
		next_buffer(engine, r);
		r->heard_ns = now_ns;
	}
	if (goes_on)
		ask(engine, s);
	bool waits = false;
	if (goes_on && has_states(engine) && r->n == 0 && !r->more)
		goes_on = take_snapshot(engine, s, &waits);
	if (goes_on && now_ns - r->heard_ns > PATIENCE_NS) {
		log_session(LOG_LEVEL_NOTICE, s->uid, engine->iteration,
			"the disk brings nothing: the rest of its tokens is computed");
		goes_on = false;
	}
	/* A sequence without tokens holds nothing that it could begin with. */
	if (s->seq.owner != 0 && s->seq.n == 0) {
		kv_seq_exit(&engine->kv, &s->seq);
		s->waits = false;
	}
	s->sched.n_kv = s->seq.n;
	s->sched.n_pages = s->seq.n_pages;
	if (!goes_on || (r->n == 0 && !r->more && !waits))
		finish(engine, s);
}

void recall_step(struct engine *engine, uint64_t now_ns)
{
	recall_settle(engine);
	for (uint32_t i = 0; engine->disk.disk != NULL && i < engine->n_live; i++) {
		struct engine_session *s = engine_live(engine, i);

		if (s->recall.on)
			step(engine, s, now_ns);
	}
}
