/*
 * Which pages are on disk, what they hold, and which of them gives way. Pages form chains, as in
 * memory (shared/model/kv/kv_keep.c), and the rule is the same: the page of least worth goes first,
 * from the end of its chain, and its worth is how often it was found, counted from the worth of what
 * went last. At the ends of chains all files of one model have the same size, or with window cells about
 * the same, so that this is its value per byte: they are pages, or states or window cells of pages. Files of other models are worth nothing
 * here and go before all others.
 *
 * Memory only; the caller (prefix_disk.c) has the lock and deals with the files.
 */
#pragma once

#include "services/verifier/prefixes/prefix_file.h"

#include <stdbool.h>

#define PREFIX_NONE UINT32_MAX
#define PREFIX_ENTRIES_MAX (1u << 18)

struct prefix_entry {
	uint64_t id, before, domain; /* as in struct prefix_header; id 0: a free entry */
	uint64_t name; /* hash of before, domain and tokens */
	int32_t tokens[PREFIX_TOKENS];
	uint32_t parent; /* entry of `before` */
	/* the first entry that has it as its parent, and the others with the same parent */
	uint32_t behind, next_behind, prev_behind;
	uint32_t next_id, next_name; /* in their buckets */
	/* in the list of entries without others behind them, or of free ones */
	uint32_t next, prev;
	uint32_t uses;
	uint64_t worth;
	uint64_t bytes; /* of its file */
	bool there; /* its file is complete */
};

struct prefix_index {
	uint64_t budget, bytes; /* of all files, at most, and now */
	uint32_t n_used; /* entries in use */
	uint64_t worth; /* of the last that went */
	uint32_t n, n_max, n_buckets;
	uint32_t free, first, last;
	uint32_t *by_id, *by_name; /* [n_buckets] */
	struct prefix_entry *entries; /* [n_max] */
};

/* -ENOMEM. file_bytes: of the smallest file; the budget has room for it. */
int prefix_index_init(struct prefix_index *x, uint64_t budget, uint64_t file_bytes);
void prefix_index_exit(struct prefix_index *x);
/* The entry with this id, or PREFIX_NONE. */
uint32_t prefix_index_id(const struct prefix_index *x, uint64_t id);
/* The page with these tokens behind the page `before`, or PREFIX_NONE. */
uint32_t prefix_index_find(
	const struct prefix_index *x, uint64_t before, uint64_t domain, const int32_t *tokens);
/* Adds a page whose file is not complete yet, unless there: PREFIX_NONE when it is there already,
 * the page before it is not, or there is no room. */
uint32_t prefix_index_add(struct prefix_index *x, const struct prefix_header *header, bool there);
/* The entry that gives way next, or PREFIX_NONE: there is none. */
uint32_t prefix_index_least(const struct prefix_index *x);
/* True when another file of so many bytes fits. */
bool prefix_index_fits(const struct prefix_index *x, uint64_t file_bytes);
/* Removes an entry that has none behind it. gave_way: for another one, so that others are older
 * now. */
void prefix_index_remove(struct prefix_index *x, uint32_t entry, bool gave_way);
/* The last entry behind this one, or itself: what to remove first when it is to be removed. */
uint32_t prefix_index_behind(const struct prefix_index *x, uint32_t entry);
/* Counts a use of the page and of those before it. */
void prefix_index_used(struct prefix_index *x, uint32_t entry);
