#include "shared/base/config.h"

#include "shared/base/decimal.h"
#include "shared/base/file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const bool_words[][2] = {
	{"no", "yes"}, {"false", "true"}, {"off", "on"}, {"0", "1"}};

/* Reads a number with one of the suffixes. 0 needs none. */
static bool parse_number(const char *text, enum config_type type, double *out)
{
	const char *end;
	errno = 0;
	double value = decimal_read(text, &end);
	if (end == text || errno == ERANGE || !isfinite(value))
		return false;
	double factor = config_factor(type, end);
	*out = value * factor;
	return factor > 0 || (value == 0 && *end == '\0');
}

static bool is_number(enum config_type type)
{
	return type == CONFIG_INT || type == CONFIG_BYTES || type == CONFIG_NS ||
	       type == CONFIG_DOUBLE;
}

/* What is wrong with a value that the key refuses. */
static const char *wrong(const struct config_key *key, const char *value)
{
	double number;
	if (!*value)
		return "is empty";
	if (key->type == CONFIG_STRING)
		return "is too long";
	if (!is_number(key->type))
		return "is not allowed";
	if (parse_number(value, key->type, &number))
		return number > key->max   ? "is too large"
		       : number < key->min ? "is too small"
					   : "is no whole number";
	/* Only for a time is the bare number invalid. */
	return parse_number(value, CONFIG_INT, &number) ? "has no unit (ns, us, ms, s, m, h, d)"
							: "is not allowed";
}

static int refuse(
	const struct config_key *key, const char *value, const char *where, struct error *err)
{
	char range[256];
	config_range(key, range, sizeof(range));
	const char *unit = config_range_unit(key);
	return error_set(err, ENOEXEC, "%s%s%s = %s %s; %s takes %s%s%s", where, *where ? ": " : "",
		key->name, *value ? value : "\"\"", wrong(key, value), key->name, range,
		*unit ? " " : "", unit);
}

static int assign_number(const struct config_key *key, const char *value, void *field)
{
	double number;
	if (key->names && strcasecmp(value, key->names[0]) == 0) {
		*(int64_t *)field = 0;
		return 0;
	}
	if (!parse_number(value, key->type, &number) || number < key->min || number > key->max)
		return -EINVAL;
	if (key->type == CONFIG_DOUBLE) {
		*(double *)field = number;
		return 0;
	}
	if (number != floor(number))
		return -EINVAL;
	*(int64_t *)field = (int64_t)number;
	return 0;
}

static int assign_bool(const char *value, bool *field)
{
	for (size_t i = 0; i < sizeof(bool_words) / sizeof(bool_words[0]); i++)
		for (int b = 0; b < 2; b++)
			if (strcasecmp(value, bool_words[i][b]) == 0) {
				*field = b;
				return 0;
			}
	return -EINVAL;
}

static int assign_enum(const struct config_key *key, const char *value, int *field)
{
	for (int i = 0; key->names[i]; i++)
		if (strcasecmp(value, key->names[i]) == 0) {
			*field = i;
			return 0;
		}
	return -EINVAL;
}

int config_assign(const struct config_key *key, const char *value, const char *where, void *out,
	struct error *err)
{
	void *field = (char *)out + key->offset;
	int r = 0;
	switch (key->type) {
	case CONFIG_INT:
	case CONFIG_BYTES:
	case CONFIG_NS:
	case CONFIG_DOUBLE:
		r = assign_number(key, value, field);
		break;
	case CONFIG_BOOL:
		r = assign_bool(value, field);
		break;
	case CONFIG_ENUM:
		r = assign_enum(key, value, field);
		break;
	case CONFIG_STRING:
		if (strlen(value) >= key->size)
			r = -EINVAL;
		else
			memcpy(field, value, strlen(value) + 1);
		break;
	}
	return r == 0 ? 0 : refuse(key, value, where, err);
}

static const struct config_key *find_key(
	const struct config_key *keys, const char *section, const char *name)
{
	for (const struct config_key *key = keys; key->name; key++)
		if (strcmp(key->section ? key->section : "", section) == 0 &&
			strcmp(key->name, name) == 0)
			return key;
	return NULL;
}

const struct config_key *config_find(const struct config_key *keys, const char *name)
{
	char section[128];
	const char *dot = strchr(name, '.');
	const struct config_key *key = find_key(keys, "", name);
	if (key || !dot || (size_t)(dot - name) >= sizeof(section))
		return key;
	snprintf(section, sizeof(section), "%.*s", (int)(dot - name), name);
	return find_key(keys, section, dot + 1);
}

void config_defaults(const struct config_key *keys, void *out)
{
	for (const struct config_key *key = keys; key->name; key++) {
		struct error err;
		int r = config_assign(key, key->fallback, "default", out, &err);
		assert(r == 0);
		(void)r;
	}
}

static int unknown_key(
	const struct config_key *keys, const char *name, const char *where, struct error *err)
{
	const struct config_key *nearest = config_nearest(keys, name);
	const char *dot = strrchr(name, '.');

	/* In a process's own file its name does not stand before the key. */
	if (!nearest && dot)
		nearest = config_nearest(keys, dot + 1);
	char own[128] = "";
	if (nearest)
		config_name(nearest, own, sizeof(own));
	return error_set(err, ENOEXEC, "%s: unknown key %s%s%s%s", where, name,
		nearest ? "; did you mean " : "", own, nearest ? "?" : "");
}

struct reading {
	const struct config_key *keys;
	void *out;
	const char *path;
	bool *given; /* by index; may be NULL */
	struct error *err;
	int line, result;
};

/* libinih's handler: 1 continues, 0 marks the line as wrong. */
static int on_key(void *user, const char *section, const char *name, const char *value, int line)
{
	struct reading *reading = user;
	if (reading->result < 0)
		return 0;
	char where[600];
	snprintf(where, sizeof(where), "%s:%d", reading->path, line);
	const struct config_key *key = find_key(reading->keys, section, name);
	if (!key) {
		char full[600];
		snprintf(full, sizeof(full), "%s%s%s", section, *section ? "." : "", name);
		reading->result = unknown_key(reading->keys, full, where, reading->err);
	} else {
		reading->result = config_assign(key, value, where, reading->out, reading->err);
	}
	if (reading->result == 0 && reading->given)
		reading->given[key - reading->keys] = true;
	return reading->result == 0;
}

/* Only builds of the library with INI_HANDLER_LINENO tell the line number; otherwise it is counted
 * by the reader. */
struct line_counter {
	FILE *file;
	struct reading *reading;
};

/* Reads one line without its leading blanks. The library takes a line that begins with a blank as
 * the continuation of the previous value, so an indented key would silently become part of another
 * key's value. */
static char *next_line(char *buffer, int bytes, void *stream)
{
	struct line_counter *counter = stream;
	struct reading *reading = counter->reading;
	int n = 0, c;
	reading->line++;
	while (reading->result == 0 && (c = getc(counter->file)) != EOF) {
		if (c == '\0')
			reading->result = error_set(reading->err, ENOEXEC,
				"%s:%d: a byte of value 0: not a text file", reading->path,
				reading->line);
		else if (n + 1 == bytes) /* the library would take the rest for a line of its own */
			reading->result = error_set(reading->err, ENOEXEC,
				"%s:%d: the line is longer than %d characters", reading->path,
				reading->line, bytes - 2);
		else if (n > 0 || (c != ' ' && c != '\t'))
			buffer[n++] = (char)c;
		if (c == '\n')
			break;
	}
	buffer[n] = '\0';
	return reading->result < 0 || n == 0 ? NULL : buffer;
}

static int on_key_counted(void *user, const char *section, const char *name, const char *value)
{
	struct reading *reading = user;
	return on_key(reading, section, name, value, reading->line);
}

int config_read(
	FILE *file, const char *path, const struct config_key *keys, void *out, struct error *err)
{
	return config_read_given(file, path, keys, out, NULL, err);
}

int config_read_given(FILE *file, const char *path, const struct config_key *keys, void *out,
	bool *given, struct error *err)
{
	struct reading reading = {
		.keys = keys, .out = out, .path = path, .given = given, .err = err};
	struct line_counter counter = {.file = file, .reading = &reading};
	errno = 0;
	int r = ini_parse_stream(next_line, &counter, on_key_counted, &reading);
	if (reading.result < 0)
		return reading.result;
	if (ferror(file)) {
		int why = errno ? errno : EIO;
		return error_set(err, why, "%s: %s", path, strerror(why));
	}
	if (r < 0)
		return error_set(err, ENOMEM, "%s: no memory to read it", path);
	if (r > 0)
		return error_set(err, ENOEXEC, "%s:%d: not a \"key = value\" line", path, r);
	return 0;
}

static int read_file(const char *path, const struct config_key *keys, void *out, struct error *err)
{
	FILE *file;
	int r = file_open(path, &file, err);
	if (r < 0)
		return r;
	r = config_read(file, path, keys, out, err);
	fclose(file);
	return r;
}

static int is_drop_in(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);
	return entry->d_name[0] != '.' && n > 5 && strcmp(entry->d_name + n - 5, ".conf") == 0;
}

static int read_drop_ins(const char *path, const char *except, const struct config_key *keys,
	void *out, struct error *err)
{
	char directory[4096];
	if ((size_t)snprintf(directory, sizeof(directory), "%s.d", path) >= sizeof(directory))
		return error_set(err, ENAMETOOLONG, "%s: the path is too long", path);
	struct dirent **entries;
	int n = scandir(directory, &entries, is_drop_in, alphasort);
	if (n < 0)
		return errno == ENOENT
			       ? 0
			       : error_set(err, errno, "%s: %s", directory, strerror(errno));
	int r = 0;
	for (int i = 0; i < n; i++) {
		char name[4096 + 257];
		snprintf(name, sizeof(name), "%s/%s", directory, entries[i]->d_name);
		if (r == 0 && !(except && strcmp(entries[i]->d_name, except) == 0))
			r = read_file(name, keys, out, err);
		free(entries[i]);
	}
	free(entries);
	return r;
}

int config_load(const char *path, bool optional, const struct config_key *keys, void *out,
	struct error *err)
{
	return config_load_without(path, optional, NULL, keys, out, err);
}

int config_load_without(const char *path, bool optional, const char *drop_in,
	const struct config_key *keys, void *out, struct error *err)
{
	if (!path)
		return 0;
	int r = read_file(path, keys, out, err);
	if (r == -ENOENT && optional)
		r = 0;
	return r < 0 ? r : read_drop_ins(path, drop_in, keys, out, err);
}

int config_set(const char *assignment, const char *where, const struct config_key *keys, void *out,
	struct error *err)
{
	const char *equals = strchr(assignment, '=');
	if (!equals || equals == assignment)
		return error_set(
			err, ENOEXEC, "%s: \"%s\" is not of the form key=value", where, assignment);
	char name[128];
	size_t n = (size_t)(equals - assignment);
	if (n >= sizeof(name))
		return error_set(err, ENOEXEC, "%s: unknown key %.100s...", where, assignment);
	memcpy(name, assignment, n);
	name[n] = '\0';
	const struct config_key *key = config_find(keys, name);
	if (!key)
		return unknown_key(keys, name, where, err);
	return config_assign(key, equals + 1, where, out, err);
}

void config_print(const struct config_key *keys, FILE *to)
{
	const char *section = "";
	for (const struct config_key *key = keys; key->name; key++) {
		char range[256];
		const char *own = key->section ? key->section : "";
		if (strcmp(section, own) != 0)
			fprintf(to, "[%s]\n", own);
		section = own;
		const char *unit = config_range_unit(key);
		config_range(key, range, sizeof(range));
		fprintf(to, "# %s\n# %s%s%s; default: %s\n#%s = %s\n\n", key->help, range,
			*unit ? ", " : "", unit, *key->fallback ? key->fallback : "(empty)",
			key->name, key->fallback);
	}
}
