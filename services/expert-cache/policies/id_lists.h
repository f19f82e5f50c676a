/*
 * Ordered lists over the ids 0..n_ids-1; an id is in at most one of them. Each list runs from the
 * id appended first to the id appended last; prepended ids come before them. Part of a policy;
 * nothing is allocated after id_lists_init.
 */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

#define ID_NONE UINT32_MAX

struct id_lists {
	uint32_t n_ids, n_lists;
	/* [n_ids + n_lists]: rings that each go through a head; entry n_ids + i is the head of list
	 * i. An id outside all lists points to itself. */
	struct id_link {
		uint32_t previous, next, list;
	} * link;
	uint32_t *n; /* [n_lists] number of ids in each */
};

int id_lists_init(struct id_lists *lists, uint32_t n_ids, uint32_t n_lists, struct error *err);
void id_lists_exit(struct id_lists *lists);

/* Move an id to the end or the beginning of a list, from wherever it was. */
void id_lists_append(struct id_lists *lists, uint32_t list, uint32_t id);
void id_lists_prepend(struct id_lists *lists, uint32_t list, uint32_t id);
void id_lists_remove(struct id_lists *lists, uint32_t id);
/* The list that the id is in, or ID_NONE. */
uint32_t id_lists_list(const struct id_lists *lists, uint32_t id);
/* ID_NONE after the last. */
uint32_t id_lists_first(const struct id_lists *lists, uint32_t list);
uint32_t id_lists_next(const struct id_lists *lists, uint32_t id);
/* The id that was appended last. */
uint32_t id_lists_last(const struct id_lists *lists, uint32_t list);
