/*
 * Values of the template language, which are Python's: their kinds, comparison and containers. They
 * live in the arena of one rendering. A function that cannot do what it is asked ends the rendering
 * with a message.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct render;
struct function;
struct loop;
struct node;
struct scope;

enum value_kind {
	VALUE_MISSING, /* no value at all: an argument that was not given */
	VALUE_UNDEFINED,
	VALUE_NONE,
	VALUE_BOOL,
	VALUE_INT,
	VALUE_FLOAT,
	VALUE_STRING,
	VALUE_LIST,
	VALUE_TUPLE,
	VALUE_RANGE,
	VALUE_VIEW, /* of a dict: its keys, values or items */
	/* the result of lazy filters: it has no length, and reading it uses it up */
	VALUE_ITERATOR,
	VALUE_DICT,
	VALUE_NAMESPACE,
	VALUE_LOOP,
	VALUE_MACRO,
	VALUE_FUNCTION,
	VALUE_METHOD,
};

/*
 * A text with its origin: bytes that the template wrote may be special tokens of the model, bytes
 * of the conversation never are. Operations keep the origin of each byte.
 */
struct string {
	const char *data; /* without a NUL */
	size_t bytes;
	/* [bytes] 1: the template wrote it; NULL: `literal` holds for all bytes */
	const uint8_t *mask;
	size_t n_chars; /* SIZE_MAX until counted */
	bool literal;
	/* the result of |safe or |escape: text that is added to it with + is escaped */
	bool markup;
};

struct value {
	enum value_kind kind;
	union {
		bool b;
		int64_t i;
		double f;
		struct string *s;
		struct list *list; /* LIST, TUPLE, RANGE, VIEW, ITERATOR */
		struct dict *dict; /* DICT, NAMESPACE */
		const struct undefined *undefined;
		struct loop *loop;
		const struct macro *macro;
		const struct function *function;
		const struct method *method;
	};
};

struct list {
	struct value *items;
	size_t n, capacity;
	size_t next; /* of an iterator: how many items were read */
	/* of a view: its type, such as "dict_keys"; of a tuple: "group" when it is one of groupby's
	 */
	const char *view;
	int64_t start, stop, step; /* of a range */
};

struct pair {
	struct value key, value;
};

struct dict {
	struct pair *pairs; /* in order of insertion */
	size_t n, capacity;
	uint32_t *index; /* hash table of positions + 1, 0 when empty; NULL in a small dict */
	size_t n_index; /* a power of two */
};

struct undefined {
	const char *type; /* type of the value that lacks it; NULL for a name */
	struct value name;
	const char *hint; /* the whole message, or NULL */
};

struct macro {
	const struct node *node;
	struct scope *scope; /* where it was defined */
	const struct string *name;
};

struct method {
	struct value self;
	const struct function *function;
};

static inline struct value value_none(void)
{
	return (struct value){.kind = VALUE_NONE};
}
static inline struct value value_bool(bool b)
{
	return (struct value){.kind = VALUE_BOOL, .b = b};
}
static inline struct value value_int(int64_t i)
{
	return (struct value){.kind = VALUE_INT, .i = i};
}
static inline struct value value_float(double f)
{
	return (struct value){.kind = VALUE_FLOAT, .f = f};
}
static inline struct value value_string(struct string *s)
{
	return (struct value){.kind = VALUE_STRING, .s = s};
}
static inline struct value value_list(enum value_kind kind, struct list *list)
{
	return (struct value){.kind = kind, .list = list};
}
static inline struct value value_dict(struct dict *dict)
{
	return (struct value){.kind = VALUE_DICT, .dict = dict};
}
/* True for an int, and for a bool, which counts as one in Python. */
static inline bool value_is_int(struct value v)
{
	return v.kind == VALUE_INT || v.kind == VALUE_BOOL;
}
static inline int64_t value_as_int(struct value v)
{
	return v.kind == VALUE_BOOL ? v.b : v.i;
}
static inline bool value_is_number(struct value v)
{
	return value_is_int(v) || v.kind == VALUE_FLOAT;
}
static inline double value_as_float(struct value v)
{
	return v.kind == VALUE_FLOAT ? v.f : (double)value_as_int(v);
}
static inline bool value_is_sequence(struct value v)
{
	return v.kind == VALUE_LIST || v.kind == VALUE_TUPLE || v.kind == VALUE_RANGE;
}

/* Python's name of the type, for messages. */
const char *value_type(struct value v);
bool value_truth(struct value v);
bool value_equal(struct render *r, struct value a, struct value b);
/* < 0, 0, > 0. operator (such as "<") is for the message when the two have no order. */
int value_compare(struct render *r, struct value a, struct value b, const char *operator);
/* Python's `item in container`. */
bool value_contains(struct render *r, struct value container, struct value item);
/* len(); fails for a value that has none. */
int64_t value_length(struct render *r, struct value v);
/* The items of any iterable value, in a list that must not be changed; an iterator is used up.
 * Fails for other values. */
struct list *value_items(struct render *r, struct value v);

struct list *list_new(struct render *r, size_t capacity);
void list_add(struct render *r, struct list *list, struct value item);

struct dict *dict_new(struct render *r);
/* The pair with this key, or NULL. Fails when the key cannot be a key. */
struct pair *dict_find(struct render *r, const struct dict *dict, struct value key);
void dict_set(struct render *r, struct dict *dict, struct value key, struct value value);
struct pair *dict_find_text(struct render *r, const struct dict *dict, const char *key);
void dict_set_text(struct render *r, struct dict *dict, const char *key, struct value value);
