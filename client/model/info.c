/* outrider-model info: the content of a GGUF file, and whether this engine can run it. */
#include "client/model/args.h"
#include "client/model/engine.h"
#include "client/model/file_commands.h"
#include "client/model/summary.h"
#include "shared/model/arch/model.h"
#include "shared/base/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

static void print_string(struct gguf_string s)
{
	engine_json_string(stdout, s.data, s.bytes);
}

/* Scalars as JSON values; arrays and strings in their short text form. */
static void print_json_value(const struct gguf *gguf, size_t i)
{
	struct gguf_string key = gguf_key_at(gguf, i);
	char name[256], text[512];
	uint64_t integer;
	double number;
	bool flag;
	gguf_value_text(gguf, i, text, sizeof(text));
	name[0] = '\0';
	if (key.bytes < sizeof(name) && !memchr(key.data, 0, key.bytes)) {
		memcpy(name, key.data, key.bytes);
		name[key.bytes] = '\0';
	}
	if (name[0] && (gguf_get_u64(gguf, name, 0, UINT64_MAX, &integer, NULL) == 0 ||
			       (gguf_get_f64(gguf, name, &number, NULL) == 0 && isfinite(number)) ||
			       gguf_get_bool(gguf, name, &flag, NULL) == 0))
		fputs(text, stdout);
	else
		engine_json_string(stdout, text, strlen(text));
}

static void print_json_model(const struct model *m, const struct error *why)
{
	if (!m) {
		fputs("null, \"reason\": ", stdout);
		engine_json_string(stdout, why->text, strlen(why->text));
		return;
	}
	const struct model_config *c = &m->config;
	printf("{\"architecture\": \"%s\", \"layers\": %u, \"embedding\": %u, \"heads\": %u, "
	       "\"kv_heads\": %u, \"head_length\": %u, \"feed_forward\": %u, \"experts\": %u, "
	       "\"experts_used\": %u, \"expert_feed_forward\": %u, \"vocabulary\": %u, "
	       "\"context\": %u, "
	       "\"expert_bytes\": %" PRIu64 ", \"fingerprint\": \"%016" PRIx64
	       "\", \"packed\": %s}",
		c->arch->name, c->n_layers, c->n_embd, c->n_heads, c->n_kv_heads, c->head_dim,
		c->n_ff, c->n_experts, c->n_experts_used, c->n_expert_ff, c->n_vocab, c->n_context,
		m->expert_bytes_total, m->fingerprint, m->packed ? "true" : "false");
}

static void print_json_tensor(const struct gguf_tensor *t)
{
	fputs("{\"name\": ", stdout);
	print_string(t->name);
	printf(", \"type\": \"%s\", \"shape\": [", gguf_tensor_type_name(t->type));
	for (uint32_t d = 0; d < t->n_dims; d++)
		printf("%s%" PRIu64, d ? ", " : "", t->ne[d]);
	printf("], \"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"expert\": %s}", t->offset,
		t->bytes, summary_is_expert(t) ? "true" : "false");
}

static void print_json_summary(const struct gguf *gguf)
{
	struct summary s;
	bool first = true;
	summary_make(gguf, &s);
	printf("{\"weight_bytes\": %" PRIu64 ", \"resident_bytes\": %" PRIu64
	       ", \"expert_bytes\": %" PRIu64 ", \"bytes_per_token\": %" PRIu64
	       ", \"resident_bytes_per_token\": %" PRIu64 ", \"expert_bytes_per_token\": %" PRIu64
	       ", \"types\": {",
		s.bytes, s.resident_bytes, s.expert_bytes,
		s.token_resident_bytes + s.token_expert_bytes, s.token_resident_bytes,
		s.token_expert_bytes);
	for (uint32_t type = 0; type < SUMMARY_TYPES; type++) {
		if (!s.types[type].n)
			continue;
		printf("%s\"%s\": {\"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
			first ? "" : ", ", gguf_tensor_type_name(type), s.types[type].n,
			s.types[type].bytes);
		first = false;
	}
	fputs("}, \"parts\": [", stdout);
	for (size_t i = 0; i < gguf_n_parts(gguf); i++) {
		const struct gguf_part *part = gguf_part_at(gguf, i);
		fputs(i ? ", {\"file\": " : "{\"file\": ", stdout);
		engine_json_string(stdout, part->path, strlen(part->path));
		printf(", \"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", part->base,
			part->bytes);
	}
	fputs("]}", stdout);
}

static void print_json(const struct gguf *gguf, const struct model *m, const struct error *why)
{
	fputs("{\"file\": ", stdout);
	engine_json_string(stdout, gguf_path(gguf), strlen(gguf_path(gguf)));
	printf(", \"version\": %u, \"bytes\": %zu, \"model\": ", gguf_version(gguf),
		gguf_bytes(gguf));
	print_json_model(m, why);
	fputs(", \"summary\": ", stdout);
	print_json_summary(gguf);
	fputs(", \"keys\": {", stdout);
	for (size_t i = 0; i < gguf_n_keys(gguf); i++) {
		fputs(i ? ", " : "", stdout);
		print_string(gguf_key_at(gguf, i));
		fputs(": ", stdout);
		print_json_value(gguf, i);
	}
	fputs("}, \"tensors\": [", stdout);
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		fputs(i ? ", " : "", stdout);
		print_json_tensor(gguf_tensor_at(gguf, i));
	}
	fputs("]}\n", stdout);
}

static void print_text_model(const struct model *m, const struct error *why)
{
	if (!m) {
		printf("not a model this engine runs: %s\n", why->text);
		return;
	}
	const struct model_config *c = &m->config;
	printf("model        %s, %u layers, embedding %u, %u heads (%u for k and v) of %u\n",
		c->arch->name, c->n_layers, c->n_embd, c->n_heads, c->n_kv_heads, c->head_dim);
	if (c->n_experts)
		printf("experts      %u per layer, %u used, width %u, %s in all%s\n", c->n_experts,
			c->n_experts_used, c->n_expert_ff, UNITS_SIZE(m->expert_bytes_total),
			m->packed ? ", packed: each is one read" : "");
	else
		printf("feed-forward %u\n", c->n_ff);
	printf("vocabulary   %u\ncontext      %u\n", c->n_vocab, c->n_context);
}

static void print_text_summary(const struct gguf *gguf)
{
	struct summary s;
	const char *separator = "types        ";
	summary_make(gguf, &s);
	printf("weights      %s: %s resident, %s of experts\n", UNITS_SIZE(s.bytes),
		UNITS_SIZE(s.resident_bytes), UNITS_SIZE(s.expert_bytes));
	if (s.expert_bytes && s.n_experts && s.n_moe_layers)
		printf("one expert   %s; %" PRIu64 " of %" PRIu64 " used in each of %u layers\n",
			UNITS_SIZE(s.expert_bytes / s.n_experts / s.n_moe_layers), s.n_used,
			s.n_experts, s.n_moe_layers);
	printf("one token    reads %s: %s resident, %s of experts\n",
		UNITS_SIZE(s.token_resident_bytes + s.token_expert_bytes),
		UNITS_SIZE(s.token_resident_bytes), UNITS_SIZE(s.token_expert_bytes));
	for (uint32_t type = 0; type < SUMMARY_TYPES; type++) {
		if (!s.types[type].n)
			continue;
		printf("%s%s %s (%" PRIu64 ")", separator, gguf_tensor_type_name(type),
			UNITS_SIZE(s.types[type].bytes), s.types[type].n);
		separator = ", ";
	}
	putchar('\n');
	for (size_t i = 1; i < gguf_n_parts(gguf); i++)
		printf("part %-7zu %s\n", i + 1, gguf_part_at(gguf, i)->path);
}

static void print_text(const struct gguf *gguf, const struct model *m, const struct error *why)
{
	char text[100];
	printf("file         %s\nformat       GGUF version %u, %zu bytes\n", gguf_path(gguf),
		gguf_version(gguf), gguf_bytes(gguf));
	print_text_model(m, why);
	print_text_summary(gguf);
	printf("\n%zu keys\n", gguf_n_keys(gguf));
	for (size_t i = 0; i < gguf_n_keys(gguf); i++) {
		gguf_value_text(gguf, i, text, sizeof(text));
		printf("  %-44s %s\n", gguf_name_text(gguf_key_at(gguf, i)).text, text);
	}
	printf("\n%zu tensors\n", gguf_n_tensors(gguf));
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
		printf("  %-36s %-8s %-8s %12" PRIu64 "  ", gguf_name_text(t->name).text,
			gguf_tensor_type_name(t->type),
			summary_is_expert(t) ? "expert" : "resident", t->bytes);
		for (uint32_t d = 0; d < t->n_dims; d++)
			printf("%s%" PRIu64, d ? " x " : "", t->ne[d]);
		putchar('\n');
	}
}

static int show(const char *path, bool json)
{
	struct error err = {""}, why = {""};
	struct gguf *gguf, *again;
	struct model *m = NULL;
	int rc = gguf_open(path, &gguf, &err);
	if (rc)
		return engine_fail(rc, &err);
	/* Loading takes the file over, so the model gets a mapping of its own. */
	rc = gguf_open(path, &again, &err);
	if (!rc && model_load_gguf(&again, &m, &why) == -ENOMEM)
		rc = error_set(&err, ENOMEM, "%s", why.text);
	if (!rc && json)
		print_json(gguf, m, &why);
	else if (!rc)
		print_text(gguf, m, &why);
	model_free(&m);
	gguf_close(&gguf);
	return rc ? engine_fail(rc, &err) : EX_OK;
}

int command_info(int argc, char **argv)
{
	const char *model = NULL, *format = "text";
	bool help = false;
	struct error err = {""};
	const struct arg args[] = {
		{"FILE", ARG_FILE, &model, 0, 0, NULL,
			"the GGUF file, or a split one's first part"},
		{"model", ARG_STRING, &model, 0, 0, "FILE", "the same"},
		{"format", ARG_FORMAT, &format, 0, 0, "text|json", "output format, default text"},
		{"help", ARG_FLAG, &help, 0, 0, NULL, "print this text"},
		{0},
	};
	int rc = args_parse(argc, argv, args, &err);
	if (rc)
		return engine_usage(&err);
	if (help) {
		puts("usage: outrider-model info FILE [--format text|json]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	bool json = strcmp(format, "json") == 0;
	if (!model)
		error_set(&err, EINVAL, "info needs a FILE");
	else if (!json && strcmp(format, "text") != 0)
		error_set(&err, EINVAL, "--format: \"%s\", allowed are text and json", format);
	return err.text[0] ? engine_usage(&err) : show(model, json);
}
