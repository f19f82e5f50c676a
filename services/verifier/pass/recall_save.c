/* Writes pages of the KV cache to disk: see recall.h. */
#include "services/verifier/pass/recall.h"

#include "services/verifier/pass/engine.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/model/kv/kv_content.h"
#include "shared/model/kv/kv_prefix.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Pages that are looked at in each step: while sessions run, and while none does. */
enum { LOOKS = 256, LOOKS_IDLE = 65536 };
#define ALL_NS 1000000000u

static void wake(void *arg)
{
	engine_poke(arg);
}

int recall_open(struct engine *engine, struct error *err)
{
	const struct verifier_config *config = engine->o.config;
	const struct model *model = engine->o.model;
	const struct kv_layout *layout = &engine->kv.layout;
	const struct prefix_disk_options options = {
		.dir = config->prefix_dir,
		.budget = (uint64_t)config->prefix_disk,
		.content_bytes = kv_content_bytes(&engine->kv),
		.shape = {.model = model->fingerprint,
			.stamps = gguf_stamps(model->gguf),
			.arithmetic = verifier_config_arithmetic(config),
			.kv_type = (uint32_t)layout->type,
			.n_layers = layout->n_layers,
			.n_kv_heads = layout->n_kv_heads,
			.k_dim = layout->k_dim,
			.v_dim = layout->v_dim,
			.n_states = layout->states.n_layers + layout->windows.n_layers,
			.state_bytes = recall_state_bytes(layout)},
		.wake = wake,
		.arg = engine,
		.counts = &engine->disk.counts,
	};
	struct error why;

	if (config->prefix_dir[0] == '\0')
		return 0;
	if (options.content_bytes == 0) {
		log_notice("prefix_dir: beginnings of prompts are not kept on disk with this "
			   "model: its layers keep windows of their own in a device's memory "
			   "(prefix_windows = no), or windows or recurrent states for which "
			   "prefix_states has no room");
		return 0;
	}
	engine->disk.seen_ns = calloc(layout->n_pages, sizeof(*engine->disk.seen_ns));
	if (engine->disk.seen_ns == NULL)
		return error_set(err, ENOMEM, "no memory for a list of %u pages", layout->n_pages);
	if (prefix_disk_open(&options, &engine->disk.disk, &why) != 0)
		log_error("%s: beginnings of prompts are not kept on disk", why.text);
	atomic_store_explicit(&engine->disk.there, engine->disk.disk != NULL, memory_order_relaxed);
	return 0;
}

void recall_close(struct engine *engine)
{
	prefix_disk_close(&engine->disk.disk);
	if (engine->disk.states.backend != NULL)
		engine->disk.states.backend->ops->free(&engine->disk.states);
	free(engine->disk.seen_ns);
	engine->disk.seen_ns = NULL;
	engine->disk.n_loose = engine->disk.next = 0;
	engine->disk.state_written = engine->disk.state_read = false;
}

/* Whether the page is on disk, or is being written. */
static bool is_saved(struct engine *engine, uint32_t page)
{
	uint64_t tag = engine->kv.pages[page].tag;

	return tag != 0 && prefix_disk_has(engine->disk.disk, tag);
}

/* Begins to write a page. 1: begun; 0: it is saved; -EAGAIN: not now; otherwise: it cannot be saved
 * now, or not before the one before it. */
static int save_page(struct engine *engine, uint32_t page)
{
	struct prefix_disk *disk = engine->disk.disk;
	struct kv_page *own = &engine->kv.pages[page];
	struct prefix_header header = {.before = 0};
	struct kv_content_name name;

	if (is_saved(engine, page))
		return 0;
	if (own->before != KV_NONE && !is_saved(engine, own->before))
		return -ENOENT;
	if (own->before != KV_NONE)
		header.before = engine->kv.pages[own->before].tag;
	if (!kv_content_name(&engine->kv, page, &name))
		return -ENOENT;
	own->tag = prefix_disk_find(disk, header.before, name.domain, name.tokens);
	if (own->tag != 0)
		return 0;
	struct prefix_buffer *buffer = prefix_disk_writes(disk);
	if (buffer == NULL)
		return -EAGAIN;
	if (kv_content_read(&engine->kv, page, prefix_buffer_content(buffer)) != 0)
		return -EIO;
	header.domain = name.domain;
	memcpy(header.tokens, name.tokens, sizeof(header.tokens));
	memcpy(header.order, name.order, sizeof(header.order));
	own->tag = prefix_disk_write(disk, buffer, &header, NULL);
	if (own->tag == 0)
		return -ENOSPC;
	counter_add(&engine->disk.saved_tokens, KV_PAGE_CELLS);
	return 1;
}

/* The first of the pages up to this one whose states a snapshot of it needs and that are not on disk;
 * KV_NONE: all are. */
static uint32_t without_states(struct engine *engine, uint32_t page)
{
	uint32_t first = KV_NONE;

	for (uint32_t i = recall_states_of(&engine->kv.layout); i > 0 && page != KV_NONE;
		i--, page = engine->kv.pages[page].before) {
		struct kv_content_name name;

		if (!kv_content_name(&engine->kv, page, &name) ||
			prefix_disk_find(engine->disk.disk, engine->kv.pages[page].tag, name.domain,
				prefix_state_tokens) == 0)
			first = page;
	}
	return first;
}

/* Begins to write the next of the states of a snapshot whose pages are saved; as save_page. */
static int save_states(struct engine *engine, uint32_t of)
{
	struct prefix_disk *disk = engine->disk.disk;
	struct kv *kv = &engine->kv;
	struct prefix_header header = {.before = 0};
	struct kv_content_name name;
	uint32_t snapshot = snapshots_find(kv, of), page;

	if (snapshot == SNAPSHOT_NONE)
		return -ENOENT;
	struct snapshot *own = &kv->snapshots.of[snapshot];
	if (own->tag != 0 && prefix_disk_has(disk, own->tag))
		return 0;
	page = without_states(engine, of);
	if (page == KV_NONE)
		return 0;
	if (!kv_content_name(kv, page, &name) ||
		(kv->layout.windows.n_layers > 0 && !kv_window_there(kv, page)))
		return -ENOENT;
	bool in_place = recall_states_in_place(engine);
	struct prefix_buffer *buffer =
		engine->disk.n_loose < PREFIX_BUFFERS ? prefix_disk_writes(disk) : NULL;
	unsigned char *content = buffer != NULL ? recall_state_to_write(engine, page) : NULL;
	if (content == NULL)
		return -EAGAIN;
	header.before = kv->pages[page].tag;
	header.domain = name.domain;
	memcpy(header.tokens, prefix_state_tokens, sizeof(header.tokens));
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		header.order[i] = (uint8_t)i;
	uint64_t id = prefix_disk_write(disk, buffer, &header, content);
	if (id == 0) {
		recall_state_written(engine);
		return -ENOSPC;
	}
	/* Its last one. */
	if (page == of)
		own->tag = id;
	/* Where its content lies elsewhere by now, it may give way. */
	own->pins += in_place;
	recall_add_loose(engine,
		&(struct recall_loose){.snapshot = in_place ? snapshot : SNAPSHOT_NONE, .id = id});
	return 1;
}

/* Begins to write the next of the pages up to a snapshot, or it; as save_page. */
static int save_snapshot(struct engine *engine, uint32_t page)
{
	uint32_t first = KV_NONE;

	for (uint32_t at = page; at != KV_NONE; at = engine->kv.pages[at].before)
		if (!is_saved(engine, at))
			first = at;
	if (first == KV_NONE)
		return save_states(engine, page);
	int rc = save_page(engine, first);
	/* It was on disk already: the next one. */
	return rc == 0 ? save_snapshot(engine, page) : rc;
}

/* With snapshots: saves what the session can go on from. As save_page; *saved: tokens. */
static int save_session(struct engine *engine, const struct engine_session *s, uint32_t *saved)
{
	uint32_t page = s->seq.tip;

	while (page != KV_NONE && !snapshots_has(&engine->kv, page))
		page = engine->kv.pages[page].before;
	*saved = 0;
	if (page == KV_NONE)
		return -ENOENT;
	int rc = save_snapshot(engine, page);
	uint32_t first = (uint32_t)engine->kv.position[page * KV_PAGE_CELLS];
	if (rc == 0)
		*saved = first / KV_PAGE_CELLS * KV_PAGE_CELLS + KV_PAGE_CELLS;
	return rc;
}

/* Gives up the pages of a session that sleeps, once they are on disk, as far as they can be. Returns
 * how many pages it began to write, at most `most`. */
static uint32_t fall_asleep(struct engine *engine, struct engine_session *s, uint32_t most)
{
	uint32_t begun = 0, saved = 0;
	int rc = 0;
	bool states = engine->kv.snapshots.n > 0;

	while (states && engine->disk.disk != NULL && (rc = save_session(engine, s, &saved)) == 1)
		if (++begun == most)
			return begun;
	for (uint32_t at = 0;
		!states && engine->disk.disk != NULL && at < s->seq.n_shared && rc >= 0;
		at += KV_PAGE_CELLS) {
		if (begun == most)
			return begun;
		rc = save_page(engine, s->seq.cell[at] / KV_PAGE_CELLS);
		begun += rc == 1;
		saved += rc >= 0 ? KV_PAGE_CELLS : 0;
	}
	if (rc == -EAGAIN && prefix_disk_busy(engine->disk.disk))
		return begun;
	log_session(LOG_LEVEL_INFO, s->uid, engine->iteration,
		"sleeps: %u of its %u tokens are on disk", saved, s->n_tokens);
	kv_seq_exit(&engine->kv, &s->seq);
	recall_end(engine, s);
	s->waits = false;
	s->sched.n_pages = s->sched.n_kv = 0;
	return begun;
}

/* Whether a page is to be written now. */
static bool is_due(struct engine *engine, uint32_t page, uint64_t now_ns)
{
	const struct kv *kv = &engine->kv;
	uint64_t *seen_ns = &engine->disk.seen_ns[page], after = engine->tuning->sleep_after;
	bool is_short = kv->pages[page].kept && kv->n_free < kv->layout.n_pages / 8;

	if (!kv_prefix_filed(kv, page)) {
		*seen_ns = 0;
		return false;
	}
	if (*seen_ns == 0)
		*seen_ns = now_ns;
	return is_short || (after != 0 && now_ns - *seen_ns >= after);
}

/* Of pages, or with snapshots of these, the next one that is looked at is due and begun to
 * be written: 1. */
static int save_next(struct engine *engine, uint32_t at, uint64_t now_ns)
{
	uint32_t page = at;

	if (engine->kv.snapshots.n == 0)
		return is_due(engine, page, now_ns) ? save_page(engine, page) : 0;
	page = engine->kv.snapshots.of[at].page;
	return page != KV_NONE && is_due(engine, page, now_ns) ? save_snapshot(engine, page) : 0;
}

static uint32_t n_savable(const struct engine *engine)
{
	return engine->kv.snapshots.n > 0 ? engine->kv.snapshots.n : engine->kv.layout.n_pages;
}

void recall_save(struct engine *engine, uint64_t now_ns)
{
	uint32_t n = n_savable(engine), begun = 0;
	/* While sessions run, few enough that their copies take no time that counts. */
	uint32_t most = engine->n_order > 0 ? 1 : PREFIX_WRITES;
	uint32_t looks = engine->n_order > 0 ? LOOKS : LOOKS_IDLE;

	for (uint32_t i = 0; i < engine->n_live; i++) {
		struct engine_session *s = engine_live(engine, i);

		if (s->asleep && s->seq.owner != 0)
			begun += fall_asleep(engine, s, most - begun);
	}
	if (engine->disk.disk == NULL)
		return;
	recall_settle(engine);
	for (uint32_t i = 0; i < looks && i < n && begun < most; i++) {
		uint32_t at = engine->disk.next;
		int rc = save_next(engine, at, now_ns);

		if (rc == -EAGAIN)
			return;
		begun += rc == 1;
		/* There is more up to a snapshot. */
		if (rc == 1 && engine->kv.snapshots.n > 0)
			continue;
		engine->disk.next = at + 1 < n ? at + 1 : 0;
	}
}

void recall_save_all(struct engine *engine)
{
	uint64_t end_ns = clock_ns() + ALL_NS;
	const struct timespec pause = {.tv_nsec = 1000000};
	bool more = engine->disk.disk != NULL;

	while (more && clock_ns() < end_ns) {
		more = false;
		recall_settle(engine);
		for (uint32_t i = 0; i < n_savable(engine); i++) {
			uint32_t page =
				engine->kv.snapshots.n > 0 ? engine->kv.snapshots.of[i].page : i;
			int rc = 0;

			if (page != KV_NONE && kv_prefix_filed(&engine->kv, page))
				rc = engine->kv.snapshots.n > 0 ? save_snapshot(engine, page)
								: save_page(engine, page);

			if (rc == -EAGAIN && !prefix_disk_busy(engine->disk.disk))
				return;
			more |= rc == 1 || rc == -EAGAIN;
			if (rc == -EAGAIN)
				break;
		}
		if (more)
			nanosleep(&pause, NULL);
	}
}
