/* Values and ranges as text, in the form that the file has. */
#include "shared/base/config.h"

#include "shared/base/nearest.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A list ends with text == NULL. */
struct config_suffix {
	const char *text;
	double factor;
	bool alias; /* is read, but not written */
};

/* "2G" and "2GiB" are 2 times 2^30, "2GB" is 2 times 10^9. */
static const struct config_suffix byte_suffixes[] = {{"K", 1024.0, false}, {"M", 1048576.0, false},
	{"G", 1073741824.0, false}, {"T", 1099511627776.0, false}, {"", 1.0, false},
	{"KiB", 1024.0, true}, {"MiB", 1048576.0, true}, {"GiB", 1073741824.0, true},
	{"TiB", 1099511627776.0, true}, {"KB", 1e3, false}, {"MB", 1e6, false}, {"GB", 1e9, false},
	{"TB", 1e12, false}, {"B", 1.0, true}, {NULL, 0, false}};
static const struct config_suffix time_suffixes[] = {{"ns", 1.0, false}, {"us", 1e3, false},
	{"ms", 1e6, false}, {"s", 1e9, false}, {"m", 60e9, false}, {"h", 3600e9, false},
	{"d", 86400e9, false}, {NULL, 0, false}};
static const struct config_suffix no_suffix[] = {{"", 1.0, false}, {NULL, 0, false}};

static const struct config_suffix *config_suffixes(enum config_type type)
{
	if (type == CONFIG_BYTES)
		return byte_suffixes;
	return type == CONFIG_NS ? time_suffixes : no_suffix;
}

double config_factor(enum config_type type, const char *suffix)
{
	for (const struct config_suffix *s = config_suffixes(type); s->text; s++)
		if (strcasecmp(s->text, suffix) == 0)
			return s->factor;
	return 0;
}

/* The shortest exact text of a value of this type, for messages and the commented file. */
static void format_number(enum config_type type, double value, char *out, size_t bytes)
{
	const struct config_suffix *best = NULL;
	for (const struct config_suffix *s = config_suffixes(type); s->text; s++)
		if (!s->alias && value != 0 && fmod(value, s->factor) == 0 &&
			(!best || s->factor > best->factor))
			best = s;
	if (best)
		snprintf(out, bytes, "%.12g%s", value / best->factor, best->text);
	else
		snprintf(out, bytes, "%.12g", value);
}

static void format_integer(enum config_type type, int64_t value, char *out, size_t bytes)
{
	const struct config_suffix *best = NULL;
	for (const struct config_suffix *s = config_suffixes(type); s->text; s++)
		if (!s->alias && value != 0 && value % (int64_t)s->factor == 0 &&
			(!best || s->factor > best->factor))
			best = s;
	snprintf(out, bytes, "%" PRId64 "%s", best ? value / (int64_t)best->factor : value,
		best ? best->text : "");
}

/* Uses as many digits as reading the same number again takes. */
static void format_double(double value, char *out, size_t bytes)
{
	for (int digits = 6; digits <= 17; digits++) {
		snprintf(out, bytes, "%.*g", digits, value);
		if (strtod(out, NULL) == value)
			return;
	}
}

void config_range(const struct config_key *key, char *out, size_t bytes)
{
	char low[32], high[32];
	size_t n = 0;
	switch (key->type) {
	case CONFIG_BOOL:
		snprintf(out, bytes, "yes or no");
		return;
	case CONFIG_STRING:
		if (key->unit)
			snprintf(out, bytes, "%s", key->unit);
		else
			snprintf(out, bytes, "up to %zu characters", key->size - 1);
		return;
	case CONFIG_ENUM:
		for (size_t i = 0; key->names[i] && n < bytes; i++)
			n += (size_t)snprintf(
				out + n, bytes - n, "%s%s", i ? ", " : "", key->names[i]);
		return;
	case CONFIG_INT:
	case CONFIG_BYTES:
	case CONFIG_NS:
	case CONFIG_DOUBLE:
		format_number(key->type, key->min, low, sizeof(low));
		format_number(key->type, key->max, high, sizeof(high));
		snprintf(out, bytes, "%s%s%s to %s", key->names ? key->names[0] : "",
			key->names ? ", or " : "", low, high);
		return;
	}
}

void config_value(const struct config_key *key, const void *config, char *out, size_t bytes)
{
	const void *field = (const char *)config + key->offset;
	switch (key->type) {
	case CONFIG_INT:
	case CONFIG_BYTES:
	case CONFIG_NS:
		if (key->names && *(const int64_t *)field == 0)
			snprintf(out, bytes, "%s", key->names[0]);
		else
			format_integer(key->type, *(const int64_t *)field, out, bytes);
		return;
	case CONFIG_DOUBLE:
		format_double(*(const double *)field, out, bytes);
		return;
	case CONFIG_BOOL:
		snprintf(out, bytes, "%s", *(const bool *)field ? "yes" : "no");
		return;
	case CONFIG_STRING:
		snprintf(out, bytes, "%s", (const char *)field);
		return;
	case CONFIG_ENUM:
		snprintf(out, bytes, "%s", key->names[*(const int *)field]);
		return;
	}
}

const char *config_range_unit(const struct config_key *key)
{
	if (key->type == CONFIG_STRING)
		return "";
	if (key->unit && *key->unit)
		return key->unit;
	return key->type == CONFIG_BYTES ? "bytes" : "";
}

const char *config_unit(const struct config_key *key)
{
	return key->type == CONFIG_NS ? "time" : config_range_unit(key);
}

const char *config_time(uint64_t ns, char *out, size_t bytes)
{
	format_integer(CONFIG_NS, ns < INT64_MAX ? (int64_t)ns : INT64_MAX, out, bytes);
	return out;
}

const char *config_type_name(enum config_type type)
{
	static const char *const names[] = {[CONFIG_INT] = "integer",
		[CONFIG_BYTES] = "bytes",
		[CONFIG_NS] = "time",
		[CONFIG_DOUBLE] = "number",
		[CONFIG_BOOL] = "yes or no",
		[CONFIG_STRING] = "text",
		[CONFIG_ENUM] = "choice"};
	return names[type];
}

void config_name(const struct config_key *key, char *out, size_t bytes)
{
	bool deep = key->section && *key->section;
	snprintf(out, bytes, "%s%s%s", deep ? key->section : "", deep ? "." : "", key->name);
}

static size_t field_bytes(const struct config_key *key)
{
	switch (key->type) {
	case CONFIG_INT:
	case CONFIG_BYTES:
	case CONFIG_NS:
		return sizeof(int64_t);
	case CONFIG_DOUBLE:
		return sizeof(double);
	case CONFIG_BOOL:
		return sizeof(bool);
	case CONFIG_ENUM:
		return sizeof(int);
	case CONFIG_STRING:
		break;
	}
	return key->size;
}

bool config_equal(const struct config_key *key, const void *a, const void *b)
{
	const char *x = (const char *)a + key->offset, *y = (const char *)b + key->offset;
	/* What follows the NUL of a text does not count. */
	return key->type == CONFIG_STRING ? strcmp(x, y) == 0 : memcmp(x, y, field_bytes(key)) == 0;
}

bool config_is_default(const struct config_key *key, const void *config)
{
	char value[CONFIG_VALUE_BYTES];
	config_value(key, config, value, sizeof value);
	return strcmp(value, key->fallback) == 0;
}

void config_copy(const struct config_key *key, const void *from, void *to)
{
	memcpy((char *)to + key->offset, (const char *)from + key->offset, field_bytes(key));
}

size_t config_count(const struct config_key *keys)
{
	size_t n = 0;
	while (keys[n].name)
		n++;
	return n;
}

const struct config_key *config_nearest(const struct config_key *keys, const char *name)
{
	const struct config_key *best = NULL;
	size_t best_distance = SIZE_MAX;
	for (const struct config_key *key = keys; key->name; key++) {
		char own[128];
		config_name(key, own, sizeof(own));
		size_t distance = nearest_distance(name, own);
		if (distance < best_distance) {
			best_distance = distance;
			best = key;
		}
	}
	return best && nearest_worth(name, best_distance) ? best : NULL;
}

int config_spin(const char *name, const char *text, uint64_t automatic_ns, uint64_t *out_ns,
	struct error *err)
{
	static const char *const automatic[] = {"auto", NULL};
	const struct config_key key = {"", name, CONFIG_NS, 0, sizeof(int64_t), 0, 1e9, automatic,
		"0", NULL, "", KNOB_LIVE, KNOB_GLOBAL};
	int64_t value = 0;

	*out_ns = automatic_ns;
	if (strcmp(text, "auto") == 0)
		return 0;
	int rc = config_assign(&key, text, "", &value, err);
	if (rc == 0)
		*out_ns = (uint64_t)value;
	return rc;
}
