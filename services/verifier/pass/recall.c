#include "services/verifier/pass/recall.h"

#include "services/verifier/pass/engine.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"
#include "shared/model/kv/kv_content.h"
#include "shared/model/kv/kv_prefix.h"

#include <string.h>

#define PATIENCE_NS 2000000000u /* a disk that brings nothing for so long is not waited for */

/* The id on disk of the page that ends with token n; 0: there is none. */
static uint64_t id_before(struct engine *engine, const struct engine_session *s, uint32_t n)
{
	uint64_t domain = s->page->request.prefix_domain, id = 0;

	for (uint32_t at = 0; at < n; at += KV_PAGE_CELLS) {
		id = prefix_disk_find(engine->disk.disk, id, domain, s->page->tokens + at);
		if (id == 0)
			break;
	}
	return id;
}

/* Asks for the next pages, as many as there are buffers for. */
static void ask(struct engine *engine, struct engine_session *s)
{
	struct recall *r = &s->recall;
	uint64_t domain = s->page->request.prefix_domain;

	while (r->more && r->n < RECALL_AHEAD) {
		uint32_t at = r->from + r->n * KV_PAGE_CELLS;
		uint64_t id = 0;

		if (at + KV_PAGE_CELLS <= session_prefix_tokens(s))
			id = prefix_disk_find(
				engine->disk.disk, r->last, domain, s->page->tokens + at);
		r->more = id != 0;
		if (id == 0)
			break;
		struct prefix_buffer *buffer = prefix_disk_read(engine->disk.disk, id);
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
	r->before = r->last = id_before(engine, s, s->seq.n);
	r->more = s->seq.n == 0 || r->last != 0;
	ask(engine, s);
	r->on = r->n > 0 || r->more;
	if (!r->on)
		return;
	s->sched.paused = true;
	engine->order_stale = true;
}

void recall_end(struct engine *engine, struct engine_session *s)
{
	struct recall *r = &s->recall;

	for (uint32_t i = 0; i < r->n; i++)
		prefix_disk_give(engine->disk.disk, &r->buffer[i]);
	memset(r, 0, sizeof(*r));
}

/* The session starts, with what it has got. */
static void finish(struct engine *engine, struct engine_session *s)
{
	recall_end(engine, s);
	s->recall.asked = true;
	s->sched.paused = false;
	engine->order_stale = true;
}

/* Whether the file holds what the index said: these tokens, behind that page. */
static bool is_right(const struct engine_session *s, const struct prefix_header *header)
{
	return header->before == s->recall.before &&
	       header->domain == s->page->request.prefix_domain &&
	       memcmp(header->tokens, s->page->tokens + s->recall.from, sizeof(header->tokens)) ==
		       0;
}

/* Makes the content of the oldest buffer the session's next page, unless memory has that by now.
 * False: it cannot go on. */
static bool append(struct engine *engine, struct engine_session *s)
{
	struct recall *r = &s->recall;
	struct kv *kv = &engine->kv;
	uint64_t domain = s->page->request.prefix_domain;
	const struct prefix_header *header;
	uint32_t tip;

	(void)prefix_disk_arrived(r->buffer[0], &header);
	if (s->seq.owner == 0 &&
		kv_seq_init(&s->seq, s->uid, (uint32_t)engine->o.config->context) != 0)
		return false;
	s->waits = true;
	if (kv_prefix_find(kv, &s->seq, domain, s->page->tokens, r->from + KV_PAGE_CELLS, &tip) >
		r->from)
		return kv_prefix_share(kv, &s->seq, tip) && s->seq.n > r->from;
	if (s->seq.n != r->from || !is_right(s, header) ||
		kv_content_append(
			kv, &s->seq, header->order, prefix_buffer_content(r->buffer[0])) != 0)
		return false;
	kv_prefix_enter(kv, &s->seq, domain, s->page->tokens);
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
	if (!goes_on || (r->n == 0 && !r->more))
		finish(engine, s);
}

void recall_step(struct engine *engine, uint64_t now_ns)
{
	for (uint32_t i = 0; engine->disk.disk != NULL && i < engine->n_live; i++) {
		struct engine_session *s = engine_live(engine, i);

		if (s->recall.on)
			step(engine, s, now_ns);
	}
}
