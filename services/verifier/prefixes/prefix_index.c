#include "services/verifier/prefixes/prefix_index.h"

#include "shared/base/checksum.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int prefix_index_init(struct prefix_index *x, uint64_t budget, uint64_t file_bytes)
{
	uint64_t n = budget / file_bytes;

	memset(x, 0, sizeof(*x));
	x->budget = budget;
	x->n_max = n < PREFIX_ENTRIES_MAX ? (uint32_t)n : PREFIX_ENTRIES_MAX;
	x->n_buckets = 64;
	while (x->n_buckets < x->n_max)
		x->n_buckets *= 2;
	x->by_id = malloc(x->n_buckets * sizeof(*x->by_id));
	x->by_name = malloc(x->n_buckets * sizeof(*x->by_name));
	/* calloc: entries that are never used cost no memory. */
	x->entries = calloc((size_t)x->n_max + 1, sizeof(*x->entries));
	if (x->by_id == NULL || x->by_name == NULL || x->entries == NULL) {
		prefix_index_exit(x);
		return -ENOMEM;
	}
	memset(x->by_id, 0xff, x->n_buckets * sizeof(*x->by_id));
	memset(x->by_name, 0xff, x->n_buckets * sizeof(*x->by_name));
	x->free = x->first = x->last = PREFIX_NONE;
	return 0;
}

void prefix_index_exit(struct prefix_index *x)
{
	free(x->by_id);
	free(x->by_name);
	free(x->entries);
	memset(x, 0, sizeof(*x));
}

static uint32_t *bucket(const struct prefix_index *x, uint32_t *of, uint64_t hash)
{
	return &of[checksum(0, &hash, sizeof(hash)) & (x->n_buckets - 1)];
}

static uint64_t name_of(uint64_t before, uint64_t domain, const int32_t *tokens)
{
	return checksum(
		checksum(before, &domain, sizeof(domain)), tokens, PREFIX_TOKENS * sizeof(*tokens));
}

uint32_t prefix_index_id(const struct prefix_index *x, uint64_t id)
{
	uint32_t e = *bucket(x, x->by_id, id);

	while (e != PREFIX_NONE && x->entries[e].id != id)
		e = x->entries[e].next_id;
	return e;
}

uint32_t prefix_index_find(
	const struct prefix_index *x, uint64_t before, uint64_t domain, const int32_t *tokens)
{
	uint64_t name = name_of(before, domain, tokens);
	uint32_t e = *bucket(x, x->by_name, name);

	for (; e != PREFIX_NONE; e = x->entries[e].next_name) {
		const struct prefix_entry *at = &x->entries[e];

		if (at->name == name && at->before == before && at->domain == domain &&
			memcmp(at->tokens, tokens, sizeof(at->tokens)) == 0)
			break;
	}
	return e;
}

/* Puts an entry into the list behind those of the same worth, or before them (first). */
static void list_add(struct prefix_index *x, uint32_t e, bool first)
{
	struct prefix_entry *entry = &x->entries[e];
	uint32_t at = x->last;

	while (at != PREFIX_NONE && (first ? x->entries[at].worth >= entry->worth
					   : x->entries[at].worth > entry->worth))
		at = x->entries[at].prev;
	entry->prev = at;
	entry->next = at != PREFIX_NONE ? x->entries[at].next : x->first;
	*(entry->prev != PREFIX_NONE ? &x->entries[entry->prev].next : &x->first) = e;
	*(entry->next != PREFIX_NONE ? &x->entries[entry->next].prev : &x->last) = e;
}

static void list_remove(struct prefix_index *x, uint32_t e)
{
	struct prefix_entry *entry = &x->entries[e];

	*(entry->prev != PREFIX_NONE ? &x->entries[entry->prev].next : &x->first) = entry->next;
	*(entry->next != PREFIX_NONE ? &x->entries[entry->next].prev : &x->last) = entry->prev;
}

static void behind_add(struct prefix_index *x, uint32_t parent, uint32_t e)
{
	struct prefix_entry *entry = &x->entries[e];

	entry->next_behind = x->entries[parent].behind;
	if (entry->next_behind != PREFIX_NONE)
		x->entries[entry->next_behind].prev_behind = e;
	else
		list_remove(x, parent);
	x->entries[parent].behind = e;
}

static void behind_remove(struct prefix_index *x, uint32_t parent, uint32_t e)
{
	const struct prefix_entry *entry = &x->entries[e];

	if (entry->prev_behind != PREFIX_NONE)
		x->entries[entry->prev_behind].next_behind = entry->next_behind;
	else
		x->entries[parent].behind = entry->next_behind;
	if (entry->next_behind != PREFIX_NONE)
		x->entries[entry->next_behind].prev_behind = entry->prev_behind;
	if (x->entries[parent].behind == PREFIX_NONE)
		list_add(x, parent, true);
}

static uint32_t take_entry(struct prefix_index *x)
{
	uint32_t e = x->free;

	if (e == PREFIX_NONE)
		return x->n;
	x->free = x->entries[e].next;
	return e;
}

bool prefix_index_fits(const struct prefix_index *x, uint64_t file_bytes)
{
	return (x->free != PREFIX_NONE || x->n < x->n_max) && file_bytes <= x->budget &&
	       x->bytes <= x->budget - file_bytes;
}

uint32_t prefix_index_add(struct prefix_index *x, const struct prefix_header *header, bool there)
{
	uint32_t parent = PREFIX_NONE;
	uint64_t bytes = PREFIX_HEADER_BYTES + header->content_bytes;

	if (!prefix_index_fits(x, bytes) || prefix_index_id(x, header->id) != PREFIX_NONE ||
		prefix_index_find(x, header->before, header->domain, header->tokens) != PREFIX_NONE)
		return PREFIX_NONE;
	if (header->before != 0 && (parent = prefix_index_id(x, header->before)) == PREFIX_NONE)
		return PREFIX_NONE;
	uint32_t e = take_entry(x);
	struct prefix_entry *entry = &x->entries[e];
	*entry = (struct prefix_entry){
		.id = header->id,
		.before = header->before,
		.domain = header->domain,
		.name = name_of(header->before, header->domain, header->tokens),
		.parent = parent,
		.behind = PREFIX_NONE,
		.next_behind = PREFIX_NONE,
		.prev_behind = PREFIX_NONE,
		.worth = x->worth + 1,
		.bytes = bytes,
		.there = there,
	};
	memcpy(entry->tokens, header->tokens, sizeof(entry->tokens));
	uint32_t *head = bucket(x, x->by_id, entry->id);
	entry->next_id = *head;
	*head = e;
	head = bucket(x, x->by_name, entry->name);
	entry->next_name = *head;
	*head = e;
	if (parent != PREFIX_NONE)
		behind_add(x, parent, e);
	/* None is worth less than what is behind it. */
	for (; parent != PREFIX_NONE && x->entries[parent].worth < entry->worth;
		parent = x->entries[parent].parent)
		x->entries[parent].worth = entry->worth;
	list_add(x, e, false);
	if (e == x->n)
		x->n++;
	x->bytes += bytes;
	x->n_used++;
	return e;
}

uint32_t prefix_index_least(const struct prefix_index *x)
{
	uint32_t e = x->first;

	while (e != PREFIX_NONE && !x->entries[e].there)
		e = x->entries[e].next;
	return e;
}

static void leave(uint32_t *head, struct prefix_entry *entries, uint32_t e, size_t offset)
{
	uint32_t *at = head;

	while (*at != e)
		at = (uint32_t *)(void *)((unsigned char *)&entries[*at] + offset);
	*at = *(uint32_t *)(void *)((unsigned char *)&entries[e] + offset);
}

void prefix_index_remove(struct prefix_index *x, uint32_t e, bool gave_way)
{
	struct prefix_entry *entry = &x->entries[e];
	uint32_t parent = entry->parent;

	if (gave_way)
		x->worth = entry->worth;
	list_remove(x, e);
	leave(bucket(x, x->by_id, entry->id), x->entries, e,
		offsetof(struct prefix_entry, next_id));
	leave(bucket(x, x->by_name, entry->name), x->entries, e,
		offsetof(struct prefix_entry, next_name));
	if (parent != PREFIX_NONE)
		behind_remove(x, parent, e);
	x->bytes -= entry->bytes;
	x->n_used--;
	*entry = (struct prefix_entry){.next = x->free};
	x->free = e;
}

uint32_t prefix_index_behind(const struct prefix_index *x, uint32_t entry)
{
	while (x->entries[entry].behind != PREFIX_NONE)
		entry = x->entries[entry].behind;
	return entry;
}

void prefix_index_used(struct prefix_index *x, uint32_t entry)
{
	for (; entry != PREFIX_NONE; entry = x->entries[entry].parent) {
		struct prefix_entry *at = &x->entries[entry];
		bool listed = at->behind == PREFIX_NONE;

		at->uses += at->uses < UINT32_MAX;
		if (listed)
			list_remove(x, entry);
		at->worth = x->worth + at->uses + 1;
		if (listed)
			list_add(x, entry, false);
	}
}
