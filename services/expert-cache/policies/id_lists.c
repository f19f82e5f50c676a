#include "services/expert-cache/policies/id_lists.h"

#include <stdlib.h>

int id_lists_init(struct id_lists *lists, uint32_t n_ids, uint32_t n_lists, struct error *err)
{
	*lists = (struct id_lists){.n_ids = n_ids, .n_lists = n_lists};
	lists->link = calloc((size_t)n_ids + n_lists, sizeof(*lists->link));
	lists->n = calloc(n_lists, sizeof(*lists->n));
	if (lists->link == NULL || lists->n == NULL) {
		id_lists_exit(lists);
		return error_set(err, ENOMEM, "no memory for %u lists of %u", n_lists, n_ids);
	}
	for (uint32_t i = 0; i < n_ids + n_lists; i++)
		lists->link[i].previous = lists->link[i].next = i;
	return 0;
}

void id_lists_exit(struct id_lists *lists)
{
	free(lists->link);
	free(lists->n);
	*lists = (struct id_lists){0};
}

uint32_t id_lists_list(const struct id_lists *lists, uint32_t id)
{
	return lists->link[id].next == id ? ID_NONE : lists->link[id].list;
}

void id_lists_remove(struct id_lists *lists, uint32_t id)
{
	struct id_link *link = lists->link;
	if (link[id].next == id)
		return;
	lists->n[link[id].list]--;
	link[link[id].previous].next = link[id].next;
	link[link[id].next].previous = link[id].previous;
	link[id].previous = link[id].next = id;
}

/* Inserts before `next`, which is an id or the list's head. */
static void insert(struct id_lists *lists, uint32_t list, uint32_t id, uint32_t next)
{
	struct id_link *link = lists->link;
	link[id] = (struct id_link){.previous = link[next].previous, .next = next, .list = list};
	link[link[next].previous].next = id;
	link[next].previous = id;
	lists->n[list]++;
}

void id_lists_append(struct id_lists *lists, uint32_t list, uint32_t id)
{
	id_lists_remove(lists, id);
	insert(lists, list, id, lists->n_ids + list);
}

void id_lists_prepend(struct id_lists *lists, uint32_t list, uint32_t id)
{
	id_lists_remove(lists, id);
	insert(lists, list, id, lists->link[lists->n_ids + list].next);
}

uint32_t id_lists_first(const struct id_lists *lists, uint32_t list)
{
	return id_lists_next(lists, lists->n_ids + list);
}

uint32_t id_lists_next(const struct id_lists *lists, uint32_t id)
{
	uint32_t next = lists->link[id].next;
	return next < lists->n_ids ? next : ID_NONE;
}

uint32_t id_lists_last(const struct id_lists *lists, uint32_t list)
{
	uint32_t last = lists->link[lists->n_ids + list].previous;
	return last < lists->n_ids ? last : ID_NONE;
}
