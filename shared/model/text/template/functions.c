/* Functions that every template can call. */
#include "shared/model/text/template/strings.h"

#include <string.h>

enum {
	RANGE_MAX = 100000, /* as the sandbox of jinja2 */
	FORMAT_MAX = 127,
};

#define FUNCTION(name)                                                                          \
	static struct value name(struct render *r, struct value self, const struct value *args, \
		const struct call *call)

FUNCTION(range)
{
	(void)self;
	(void)call;
	bool one = args[1].kind == VALUE_MISSING;
	int64_t start = one ? 0 : argument_int(r, args[0], 0, "the start of a range");
	int64_t stop = argument_int(r, args[!one], 0, "the end of a range");
	int64_t step = argument_int(r, args[2], 1, "the step of a range");
	if (step == 0)
		render_fail(r, "the step of a range cannot be 0");
	uint64_t n = 0;
	if (step > 0 && start < stop)
		n = ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1;
	else if (step < 0 && start > stop)
		n = ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step) + 1;
	if (n > RANGE_MAX)
		render_fail(r, "a range of more than %d numbers", RANGE_MAX);
	struct list *list = list_new(r, n);
	list->start = start;
	list->stop = stop;
	list->step = step;
	for (uint64_t i = 0; i < n; i++)
		list_add(r, list, value_int((int64_t)((uint64_t)start + i * (uint64_t)step)));
	return value_list(VALUE_RANGE, list);
}

/* Makes a dict from a dict or pairs, and from named arguments. */
static struct dict *make_dict(struct render *r, const struct call *call)
{
	struct dict *dict = dict_new(r);
	if (call->n_args > 1)
		render_fail(r, "dict takes at most one argument and named ones");
	if (call->n_args && call->args[0].kind == VALUE_DICT) {
		const struct dict *from = call->args[0].dict;
		for (size_t i = 0; i < from->n; i++)
			dict_set(r, dict, from->pairs[i].key, from->pairs[i].value);
	} else if (call->n_args) {
		const struct list *pairs = value_items(r, call->args[0]);
		for (size_t i = 0; i < pairs->n; i++) {
			const struct list *pair = value_items(r, pairs->items[i]);
			if (pair->n != 2)
				render_fail(
					r, "item %zu for a dict has %zu parts, not 2", i, pair->n);
			dict_set(r, dict, pair->items[0], pair->items[1]);
		}
	}
	for (size_t i = 0; i < call->n_named; i++)
		dict_set(r, dict, call->named[i].key, call->named[i].value);
	return dict;
}

FUNCTION(dict)
{
	(void)self;
	(void)args;
	return value_dict(make_dict(r, call));
}

FUNCTION(namespace)
{
	(void)self;
	(void)args;
	struct dict *dict = make_dict(r, call);
	for (size_t i = 0; i < dict->n; i++) {
		struct value key = dict->pairs[i].key;
		if (key.kind == VALUE_STRING && key.s->bytes && key.s->data[0] == '_')
			render_fail(r, "a namespace takes no names that begin with '_'");
	}
	return (struct value){.kind = VALUE_NAMESPACE, .dict = dict};
}

FUNCTION(raise_exception)
{
	(void)self;
	(void)call;
	const struct string *message = print_text(r, args[0]);
	int bytes = message->bytes < 380 ? (int)message->bytes : 380;
	render_fail(r, "%.*s", bytes, message->data);
}

FUNCTION(strftime_now)
{
	(void)self;
	(void)call;
	struct tm now;
	char text[512];
	if (args[0].kind != VALUE_STRING)
		render_fail(
			r, "the format of a time must be a string, not '%s'", value_type(args[0]));
	const struct string *format = args[0].s;
	if (format->bytes > FORMAT_MAX || memchr(format->data, 0, format->bytes))
		render_fail(
			r, "the format of a time may have at most %d bytes and no NUL", FORMAT_MAX);
	/* A copy that ends with a NUL. */
	char *pattern = arena_alloc(&r->arena, format->bytes + 1);
	memcpy(pattern, format->data, format->bytes);
	render_charge(r, RENDER_FORMAT);
	if (r->now) {
		now = *r->now;
	} else {
		time_t seconds = time(NULL);
		localtime_r(&seconds, &now);
	}
	size_t n = strftime(text, sizeof(text), pattern, &now);
	struct builder b;
	builder_init(&b, &r->arena, r->limits->output_bytes);
	builder_add(&b, text, n, format->literal && !format->mask);
	return value_string(builder_finish(&b));
}

const struct function globals[] = {
	{"range", range, "start,stop,step", 1},
	{"dict", dict, NULL, 0},
	{"namespace", namespace, NULL, 0},
	{"raise_exception", raise_exception, "message", 1},
	{"strftime_now", strftime_now, "format", 1},
	{NULL, NULL, NULL, 0},
};
