#include "shared/model/text/template/template.h"

#include "shared/model/text/template/json.h"
#include "shared/model/text/template/parser.h"
#include "shared/model/text/template/render.h"

#include <stdlib.h>
#include <string.h>

enum { SOURCE_BYTES_MAX = 1 << 20, PARSE_BYTES_MAX = 256 << 20 };

struct template
{
	struct arena arena;
	struct source source;
	struct node_list body;
};

const struct template_limits template_limits_default = {
	.steps = 20000000,
	.depth = 800,
	.output_bytes = 32 << 20,
	.memory_bytes = 256 << 20,
};

/* Line ends become \n; a line end at the very end is dropped. */
static void copy_source(struct template *t, const char *source, size_t bytes)
{
	char *text = arena_array(&t->arena, bytes, 1);
	size_t n = 0;
	for (size_t i = 0; i < bytes; i++) {
		if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n')
			continue;
		text[n++] = source[i] == '\r' ? '\n' : source[i];
	}
	if (n && text[n - 1] == '\n')
		n--;
	t->source = (struct source){text, n};
}

static int parse(struct template *t, const char *source, size_t bytes)
{
	struct tokens tokens = {0};
	if (setjmp(t->arena.unwind))
		return t->arena.rc;
	copy_source(t, source, bytes);
	lexer_run(&t->arena, &t->source, &tokens);
	parser_run(&t->arena, &t->source, &tokens, &t->body);
	t->arena.err = NULL;
	return 0;
}

int template_parse(const char *source, size_t bytes, struct template **out, struct error *err)
{
	*out = NULL;
	if (bytes > SOURCE_BYTES_MAX)
		return error_set(err, E2BIG, "the template has %zu bytes; at most %d are supported",
			bytes, SOURCE_BYTES_MAX);
	struct template *t = malloc(sizeof(*t));
	if (!t)
		return error_set(err, ENOMEM, "no memory for a template");
	memset(t, 0, sizeof(*t));
	arena_init(&t->arena, PARSE_BYTES_MAX, err);
	int rc = parse(t, source, bytes);
	if (rc) {
		template_free(&t);
		return rc;
	}
	*out = t;
	return 0;
}

void template_free(struct template **template)
{
	if (!*template)
		return;
	arena_exit(&(*template)->arena);
	free(*template);
	*template = NULL;
}

const struct source *template_source(const struct template *template)
{
	return &template->source;
}

static int render(struct render *r, const struct template_input *input, struct builder *b)
{
	if (setjmp(r->arena.unwind))
		return r->arena.rc;
	builder_init(b, &r->arena, r->limits->output_bytes);
	r->out = b;
	r->variables = dict_new(r);
	/* transformers passes these two to every template: None, not undefined, when there are
	 * none. */
	dict_set_text(r, r->variables, "tools", value_none());
	dict_set_text(r, r->variables, "documents", value_none());
	json_load_members(r, r->variables, input->data, false);
	json_load_members(r, r->variables, input->trusted, true);
	r->scope = scope_push(r, NULL);
	exec_body(r, r->template->body.items, r->template->body.n);
	return 0;
}

/* Copies the text out of the arena into memory that the caller frees. */
static int copy_out(const struct builder *b, struct template_text *out, struct error *err)
{
	out->data = malloc(b->bytes + 1);
	out->literal = malloc(b->bytes + 1);
	if (!out->data || !out->literal) {
		template_text_free(out);
		return error_set(err, ENOMEM, "no memory for a text of %zu bytes", b->bytes);
	}
	if (b->bytes)
		memcpy(out->data, b->data, b->bytes);
	out->data[b->bytes] = '\0';
	if (b->any_literal && b->any_data)
		memcpy(out->literal, b->mask, b->bytes);
	else
		memset(out->literal, b->any_literal, b->bytes);
	out->literal[b->bytes] = 0;
	out->bytes = b->bytes;
	return 0;
}

/* Errors of limits (memory, the size of a text) have no position of their own: what was being
 * evaluated at that moment is named. */
static int add_position(struct render *r, int rc, struct error *err)
{
	size_t line, column;
	if (!err || strncmp(err->text, "template line", 13) == 0)
		return rc;
	source_position(template_source(r->template), r->at, &line, &column);
	return error_prefix(err, rc, "template line %zu, column %zu", line, column);
}

int template_render(const struct template *template, const struct template_input *input,
	const struct template_limits *limits, struct template_text *out, struct error *err)
{
	struct render r = {.template = template, .now = input->now};
	struct builder b;
	memset(out, 0, sizeof(*out));
	memset(&b, 0, sizeof(b));
	r.limits = limits ? limits : &template_limits_default;
	arena_init(&r.arena, r.limits->memory_bytes, err);
	int rc = render(&r, input, &b);
	if (rc)
		rc = add_position(&r, rc, err);
	else
		rc = copy_out(&b, out, err);
	out->wrote_parts = rc == 0 && r.wrote_parts;
	out->wrote_values = rc == 0 && r.wrote_values;
	arena_exit(&r.arena);
	if (r.locale)
		freelocale(r.locale);
	return rc;
}

void template_text_free(struct template_text *text)
{
	free(text->data);
	free(text->literal);
	memset(text, 0, sizeof(*text));
}
