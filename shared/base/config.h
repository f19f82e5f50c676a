/*
 * Configuration: one INI file per service (libinih), then the *.conf drop-ins of FILE.d/ in name order, then
 * "key=value" overrides from the command line. Keys are a table, so that the check, --help, the man page and
 * the loader cannot disagree. Unknown keys, wrong types and values out of range are errors that name the file,
 * line, key and allowed range.
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

/* What a value is about: the whole process, the model it serves, or (also) one session. */
enum knob_scope { KNOB_GLOBAL, KNOB_MODEL, KNOB_SESSION };

/* How the last two fields of a row are written. */
#define KNOB_LIVE true
#define KNOB_AT_START false

struct config_key {
	const char *section; /* "" for none */
	const char *name;
	enum config_type type;
	size_t offset; /* of the field in the service's config struct */
	size_t size; /* of a string field, with its NUL */
	double min, max; /* int, bytes, ns, double */
	/* Of an enum; of an int, bytes or ns NULL, or {a word for 0, NULL}; of a string NULL, or some of the values it takes, for
	 * a shell to complete ("static:" for one that goes on). */
	const char *const *names;
	const char *fallback; /* the default, as it would be written in the file */
	/* What a number counts, which bytes and times say by their type; of a string what it takes, as a range is written, NULL:
	 * any text; of the rest NULL. */
	const char *unit;
	const char *help; /* one sentence */
	bool live; /* may change while the process runs (shared/ipc/daemon_knobs.h) */
	enum knob_scope scope;
};

/* Fills *out with the defaults of keys (an array ended by name == NULL). */
void config_defaults(const struct config_key *keys, void *out);

/* Reads path (may be NULL or absent when optional) and its drop-ins over *out. */
int config_load(const char *path, bool optional, const struct config_key *keys, void *out,
	struct error *err);

/* Reads one file that is open over *out; path is for messages. */
int config_read(
	FILE *file, const char *path, const struct config_key *keys, void *out, struct error *err);

/* The same, and given[i] (an array as long as keys, or NULL) becomes true for each key that the file sets. */
int config_read_given(FILE *file, const char *path, const struct config_key *keys, void *out,
	bool *given, struct error *err);

/* config_load without the drop-in of this name: what is configured when that one is not there. */
int config_load_without(const char *path, bool optional, const char *drop_in,
	const struct config_key *keys, void *out, struct error *err);

/* Applies one "name=value" or "section.name=value"; where names the origin in messages ("command line"). */
int config_set(const char *assignment, const char *where, const struct config_key *keys, void *out,
	struct error *err);

/* The key of "name" or "section.name"; NULL. */
const struct config_key *config_find(const struct config_key *keys, const char *name);
/* The key whose name is most like this one, to suggest it for one that is not known; NULL when none is. */
const struct config_key *config_nearest(const struct config_key *keys, const char *name);
size_t config_count(const struct config_key *keys);
/* Gives one key its value; where names the origin in messages, "" says none. */
int config_assign(const struct config_key *key, const char *value, const char *where, void *out,
	struct error *err);

/* A key's text "auto", which is automatic_ns, or a time of up to a second; the key takes any text, so that what auto means can
 * depend on the machine. -EINVAL and the like as config_assign. */
#define CONFIG_SPIN_RANGE "auto, or 0 to 1s"
int config_spin(const char *name, const char *text, uint64_t automatic_ns, uint64_t *out_ns,
	struct error *err);

/* The longest text of a value, with its NUL. */
enum { CONFIG_VALUE_BYTES = 4096 };
/* A key's value as it would be written in the file, exactly. */
void config_value(const struct config_key *key, const void *config, char *out, size_t bytes);
/* What it takes: "1 to 15", "yes or no", "auto, on, off". */
void config_range(const struct config_key *key, char *out, size_t bytes);
/* What it counts: "tokens", of every size "bytes" and of every time "time"; "" of what is no number. */
const char *config_unit(const struct config_key *key);
/* The same as it stands behind a range: "" of a time, whose range has units of its own. */
const char *config_range_unit(const struct config_key *key);
/* What a suffix stands for behind a number of the type: "G", "GiB" (2^30), "GB" (10^9), "" behind bytes, "ms" behind a time
 * (in ns), in either case; 0: there is none such. */
double config_factor(enum config_type type, const char *suffix);
/* A time as a person writes it, exactly: "10m", "1500ms". */
enum { CONFIG_TIME_BYTES = 32 };
const char *config_time(uint64_t ns, char *out, size_t bytes);
/* "integer", "bytes", "time", "number", "yes or no", "text", "choice" */
const char *config_type_name(enum config_type type);
/* "name", or "section.name". */
void config_name(const struct config_key *key, char *out, size_t bytes);
bool config_equal(const struct config_key *key, const void *a, const void *b);
void config_copy(const struct config_key *key, const void *from, void *to);

/* Writes a commented file with every key, its unit, range and default: what config/X.conf is made of. */
void config_print(const struct config_key *keys, FILE *to);
