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
	CONFIG_NS, /* int64_t nanoseconds; suffixes ns us ms s m h; min..max */
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
	const char *const *names;
	const char *fallback; /* the default, as it would be written in the file */
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

/* Applies one "name=value" or "section.name=value"; where names the origin in messages ("command line"). */
int config_set(const char *assignment, const char *where, const struct config_key *keys, void *out,
	struct error *err);

/* Writes a commented file with every key, its unit, range and default: what config/X.conf is made of. */
void config_print(const struct config_key *keys, FILE *to);
