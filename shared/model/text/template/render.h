/*
 * The state of one rendering, and the functions that the interpreter's files share; no other file
 * includes it. A rendering belongs to one thread. Values and strings live in its arena until its
 * end. Errors end the rendering (render_fail), so functions return no codes.
 */
#pragma once

#include "shared/model/text/template/arena.h"
#include "shared/model/text/template/node.h"
#include "shared/model/text/template/template.h"
#include "shared/model/text/template/text.h"
#include "shared/model/text/template/value.h"

#include <locale.h>
#include <time.h>

struct binding {
	const struct string *name;
	struct value value;
};

struct scope {
	struct scope *parent;
	struct binding *bindings;
	size_t n, capacity;
	bool captured; /* a macro that was defined in it needs it later */
};

struct loop {
	struct list *items;
	size_t index;
	int64_t depth;
	struct value changed; /* what loop.changed() saw last, a tuple */
	const struct node *node; /* the node of a recursive loop; NULL for others */
	struct scope *scope;
};

struct render {
	struct arena arena;
	const struct template *template;
	const struct template_limits *limits;
	uint64_t steps;
	uint32_t depth;
	uint32_t at; /* offset in the source of what is being evaluated */
	struct scope *scope;
	struct builder *out;
	struct dict *variables; /* the variables that the caller passes */
	const struct tm *now;
	bool wrote_parts, wrote_values; /* for template_text */
	locale_t locale; /* for upper and lower case beyond ASCII; 0 until needed */
};

/* The evaluated arguments of one call. */
struct call {
	const struct value *args;
	size_t n_args;
	const struct pair *named; /* keys are strings */
	size_t n_named;
};

/*
 * A filter, test, method or global function. parameters: their names in order, separated by commas;
 * the first n_needed must be given. NULL: the function reads the call itself. args[] holds one
 * value per parameter, VALUE_MISSING for those not given.
 */
struct function {
	const char *name;
	struct value (*fn)(struct render *r, struct value self, const struct value *args,
		const struct call *call);
	const char *parameters;
	int n_needed;
};

enum {
	PARAMETERS_MAX = 5,
	RENDER_FORMAT =
		32, /* steps for writing or reading a float in decimal, and for writing a time */
};

/* Ends the rendering with "template line L, column C: " and the message. */
void render_fail(struct render *r, const char *format, ...)
	__attribute__((noreturn, format(printf, 2, 3)));
void render_fail_code(struct render *r, int code, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));
/* Counts work, and fails beyond the limit. A step takes from some ten to a few hundred ns. */
void render_charge(struct render *r, uint64_t steps);
/* Counts the work of reading this many bytes character by character, at least one step. */
void render_charge_text(struct render *r, size_t bytes);
/* Call both around everything that recurses: they count the depth. */
void render_enter(struct render *r);
void render_leave(struct render *r);
/* Fails when v is undefined, with a message that names it. */
void render_need_defined(struct render *r, struct value v);
/* The undefined value of a name, or of attribute or element `name` in a value of this type. */
struct value render_undefined(struct render *r, const char *type, struct value name);
struct value render_undefined_hint(struct render *r, const char *hint);

/* A string for a message: shortened, unprintable bytes as '?'. */
struct shown {
	char text[64];
};
struct shown shown(const struct string *s);

struct scope *scope_push(struct render *r, struct scope *parent);
void scope_set(
	struct render *r, struct scope *scope, const struct string *name, struct value value);
struct value scope_get(struct render *r, const struct string *name);
struct source;
const struct source *template_source(const struct template *template);

/* eval.c, exec.c, call.c */
struct value eval(struct render *r, const struct node *node);
enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
enum flow exec_body(struct render *r, struct node *const *body, size_t n);
void exec_assign(struct render *r, const struct node *target, struct value value);
struct value exec_loop(struct render *r, const struct node *node, struct value items,
	struct scope *scope, int64_t depth);
struct value call_value(struct render *r, struct value callee, const struct call *call);
void call_evaluate(struct render *r, const struct node *node, struct call *call);
/* Calls the CALL node. extra: one more named argument (caller), or NULL. */
struct value call_node(struct render *r, const struct node *node, const struct pair *extra);
struct value call_function(struct render *r, const struct function *function, struct value self,
	const struct call *call);
struct value call_filter(
	struct render *r, const struct string *name, struct value v, const struct call *call);
bool call_test(
	struct render *r, const struct string *name, struct value v, const struct call *call);

/* attribute.c: v.name and v[name]. */
struct value attribute_get(struct render *r, struct value v, const struct string *name);
struct value attribute_item(struct render *r, struct value v, struct value index);
/* "a.b.0" as filters take it, or an int. */
struct value attribute_path(struct render *r, struct value v, struct value path);
struct value attribute_slice(struct render *r, struct value v, const struct value bounds[3]);

/* operators.c */
struct value operator_binary(struct render *r, enum node_op op, struct value a, struct value b);
struct value operator_negate(struct render *r, struct value v);

/* print.c: str() and repr(). */
struct string *print_text(struct render *r, struct value v);
void print_to(struct render *r, struct builder *b, struct value v);
void print_repr(struct render *r, struct builder *b, struct value v);
void print_float(struct render *r, struct builder *b, double f);

/* json.c */
struct value json_dump(struct render *r, struct value v, const struct value *args);

/* sort.c: values sorted by their keys, both in place; equal keys keep their order. */
void list_sort(struct render *r, struct list *keys, struct list *values, bool reverse);

/* format.c: "..." % values and "...".format(). */
struct value format_percent(struct render *r, struct string *format, struct value values);
struct value format_braces(struct render *r, struct string *format, const struct call *call);

/* The tables; each ends with a name of NULL. */
extern const struct function filters_text[], filters_list[], filters_any[], filters_select[];
extern const struct function tests[];
extern const struct function methods_string[], methods_dict[], methods_list[], methods_loop[];
extern const struct function globals[];
const struct function *function_find(const struct function *table, const char *name, size_t bytes);
const struct function *filter_find(const struct string *name);
const struct function *test_find(const struct string *name);
