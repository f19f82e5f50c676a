/* Limits, failures and names of a rendering. */
#include "shared/model/text/template/render.h"

#include "shared/model/text/template/lexer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void render_fail(struct render *r, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int rc = source_error(&r->arena, template_source(r->template), r->at, EINVAL, format, args);
	va_end(args);
	arena_fail(&r->arena, rc);
}

void render_fail_code(struct render *r, int code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int rc = source_error(&r->arena, template_source(r->template), r->at, code, format, args);
	va_end(args);
	arena_fail(&r->arena, rc);
}

void render_charge(struct render *r, uint64_t steps)
{
	r->steps += steps;
	if (r->steps > r->limits->steps)
		render_fail_code(r, E2BIG, "the template takes more than %llu steps",
			(unsigned long long)r->limits->steps);
}

void render_charge_text(struct render *r, size_t bytes)
{
	render_charge(r, 1 + bytes / 16);
}

void render_enter(struct render *r)
{
	render_charge(r, 1);
	if (++r->depth > r->limits->depth)
		render_fail_code(r, E2BIG, "calls and values are nested more than %u deep",
			r->limits->depth);
}

void render_leave(struct render *r)
{
	r->depth--;
}

struct shown shown(const struct string *s)
{
	struct shown out;
	size_t n = s->bytes < sizeof(out.text) ? s->bytes : sizeof(out.text) - 1;
	for (size_t i = 0; i < n; i++)
		out.text[i] = (unsigned char)s->data[i] < 0x20 ? '?' : s->data[i];
	/* Not within a character. */
	if (n < s->bytes)
		while (n > 0 && (s->data[n] & 0xC0) == 0x80)
			n--;
	out.text[n] = '\0';
	return out;
}

struct value render_undefined(struct render *r, const char *type, struct value name)
{
	struct undefined *u = arena_alloc(&r->arena, sizeof(*u));
	u->type = type;
	u->name = name;
	return (struct value){.kind = VALUE_UNDEFINED, .undefined = u};
}

struct value render_undefined_hint(struct render *r, const char *hint)
{
	struct value v = render_undefined(r, NULL, value_none());
	struct undefined *u = arena_alloc(&r->arena, sizeof(*u));
	u->hint = hint;
	v.undefined = u;
	return v;
}

void render_need_defined(struct render *r, struct value v)
{
	if (v.kind != VALUE_UNDEFINED)
		return;
	const struct undefined *u = v.undefined;
	if (u->hint)
		render_fail(r, "%s", u->hint);
	if (u->name.kind != VALUE_STRING)
		render_fail(
			r, "a %s has no element %s", u->type, shown(print_text(r, u->name)).text);
	if (u->type)
		render_fail(r, "'%s' has no attribute '%s'", u->type, shown(u->name.s).text);
	render_fail(r, "'%s' is undefined", shown(u->name.s).text);
}

struct scope *scope_push(struct render *r, struct scope *parent)
{
	struct scope *scope = arena_alloc(&r->arena, sizeof(*scope));
	scope->parent = parent;
	return scope;
}

static struct binding *binding_of(struct render *r, struct scope *scope, const struct string *name)
{
	render_charge(r, scope->n * (8 + name->bytes) / 64);
	for (size_t i = 0; i < scope->n; i++)
		if (text_equal(scope->bindings[i].name, name))
			return &scope->bindings[i];
	return NULL;
}

void scope_set(struct render *r, struct scope *scope, const struct string *name, struct value value)
{
	struct binding *binding = binding_of(r, scope, name);
	if (!binding) {
		if (scope->n == scope->capacity) {
			size_t capacity = scope->capacity ? 2 * scope->capacity : 4;
			scope->bindings = arena_grow(&r->arena, scope->bindings, scope->n, capacity,
				sizeof(*scope->bindings));
			scope->capacity = capacity;
		}
		binding = &scope->bindings[scope->n++];
		binding->name = name;
	}
	binding->value = value;
}

struct value scope_get(struct render *r, const struct string *name)
{
	struct string *key = (struct string *)name;
	uint64_t n_scopes = 0;
	for (struct scope *scope = r->scope; scope; scope = scope->parent) {
		struct binding *binding = binding_of(r, scope, name);
		/* A few scopes are included in the step of the name itself. */
		if (++n_scopes % 8 == 0)
			render_charge(r, 1);
		if (binding)
			return binding->value;
	}
	const struct pair *pair = dict_find(r, r->variables, value_string(key));
	if (pair)
		return pair->value;
	const struct function *function = function_find(globals, name->data, name->bytes);
	if (function)
		return (struct value){.kind = VALUE_FUNCTION, .function = function};
	return render_undefined(r, NULL, value_string(key));
}

const struct function *function_find(const struct function *table, const char *name, size_t bytes)
{
	for (; table->name; table++)
		if (strlen(table->name) == bytes && memcmp(table->name, name, bytes) == 0)
			return table;
	return NULL;
}
