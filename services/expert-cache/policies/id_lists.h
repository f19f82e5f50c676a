/*
 * Ids in order: some lists over the same ids 0..n_ids-1, an id in one of them at most. Each list runs from what was
 * appended first to what was appended last; what is prepended is before them. Part of a policy; nothing is allocated after id_lists_init.
 */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

#define ID_NONE UINT32_MAX

struct id_lists {
	uint32_t n_ids, n_lists;
	/* [n_ids + n_lists], rings through a head each: entry n_ids + i is list i's. An id outside all lists points at
	 * itself. */
	struct id_link {
		uint32_t previous, next, list;
	} * link;
	uint32_t *n; /* [n_lists] ids in it */
};

int id_lists_init(struct id_lists *lists, uint32_t n_ids, uint32_t n_lists, struct error *err);
void id_lists_exit(struct id_lists *lists);

/* To the end of a list, or to its beginning, from wherever it was. */
void id_lists_append(struct id_lists *lists, uint32_t list, uint32_t id);
void id_lists_prepend(struct id_lists *lists, uint32_t list, uint32_t id);
void id_lists_remove(struct id_lists *lists, uint32_t id);
/* The list it is in, or ID_NONE. */
uint32_t id_lists_list(const struct id_lists *lists, uint32_t id);
/* ID_NONE behind the last. */
uint32_t id_lists_first(const struct id_lists *lists, uint32_t list);
uint32_t id_lists_next(const struct id_lists *lists, uint32_t id);
/* What was appended last. */
uint32_t id_lists_last(const struct id_lists *lists, uint32_t list);
