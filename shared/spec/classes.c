#include "shared/spec/classes.h"

#include "shared/base/units.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET_NS_MAX (UINT64_C(3600) * 1000000000)

static bool is_of_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '_';
}

static bool is_name(const char *name)
{
	size_t n = strnlen(name, LIMIT_NAME);

	if (n == 0 || n == LIMIT_NAME)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!is_of_name(name[i]))
			return false;
	return true;
}

int classes_check(const struct request_class *one, struct error *err)
{
	if (one->name[0] != '\0' && !is_name(one->name))
		return error_set(err, EINVAL,
			"classes: the name of a class has 1 to %d letters, digits, '-' and '_'",
			LIMIT_NAME - 1);
	if (one->priority < -LIMIT_PRIORITY || one->priority > LIMIT_PRIORITY)
		return error_set(err, EINVAL, "classes: priority %d of %s: allowed are %d to %d",
			one->priority, one->name, -LIMIT_PRIORITY, LIMIT_PRIORITY);
	if (one->tpot_ns > TARGET_NS_MAX || one->ttft_ns > TARGET_NS_MAX)
		return error_set(
			err, EINVAL, "classes: a target of %s: at most 1h is allowed", one->name);
	return 0;
}

static int read_priority(const char *text, struct request_class *out, struct error *err)
{
	char *end;

	errno = 0;
	long n = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || n < -LIMIT_PRIORITY || n > LIMIT_PRIORITY)
		return error_set(err, EINVAL, "classes: priority=%.32s of %s: allowed are %d to %d",
			text, out->name, -LIMIT_PRIORITY, LIMIT_PRIORITY);
	out->priority = (int32_t)n;
	return 0;
}

/* A word behind the name: priority=N, tpot=TIME or ttft=TIME. */
static int read_word(const char *word, struct request_class *out, struct error *err)
{
	uint64_t *to = strncmp(word, "tpot=", 5) == 0	? &out->tpot_ns
		       : strncmp(word, "ttft=", 5) == 0 ? &out->ttft_ns
							: NULL;

	if (strncmp(word, "priority=", 9) == 0)
		return read_priority(word + 9, out, err);
	if (to == NULL)
		return error_set(err, EINVAL, "classes: \"%.32s\" of %s: expected %s", word,
			out->name, CLASSES_FORM);
	if (units_read_time(word + 5, to) != 0 || *to == 0 || *to > TARGET_NS_MAX)
		return error_set(err, EINVAL,
			"classes: %.32s of %s: expected a time up to 1h, such as 50ms", word,
			out->name);
	return 0;
}

/* Reads one class; text is cut into words. */
static int read_class(char *text, struct request_class *out, struct error *err)
{
	char *at, *word = strtok_r(text, " \t", &at);
	int rc = 0;

	memset(out, 0, sizeof(*out));
	if (word == NULL || !is_name(word))
		return error_set(err, EINVAL,
			"classes: \"%.32s\" is not a class: expected %s, where a name has 1 to %d "
			"letters, digits, '-' and '_'",
			word != NULL ? word : "", CLASSES_FORM, LIMIT_NAME - 1);
	memcpy(out->name, word, strlen(word));
	while (rc == 0 && (word = strtok_r(NULL, " \t", &at)) != NULL)
		rc = read_word(word, out, err);
	return rc;
}

/* Adds a class; the default replaces the one that is there. */
static int add(struct request_classes *to, const struct request_class *one, struct error *err)
{
	bool is_default = strcmp(one->name, CLASSES_DEFAULT) == 0;

	for (uint32_t i = 1; i < to->n; i++)
		if (strcmp(to->at[i].name, one->name) == 0)
			return error_set(err, EINVAL, "classes: %s occurs twice", one->name);
	if (is_default) {
		to->at[0] = *one;
		return 0;
	}
	if (to->n == LIMIT_CLASSES)
		return error_set(err, EINVAL, "classes: more than %d, with %s", LIMIT_CLASSES,
			CLASSES_DEFAULT);
	to->at[to->n++] = *one;
	return 0;
}

int classes_read(const char *text, struct request_classes *out, struct error *err)
{
	struct request_classes read = {.n = 1, .at[0] = {.name = CLASSES_DEFAULT}};
	char *copy = strdup(text), *at, *part;
	int rc = 0;

	if (copy == NULL)
		return error_set(err, ENOMEM, "no memory for the setting classes");
	for (part = strtok_r(copy, ",", &at); rc == 0 && part != NULL;
		part = strtok_r(NULL, ",", &at)) {
		struct request_class one;

		rc = read_class(part, &one, err);
		if (rc == 0)
			rc = add(&read, &one, err);
	}
	free(copy);
	if (rc == 0)
		*out = read;
	return rc;
}

const struct request_class *classes_find(const struct request_classes *classes, const char *name)
{
	if (name[0] == '\0')
		return &classes->at[0];
	for (uint32_t i = 0; i < classes->n; i++)
		if (strcmp(classes->at[i].name, name) == 0)
			return &classes->at[i];
	return NULL;
}

void classes_names(const struct request_classes *classes, char *out, size_t bytes)
{
	size_t used = 0;

	out[0] = '\0';
	for (uint32_t i = 0; i < classes->n && used < bytes; i++)
		used += (size_t)snprintf(
			out + used, bytes - used, "%s%s", i > 0 ? ", " : "", classes->at[i].name);
}
