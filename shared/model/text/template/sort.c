#include "shared/model/text/template/render.h"

struct item {
	struct value key, value;
};

static bool comes_after(struct render *r, const struct item *a, const struct item *b, bool reverse)
{
	return reverse ? value_compare(r, a->key, b->key, "<") < 0
		       : value_compare(r, b->key, a->key, "<") < 0;
}

/* Runs of `width` become runs of twice that. */
static void merge(struct render *r, const struct item *from, struct item *to, size_t n,
	size_t width, bool reverse)
{
	for (size_t start = 0; start < n; start += 2 * width) {
		size_t middle = start + width < n ? start + width : n;
		size_t end = start + 2 * width < n ? start + 2 * width : n;
		size_t a = start, b = middle;
		for (size_t i = start; i < end; i++) {
			bool right = a >= middle ||
				     (b < end && comes_after(r, &from[a], &from[b], reverse));
			to[i] = right ? from[b++] : from[a++];
		}
	}
}

void list_sort(struct render *r, struct list *keys, struct list *values, bool reverse)
{
	size_t n = keys->n;
	struct item *items = arena_array(&r->arena, n, sizeof(*items));
	struct item *other = arena_array(&r->arena, n, sizeof(*other));
	for (size_t i = 0; i < n; i++)
		items[i] = (struct item){keys->items[i], values->items[i]};
	for (size_t width = 1; width < n; width *= 2) {
		merge(r, items, other, n, width, reverse);
		struct item *swap = items;
		items = other;
		other = swap;
	}
	for (size_t i = 0; i < n; i++) {
		keys->items[i] = items[i].key;
		values->items[i] = items[i].value;
	}
}
