#include "client/model/args.h"

#include "shared/base/columns.h"
#include "shared/base/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_INDENT = 2 + 24 + 1 };

static int set_number(const struct arg *arg, const char *value, struct error *err)
{
	char *end;
	errno = 0;
	if (arg->type == ARG_FLOAT) {
		float x = strtof(value, &end);
		if (end == value || *end || !isfinite(x))
			return error_set(
				err, EINVAL, "--%s: \"%s\" is not a number", arg->name, value);
		*(float *)arg->out = x;
		return 0;
	}
	unsigned long long x = strtoull(value, &end, 10);
	uint64_t max = arg->type == ARG_U32 ? arg->max : UINT64_MAX;
	uint64_t min = arg->type == ARG_U32 ? arg->min : 0;
	if (end == value || *end || errno || strchr(value, '-') || x < min || x > max)
		return error_set(err, EINVAL, "--%s: \"%s\", allowed are %llu..%llu", arg->name,
			value, (unsigned long long)min, (unsigned long long)max);
	if (arg->type == ARG_U32)
		*(uint32_t *)arg->out = (uint32_t)x;
	else
		*(uint64_t *)arg->out = x;
	return 0;
}

static int add_string(const struct arg *arg, const char *value, struct error *err)
{
	struct arg_strings *list = arg->out;
	size_t most = sizeof(list->items) / sizeof(list->items[0]);
	if (list->n == most)
		return error_set(err, EINVAL, "--%s is given more than %zu times", arg->name, most);
	list->items[list->n++] = value;
	return 0;
}

static const struct arg *find(const struct arg *args, const char *name, size_t bytes)
{
	for (; args->name; args++)
		if (args->type != ARG_FILE && strlen(args->name) == bytes &&
			memcmp(args->name, name, bytes) == 0)
			return args;
	return NULL;
}

/* The option that takes the format, which --json sets, or NULL. */
static const struct arg *find_format(const struct arg *args)
{
	for (; args->name; args++)
		if (args->type == ARG_FORMAT)
			return args;
	return NULL;
}

/* The first argument without dashes that has no value so far, or NULL. */
static const struct arg *find_place(const struct arg *args)
{
	for (; args->name; args++)
		if (args->type == ARG_FILE && !*(const char **)args->out)
			return args;
	return NULL;
}

int args_parse(int argc, char **argv, const struct arg *args, struct error *err)
{
	for (int i = 1; i < argc; i++) {
		const struct arg *help = find(args, "help", 4);
		if (help && strcmp(argv[i], "-h") == 0) {
			*(bool *)help->out = true;
			continue;
		}
		if (strncmp(argv[i], "--", 2) != 0) {
			const struct arg *place = find_place(args);
			if (!place)
				return error_set(
					err, EINVAL, "unexpected argument \"%s\"", argv[i]);
			*(const char **)place->out = argv[i];
			continue;
		}
		const char *name = argv[i] + 2, *equals = strchr(name, '=');
		size_t bytes = equals ? (size_t)(equals - name) : strlen(name);
		const struct arg *arg = find(args, name, bytes), *format = find_format(args);
		if (!arg && format && strcmp(name, "json") == 0) {
			*(const char **)format->out = "json";
			continue;
		}
		if (!arg)
			return error_set(err, EINVAL,
				"unknown option \"--%.*s\"; --help lists them", (int)bytes, name);
		if (arg->type == ARG_FLAG) {
			if (equals)
				return error_set(err, EINVAL, "--%s takes no value", arg->name);
			*(bool *)arg->out = true;
			continue;
		}
		const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
		if (!value)
			return error_set(err, EINVAL, "--%s needs a value", arg->name);
		if (arg->type == ARG_STRING || arg->type == ARG_FORMAT) {
			*(const char **)arg->out = value;
			continue;
		}
		int rc = arg->type == ARG_STRINGS ? add_string(arg, value, err)
						  : set_number(arg, value, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

void args_help(const struct arg *args, FILE *to)
{
	for (; args->name; args++) {
		char left[64];
		snprintf(left, sizeof(left), "%s%s%s%s", args->type == ARG_FILE ? "" : "--",
			args->name, args->value ? " " : "", args->value ? args->value : "");
		char help[512];
		snprintf(help, sizeof(help), "%s%s", args->help,
			args->type == ARG_FORMAT ? "; --json is --format json" : "");
		columns_fold(to, help, fprintf(to, "  %-24s ", left), HELP_INDENT);
	}
}

int args_tokens(const char *text, int32_t **ids, uint32_t *n, struct error *err)
{
	static const char blanks[] = " \t\n";
	size_t most = strlen(text) / 2 + 1;
	int32_t *list = malloc(most * sizeof(*list));
	if (!list)
		return error_set(err, ENOMEM, "no memory for the token ids");
	*n = 0;
	bool comma = false;
	for (text += strspn(text, blanks); *text || comma;) {
		char *end;
		errno = 0;
		long id = strtol(text, &end, 10);
		if (end == text || (*end && !strchr(", \t\n", *end)) || errno || id < INT32_MIN ||
			id > INT32_MAX || *n >= LIMIT_CONTEXT) {
			free(list);
			return *text && *text != ','
				       ? error_set(err, EINVAL,
						 "--tokens: \"%.20s\" is not a "
						 "list of ids",
						 text)
				       : error_set(err, EINVAL, "--tokens: a comma without an id");
		}
		list[(*n)++] = (int32_t)id;
		text = end + strspn(end, blanks);
		comma = *text == ',';
		if (comma)
			text += 1 + strspn(text + 1, blanks);
	}
	*ids = list;
	return 0;
}
