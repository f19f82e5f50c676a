/* Dictionaries in order of insertion. */
#include "shared/model/text/template/render.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { SMALL = 8 };

static uint64_t mix(uint64_t h, uint64_t more)
{
	unsigned __int128 product = (unsigned __int128)(h ^ more) * 0x9e3779b97f4a7c15u;
	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash(struct render *r, struct value key)
{
	uint64_t h = 0xcbf29ce484222325u;
	switch (key.kind) {
	case VALUE_STRING:
		render_charge(r, key.s->bytes / 32);
		for (size_t i = 0; i < key.s->bytes; i++)
			h = (h ^ (unsigned char)key.s->data[i]) * 0x100000001b3u;
		return mix(h, key.s->bytes);
	case VALUE_BOOL:
	case VALUE_INT:
		return mix(1, (uint64_t)value_as_int(key));
	case VALUE_FLOAT:
		/* Equal to an int: the same key. */
		if (key.f > -9e18 && key.f < 9e18 && key.f == trunc(key.f))
			return mix(1, (uint64_t)(int64_t)key.f);
		memcpy(&h, &key.f, sizeof(h));
		return mix(2, h);
	case VALUE_TUPLE:
		render_enter(r);
		render_charge(r, key.list->n);
		for (size_t i = 0; i < key.list->n; i++)
			h = mix(h, hash(r, key.list->items[i]));
		render_leave(r);
		return h;
	case VALUE_LIST:
	case VALUE_DICT:
		render_fail(r, "unhashable type: '%s'", value_type(key));
	default:
		return mix(3, key.kind);
	}
}

/* The slot of a key in the index, or the empty slot where it would go; at most half of the slots
 * are used. Probes are counted: keys that collide come from a conversation. */
static size_t slot_of(struct render *r, const struct dict *dict, struct value key)
{
	size_t mask = dict->n_index - 1;
	for (size_t slot = hash(r, key) & mask;; slot = (slot + 1) & mask) {
		if (!dict->index[slot] ||
			value_equal(r, dict->pairs[dict->index[slot] - 1].key, key))
			return slot;
	}
}

struct dict *dict_new(struct render *r)
{
	return arena_alloc(&r->arena, sizeof(struct dict));
}

struct pair *dict_find(struct render *r, const struct dict *dict, struct value key)
{
	if (dict->index) {
		uint32_t at = dict->index[slot_of(r, dict, key)];
		return at ? &dict->pairs[at - 1] : NULL;
	}
	if (key.kind == VALUE_LIST || key.kind == VALUE_DICT)
		render_fail(r, "unhashable type: '%s'", value_type(key));
	for (size_t i = 0; i < dict->n; i++)
		if (value_equal(r, dict->pairs[i].key, key))
			return &dict->pairs[i];
	return NULL;
}

static void grow(struct render *r, struct dict *dict)
{
	size_t capacity = dict->capacity ? 2 * dict->capacity : SMALL;
	dict->pairs = arena_grow(&r->arena, dict->pairs, dict->n, capacity, sizeof(*dict->pairs));
	dict->capacity = capacity;
	if (capacity <= SMALL)
		return;
	dict->n_index = 2 * capacity;
	dict->index = arena_array(&r->arena, dict->n_index, sizeof(*dict->index));
	for (size_t i = 0; i < dict->n; i++)
		dict->index[slot_of(r, dict, dict->pairs[i].key)] = (uint32_t)i + 1;
}

void dict_set(struct render *r, struct dict *dict, struct value key, struct value value)
{
	struct pair *pair = dict_find(r, dict, key);
	if (pair) {
		pair->value = value;
		return;
	}
	if (dict->n == dict->capacity)
		grow(r, dict);
	assert(dict->pairs); /* grow has made room */
	if (dict->index)
		dict->index[slot_of(r, dict, key)] = (uint32_t)dict->n + 1;
	dict->pairs[dict->n++] = (struct pair){key, value};
}

struct pair *dict_find_text(struct render *r, const struct dict *dict, const char *key)
{
	struct string s = {.data = key, .bytes = strlen(key), .n_chars = SIZE_MAX};
	return dict_find(r, dict, value_string(&s));
}

void dict_set_text(struct render *r, struct dict *dict, const char *key, struct value value)
{
	dict_set(r, dict, value_string(text_literal(&r->arena, key)), value);
}
