/*
 * Pages of the KV cache that are on disk (services/verifier/prefixes), as the engine uses them.
 *
 * Saving: pages that have been there for sleep_after are copied to buffers and written, and sooner if
 * memory is short; those of sessions that fall asleep come first. At most a few pages are copied
 * between two passes, and none when no buffer is free.
 *
 * With recurrent layers, or layers that keep windows of their own, what is kept are snapshots
 * (snapshots.h): the pages up to one, and then its states, or the window cells of the pages that its
 * window reaches into, a file for each. States are written from where they are. Window cells, which lie
 * apart, and states in a device's memory are copied to a place of this process first, one at a time, and
 * come back through another one (recall_states.c). "States" means either below.
 *
 * Recalling: a session that is about to start, and whose next tokens are not in memory but on disk,
 * sits out until their pages have been read. They become pages of the cache as if it had computed
 * them. Where the disk fails, or takes too long, it computes them.
 *
 * Engine thread, unless a comment says otherwise.
 */
#pragma once

#include "kernels/steps.h"
#include "services/verifier/prefixes/prefix_disk.h"

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct engine_session;
struct error;
struct kv_layout;

enum { RECALL_AHEAD = 3 };

/* A session's reads, oldest first. */
struct recall {
	bool on; /* it sits out */
	bool asked; /* once is enough for each start */
	bool more; /* there may be further pages behind those that were asked for */
	uint32_t n;
	struct prefix_buffer *buffer[RECALL_AHEAD];
	uint64_t id[RECALL_AHEAD];
	uint32_t from; /* position of the first token of buffer[0] */
	uint64_t before; /* id of the page before buffer[0]; 0: it has the first tokens */
	uint64_t last; /* id of the page before the next one that is asked for */
	uint64_t heard_ns; /* when a page came last */
	/* With snapshots: position of the first token behind the one that is recalled, and its place in
	 * memory; until 0: there is none. */
	uint32_t until, snapshot;
	/* Of its states the one that comes next: the position of the first token behind its page, its id,
	 * and its read; NULL: it is not asked for yet. */
	uint32_t state_end;
	uint64_t state_id;
	struct prefix_buffer *state;
};

/* A snapshot that the thread reads or writes although nobody waits for it. */
struct recall_loose {
	uint32_t snapshot; /* is pinned for it; SNAPSHOT_NONE: none */
	uint64_t id; /* of a write */
	struct prefix_buffer *read; /* NULL: it is a write */
};

struct engine_disk {
	struct prefix_disk *disk; /* NULL: nothing is kept on disk; the engine's thread */
	uint64_t *seen_ns; /* [n_pages] since when a page could be saved; 0: it cannot */
	uint32_t next; /* the page, or with snapshots the snapshot, that is looked at next */
	struct recall_loose loose[PREFIX_BUFFERS];
	uint32_t n_loose;
	/* Two places for states or windows: of the one that is written, and of the one that is read.
	 * backend NULL: none are needed, because this process sees the snapshots. */
	struct buffer states;
	bool state_written, state_read; /* the place is in use */
	/* Any thread, also while the disk is closed and opened again for a cache of another size:
	 * whether there is one, and tokens that were written, and that were read. */
	_Atomic bool there;
	struct prefix_disk_counts counts;
	_Atomic uint64_t saved_tokens, recalled_tokens;
};

/* At start, before the engine's thread. Nothing is kept on disk when the directory or the cache is
 * not suited; that is logged. -ENOMEM. */
int recall_open(struct engine *engine, struct error *err);
/* Once the cache has its queue (kv_use_queue). -ENOMEM. */
int recall_states_open(struct engine *engine, struct error *err);
/* Bytes of a file's states in a cache with this layout, and behind how many pages there must be such a file
 * for a sequence to go on: behind the last one, or with windows, those that they reach into. */
uint64_t recall_state_bytes(const struct kv_layout *layout);
uint32_t recall_states_of(const struct kv_layout *layout);
/* What those places take. */
uint64_t recall_states_bytes(uint64_t state_bytes);
/* True when snapshots are written and read where they are. */
bool recall_states_in_place(const struct engine *engine);
/* After the engine's thread. */
void recall_close(struct engine *engine);

/* Saves some pages, if any are due; gives up the pages of sleeping sessions. */
void recall_save(struct engine *engine, uint64_t now_ns);
/* Saves all pages that can be saved, for a second at most. */
void recall_save_all(struct engine *engine);

/* Frees the snapshots whose reads and writes have ended. */
void recall_settle(struct engine *engine);
void recall_add_loose(struct engine *engine, const struct recall_loose *loose);
/* Looks on disk for the first n tokens of a session that has taken over what is in memory. */
void recall_begin(struct engine *engine, struct engine_session *s, uint32_t n);
/* Takes what has arrived for all sessions that sit out. */
void recall_step(struct engine *engine, uint64_t now_ns);
/* The session has ended, or has lost its pages. */
void recall_end(struct engine *engine, struct engine_session *s);

/* Where the disk's thread writes the states of a page from; their content is there. The page must have a
 * snapshot, or all its window cells (kv_window_there). NULL: others are being written, or the device has
 * failed. Ends with recall_state_written. */
unsigned char *recall_state_to_write(struct engine *engine, uint32_t page);
void recall_state_written(struct engine *engine);
/* Where the disk's thread reads states to; NULL: others are being read. Ends with recall_state_arrived,
 * which makes what was read the snapshot's content, or the page's window cells (false: the device has
 * failed, or there are no more such cells), or with recall_state_dropped. */
unsigned char *recall_state_to_read(struct engine *engine, uint32_t snapshot);
bool recall_state_arrived(struct engine *engine, uint32_t snapshot, uint32_t page);
void recall_state_dropped(struct engine *engine);
