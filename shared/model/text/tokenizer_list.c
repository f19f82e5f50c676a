/* Token lists: sorted strings; the longest one with which a text begins is found with one search
 * per byte. */
#include "shared/model/text/tokenizer_load.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b, void *arg)
{
	const struct token_list *list = arg;
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	struct gguf_string s = list->strings[x], r = list->strings[y];
	size_t n = s.bytes < r.bytes ? s.bytes : r.bytes;
	int order = memcmp(s.data, r.data, n);
	if (!order)
		order = (s.bytes > r.bytes) - (s.bytes < r.bytes);
	return order ? order : (x > y) - (x < y);
}

void token_list_sort(struct token_list *list)
{
	uint32_t n = 0;
	qsort_r(list->ids, list->n, sizeof(*list->ids), compare, list);
	for (uint32_t i = 0; i < list->n; i++) {
		struct gguf_string s = list->strings[list->ids[i]];
		struct gguf_string last =
			n ? list->strings[list->ids[n - 1]] : (struct gguf_string){"", 0};
		if (s.bytes == 0)
			continue;
		list->first[(unsigned char)s.data[0]] = true;
		/* The last id counts among equal strings, as in the references. */
		if (s.bytes == last.bytes && memcmp(s.data, last.data, s.bytes) == 0)
			n--;
		list->ids[n++] = list->ids[i];
	}
	list->n = n;
}

/* The first of ids[low..high-1] whose byte at depth is not below byte (strict: is above it). They
 * all have the same first depth bytes; shorter strings come before longer ones. */
static uint32_t bound(const struct token_list *list, uint32_t low, uint32_t high, size_t depth,
	unsigned byte, bool strict)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		struct gguf_string s = list->strings[list->ids[middle]];
		bool below = s.bytes <= depth;
		if (!below) {
			unsigned b = (unsigned char)s.data[depth];
			below = strict ? b <= byte : b < byte;
		}
		if (below)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int32_t token_list_match(const struct token_list *list, const char *text, size_t bytes,
	bool (*usable)(const void *arg, int32_t id, size_t bytes), const void *arg)
{
	int32_t best = -1;
	uint32_t low = 0, high = list->n;
	if (!list->first[(unsigned char)text[0]])
		return -1;
	for (size_t depth = 0; low < high; depth++) {
		/* A string of just these bytes comes first in the range. */
		int32_t id = list->ids[low];
		if (depth > 0 && list->strings[id].bytes == depth &&
			(!usable || usable(arg, id, depth)))
			best = id;
		if (depth == bytes)
			break;
		unsigned byte = (unsigned char)text[depth];
		low = bound(list, low, high, depth, byte, false);
		high = bound(list, low, high, depth, byte, true);
	}
	return best;
}
