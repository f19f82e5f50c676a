/*
 * Configuration: one INI file per service (libinih), then the *.conf drop-ins of FILE.d/ in the
 * order of their names, then "key=value" overrides from the command line. Keys are a table, so that
 * the check, --help, the man page and the loader cannot disagree. Unknown keys, wrong types and
 * values out of range are errors; the message names the file, line, key and allowed range.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum config_type {
	CONFIG_INT, /* int64_t, min..max */
	CONFIG_BYTES, /* int64_t; suffixes K M G (1024); min..max */
	CONFIG_NS, /* int64_t nanoseconds; suffixes ns us ms s m h d; min..max */
	CONFIG_DOUBLE, /* double, min..max */
	CONFIG_BOOL, /* bool: yes no true false on off 1 0 */
	CONFIG_STRING, /* char[size] */
	CONFIG_ENUM, /* int: index into names, a NULL-terminated list */
};

/* What a value applies to: the whole process, the model that it serves, or (also) a single session.
 */
enum knob_scope { KNOB_GLOBAL, KNOB_MODEL, KNOB_SESSION };

/* The values of the field `live` of a row. */
#define KNOB_LIVE true
#define KNOB_AT_START false

struct config_key {
	const char *section; /* "" for none */
	const char *name;
	enum config_type type;
	size_t offset; /* of the field in the service's config struct */
	size_t size; /* of a string field, with its NUL */
	double min, max; /* range of an int, bytes, ns or double */
	/* Enum: its values. Int, bytes or ns: NULL, or {a word for 0, NULL}. String: NULL, or some
	 * values that it takes, for shell completion ("static:" is one that continues). */
	const char *const *names;
	const char *fallback; /* the default, as it would be written in the file */
	/* What a number counts; bytes and times are told by their type. String: what it accepts,
	 * written like a range; NULL: any text. Other types: NULL. */
	const char *unit;
	const char *help; /* one sentence */
	bool live; /* can change while the process runs (shared/ipc/daemon_knobs.h) */
	enum knob_scope scope;
};

/* Sets *out to the defaults of all keys. keys: an array ended by name == NULL. */
void config_defaults(const struct config_key *keys, void *out);

/* Reads the file and its drop-ins over *out. When `optional`, path may be NULL or missing. */
int config_load(const char *path, bool optional, const struct config_key *keys, void *out,
	struct error *err);

/* Reads one open file over *out. path: for messages. */
int config_read(
	FILE *file, const char *path, const struct config_key *keys, void *out, struct error *err);

/* Like config_read; also sets given[i] for each key that the file sets. given: NULL, or as long as
 * keys. */
int config_read_given(FILE *file, const char *path, const struct config_key *keys, void *out,
	bool *given, struct error *err);

/* config_load without the drop-in of this name: the configuration that would be in force without
 * it. */
int config_load_without(const char *path, bool optional, const char *drop_in,
	const struct config_key *keys, void *out, struct error *err);

/* Applies one "name=value" or "section.name=value". where: the origin, for messages ("command
 * line"). */
int config_set(const char *assignment, const char *where, const struct config_key *keys, void *out,
	struct error *err);

/* The key with the name "name" or "section.name"; NULL when there is none. */
const struct config_key *config_find(const struct config_key *keys, const char *name);
/* The key whose name is most like this unknown one, as a suggestion; NULL when none is similar. */
const struct config_key *config_nearest(const struct config_key *keys, const char *name);
size_t config_count(const struct config_key *keys);
/* Assigns a value to one key. where: the origin, for messages; "": none. */
int config_assign(const struct config_key *key, const char *value, const char *where, void *out,
	struct error *err);

/* Reads a key's text: "auto", which means automatic_ns, or a time of up to a second. The key itself
 * accepts any text, so that the meaning of "auto" can depend on the machine. Errors as in
 * config_assign. */
#define CONFIG_SPIN_RANGE "auto, or 0 to 1s"
int config_spin(const char *name, const char *text, uint64_t automatic_ns, uint64_t *out_ns,
	struct error *err);

/* Longest text of a value, with its NUL. */
enum { CONFIG_VALUE_BYTES = 4096 };
/* A key's value in the form that the file has, exactly. */
void config_value(const struct config_key *key, const void *config, char *out, size_t bytes);
/* The range of a key: "1 to 15", "yes or no", "auto, on, off". */
void config_range(const struct config_key *key, char *out, size_t bytes);
/* The unit of a key: "tokens"; "bytes" for sizes, "time" for times; "" when it is no number. */
const char *config_unit(const struct config_key *key);
/* The unit as printed after a range: "" for a time, whose range has units of its own. */
const char *config_range_unit(const struct config_key *key);
/* The factor of a suffix after a number of this type, in upper or lower case: "G" or "GiB" (2^30),
 * "GB" (10^9), "" for bytes, "ms" for a time (in ns). 0: no such suffix. */
double config_factor(enum config_type type, const char *suffix);
/* Writes a time as a person does, exactly: "10m", "1500ms". */
enum { CONFIG_TIME_BYTES = 32 };
const char *config_time(uint64_t ns, char *out, size_t bytes);
/* "integer", "bytes", "time", "number", "yes or no", "text", "choice" */
const char *config_type_name(enum config_type type);
/* "name", or "section.name". */
void config_name(const struct config_key *key, char *out, size_t bytes);
bool config_equal(const struct config_key *key, const void *a, const void *b);
/* Whether a text, choice, or yes or no is as by default, letter by letter. */
bool config_is_default(const struct config_key *key, const void *config);
void config_copy(const struct config_key *key, const void *from, void *to);

/* Writes a commented file with every key, its unit, range and default: this makes config/X.conf. */
void config_print(const struct config_key *keys, FILE *to);
