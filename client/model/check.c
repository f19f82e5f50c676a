/* outrider-model check: finds everything that is wrong with a file, not only the first problem: in
 * its structure, metadata, tensors and shapes, vocabulary, and every weight. */
#include "client/model/check.h"

#include "client/model/args.h"
#include "client/model/engine.h"
#include "client/model/file_commands.h"
#include "shared/base/plural.h"
#include "shared/model/gguf/gguf_scan.h"
#include "shared/model/arch/pack.h"
#include "shared/model/arch/model.h"
#include "shared/base/units.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum { NAMES_MAX = 1024 };

struct check {
	const char *path;
	bool json, quiet;
	uint64_t n_problems, n_tensors, bytes, scanned;
	/* Tensors that were left out because of a problem: that the model misses them need not be
	 * reported. */
	char *names[NAMES_MAX];
	size_t n_names;
	char *notes[8];
	size_t n_notes;
};

/* The tensor that a message is about: the word after "tensor ", without its colon. malloc'd, or
 * NULL. */
static char *tensor_of(const char *message)
{
	const char *word = strstr(message, "tensor ");
	if (!word)
		return NULL;
	word += strlen("tensor ");
	return strndup(word, strcspn(word, " :"));
}

static bool has_word(const char *text, const char *word)
{
	size_t n = strlen(word);
	for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
		if ((at == text || at[-1] == ' ') && strchr(" ,:)", at[n]))
			return true;
	return false;
}

/* Whether a message reports a tensor as missing that was left out, or one in whose place that one
 * might be. */
static bool is_no_news(struct check *c, const char *message)
{
	char *name = tensor_of(message);
	bool known = false;
	for (size_t i = 0; name && !known && i < c->n_names; i++)
		known = has_word(message, c->names[i]);
	bool missing = name && strstr(message, " is missing") != NULL;
	if (name && !known && c->n_names < NAMES_MAX)
		c->names[c->n_names++] = name;
	else
		free(name);
	return known && missing;
}

static void clear_progress(const struct check *c)
{
	if (!c->quiet && c->scanned)
		fputs("\r\033[K", stderr);
}

void check_problem(void *arg, const char *message)
{
	struct check *c = arg;
	if (is_no_news(c, message))
		return;
	clear_progress(c);
	if (!c->json) {
		printf("%s\n", message);
	} else {
		fputs(c->n_problems ? ", " : "", stdout);
		engine_json_string(stdout, message, strlen(message));
	}
	c->n_problems++;
}

void check_problem_format(struct check *c, const char *format, ...)
{
	char text[512];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	check_problem(c, text);
}

void check_note(struct check *c, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	char *text = NULL;
	if (c->n_notes < sizeof(c->notes) / sizeof(c->notes[0]) &&
		vasprintf(&text, format, args) >= 0)
		c->notes[c->n_notes++] = text;
	va_end(args);
}

uint64_t check_n_problems(const struct check *c)
{
	return c->n_problems;
}

static void scan(struct check *c, const struct gguf *gguf)
{
	uint64_t shown = 0;
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
		struct gguf_scan s;
		if (!gguf_scan_tensor(gguf, t, false, &s))
			check_note(c, "tensor %s: the scales of type %s are not checked",
				gguf_name_text(t->name).text, gguf_tensor_type_name(t->type));
		else if (s.n)
			check_problem_format(c,
				"tensor %s: %s at column %" PRIu64 " of row %" PRIu64
				" is %s (%" PRIu64 " like that in the tensor)",
				gguf_name_text(t->name).text, s.what, s.column, s.row, s.value,
				s.n);
		c->scanned += t->bytes;
		if (!c->quiet && c->scanned - shown >= (64 << 20)) {
			shown = c->scanned;
			fprintf(stderr, "\r%.1f of %.1f GiB", (double)shown / (1 << 30),
				(double)c->bytes / (1 << 30));
		}
	}
	clear_progress(c);
}

/* The experts of a packed model, which scan() sees as bytes only. */
static void scan_packed(struct check *c, const struct model *model)
{
	for (uint32_t i = 0; i < model->config.n_layers; i++)
		for (int p = 0; model->layers[i].moe && p < PACK_PARTS; p++) {
			struct gguf_scan s;
			uint32_t expert = 0;
			int rc;
			bool known = pack_scan(model, i, p, false, &s, &expert, &rc);
			if (rc || !known)
				check_note(c,
					"tensor " PACK_TENSOR
					": the scales of the %s matrices are not checked",
					i, pack_part_name(p));
			else if (s.n)
				check_problem_format(c,
					"tensor " PACK_TENSOR ": %s at column %" PRIu64
					" of row %" PRIu64
					" of expert %u's %s matrix is %s (%" PRIu64
					" like that in such matrices of the layer)",
					i, s.what, s.column, s.row, expert, pack_part_name(p),
					s.value, s.n);
		}
}

static void say_nothing(void *arg, const char *problem)
{
	(void)arg;
	(void)problem;
}

/* Whether -errno is about the content of the file; otherwise (it is not there, no memory) nothing
 * is known about it. */
static bool about_content(int rc)
{
	return rc == -EBADMSG || rc == -EINVAL || rc == -ENOTSUP;
}

/* Loading takes its file over, so the file is opened again. */
static int check_model(struct check *c, struct gguf **gguf, struct error *err)
{
	struct model *model = NULL;
	int rc = model_load_gguf(gguf, &model, err);
	if (!rc && model->packed)
		scan_packed(c, model);
	model_free(&model);
	if (about_content(rc))
		check_problem(c, err->text);
	else if (rc == -ECANCELED && err->text[0])
		check_note(c, "%s", err->text);
	else if (rc && rc != -ECANCELED)
		return rc;
	return gguf_open_checked(c->path, say_nothing, NULL, gguf, err);
}

static int check_file(struct check *c, struct error *err)
{
	struct gguf *gguf;
	int rc = gguf_open_checked(c->path, check_problem, c, &gguf, err);
	if (about_content(rc)) {
		check_problem(c, err->text);
		return 0;
	}
	if (rc)
		return rc;
	c->n_tensors = gguf_n_tensors(gguf);
	c->bytes = gguf_bytes(gguf);
	rc = check_model(c, &gguf, err);
	if (rc)
		return rc;
	check_vocabulary(c, gguf);
	check_template(c, gguf);
	scan(c, gguf);
	gguf_close(&gguf);
	return 0;
}

static void finish(struct check *c, int rc)
{
	if (c->json) {
		fputs("], \"notes\": [", stdout);
		for (size_t i = 0; i < c->n_notes; i++) {
			fputs(i ? ", " : "", stdout);
			engine_json_string(stdout, c->notes[i], strlen(c->notes[i]));
		}
		printf("], \"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64
		       ", \"scanned_bytes\": %" PRIu64 "}\n",
			c->n_tensors, c->bytes, c->scanned);
	} else if (!rc) {
		for (size_t i = 0; i < c->n_notes; i++)
			printf("note: %s\n", c->notes[i]);
		printf("%s: %" PRIu64 " problem%s, %" PRIu64 " tensors, %s of weights read\n",
			c->path, c->n_problems, plural(c->n_problems), c->n_tensors,
			UNITS_SIZE(c->scanned));
	}
	for (size_t i = 0; i < c->n_notes; i++)
		free(c->notes[i]);
	for (size_t i = 0; i < c->n_names; i++)
		free(c->names[i]);
}

int command_check(int argc, char **argv)
{
	static struct check c;
	const char *format = "text";
	bool help = false;
	struct error err = {""};
	const struct arg args[] = {
		{"FILE", ARG_FILE, &c.path, 0, 0, NULL,
			"the GGUF file, or a split one's first part"},
		{"model", ARG_STRING, &c.path, 0, 0, "FILE", "the same"},
		{"format", ARG_FORMAT, &format, 0, 0, "text|json", "output format, default text"},
		{"quiet", ARG_FLAG, &c.quiet, 0, 0, NULL, "no progress"},
		{"help", ARG_FLAG, &help, 0, 0, NULL, "print this text"},
		{0},
	};
	if (args_parse(argc, argv, args, &err) < 0)
		return engine_usage(&err);
	if (help) {
		puts("usage: outrider-model check FILE [--format text|json]\n\n"
		     "Reads the whole file and reports every problem. Exits with 65 if there is "
		     "one.\n");
		args_help(args, stdout);
		return EX_OK;
	}
	c.json = strcmp(format, "json") == 0;
	c.quiet = c.quiet || !isatty(STDERR_FILENO);
	if (!c.path) {
		error_set(&err, EINVAL, "check needs a FILE");
		return engine_usage(&err);
	}
	if (!c.json && strcmp(format, "text") != 0) {
		error_set(&err, EINVAL, "--format: \"%s\", allowed are text and json", format);
		return engine_usage(&err);
	}
	if (c.json) {
		fputs("{\"file\": ", stdout);
		engine_json_string(stdout, c.path, strlen(c.path));
		fputs(", \"problems\": [", stdout);
	}
	int rc = check_file(&c, &err);
	finish(&c, rc);
	if (rc)
		return engine_fail(rc, &err);
	return c.n_problems ? EX_DATAERR : EX_OK;
}
