#include "shared/spec/profile.h"

#include "shared/base/file.h"
#include "shared/base/new_file.h"

#include <stdlib.h>
#include <string.h>

#define HEAD "outrider-profile 1"
/* Bound for the uses of one expert, so that sums stay far from overflow. */
#define USES_MAX (UINT64_C(1) << 48)

/* The remaining text, read line by line. */
struct lines {
	const char *at, *end;
	uint32_t number;
	struct error *err;
};

/* The next line without its newline; false after the last. */
static bool next_line(struct lines *lines, const char **line, size_t *bytes)
{
	if (lines->at == lines->end)
		return false;
	size_t left = (size_t)(lines->end - lines->at);
	const char *newline = memchr(lines->at, '\n', left);
	*line = lines->at;
	*bytes = newline ? (size_t)(newline - lines->at) : left;
	lines->at += *bytes + (newline != NULL);
	lines->number++;
	return true;
}

static int refuse(const struct lines *lines, const char *what)
{
	return error_set(lines->err, EBADMSG, "line %u: %s", lines->number, what);
}

/* Reads numbers that are separated by single spaces; returns how many there are, or -1 when there
 * is anything else. */
static int numbers_of(const char *line, size_t bytes, uint64_t *out, int max)
{
	int n = 0;
	size_t i = 0;
	while (i < bytes) {
		uint64_t value = 0;
		size_t start = i;
		for (; i < bytes && line[i] >= '0' && line[i] <= '9'; i++) {
			if (value > USES_MAX)
				return -1;
			value = 10 * value + (uint64_t)(line[i] - '0');
		}
		if (i == start || n == max || (i < bytes && line[i++] != ' '))
			return -1;
		out[n++] = value;
	}
	return n;
}

static int read_head(struct lines *lines, uint32_t n_layers, uint32_t n_experts)
{
	const char *line;
	size_t bytes;
	char expected[64];
	if (!next_line(lines, &line, &bytes) || bytes != strlen(HEAD) ||
		memcmp(line, HEAD, bytes) != 0)
		return refuse(lines, "it is not a profile, which begins with \"" HEAD "\"");
	int n = snprintf(expected, sizeof(expected), "layers %u experts %u", n_layers, n_experts);
	if (!next_line(lines, &line, &bytes) || bytes != (size_t)n ||
		memcmp(line, expected, bytes) != 0)
		return error_set(lines->err, EBADMSG,
			"line %u: the profile belongs to another model; expected \"%s\"",
			lines->number, expected);
	return 0;
}

static int read_lines(struct lines *lines, uint32_t n_layers, uint32_t n_experts, uint64_t *uses)
{
	const char *line;
	size_t bytes;
	while (next_line(lines, &line, &bytes)) {
		uint64_t value[3];
		if (numbers_of(line, bytes, value, 3) != 3)
			return refuse(lines, "a line is LAYER EXPERT USES");
		if (value[0] >= n_layers || value[1] >= n_experts)
			return refuse(lines, "the model has no such expert");
		if (value[2] == 0 || value[2] > USES_MAX)
			return refuse(lines, "uses are 1 to 2^48");
		uint64_t *cell = &uses[value[0] * n_experts + value[1]];
		if (*cell != 0)
			return refuse(lines, "the expert was named before");
		*cell = value[2];
	}
	return 0;
}

int profile_parse(const char *text, size_t bytes, uint32_t n_layers, uint32_t n_experts,
	uint64_t **out, struct error *err)
{
	struct lines lines = {.at = text, .end = text + bytes, .err = err};
	uint64_t *uses = calloc((size_t)n_layers * n_experts, sizeof(*uses));
	if (uses == NULL)
		return error_set(err, ENOMEM, "no memory for a profile");
	int rc = read_head(&lines, n_layers, n_experts);
	if (rc == 0)
		rc = read_lines(&lines, n_layers, n_experts, uses);
	if (rc != 0) {
		free(uses);
		return rc;
	}
	*out = uses;
	return 0;
}

int profile_read(
	const char *path, uint32_t n_layers, uint32_t n_experts, uint64_t **out, struct error *err)
{
	FILE *file;
	int rc = file_open(path, &file, err);
	if (rc < 0)
		return error_prefix(err, rc, "profile");
	char *text = malloc(PROFILE_BYTES_MAX + 1);
	size_t bytes = text != NULL ? fread(text, 1, PROFILE_BYTES_MAX + 1, file) : 0;
	if (text == NULL)
		rc = error_set(err, ENOMEM, "no memory for a profile");
	else if (ferror(file))
		rc = error_set(err, EIO, "it could not be read");
	else if (bytes > PROFILE_BYTES_MAX)
		rc = error_set(err, EFBIG, "it is larger than %d bytes", PROFILE_BYTES_MAX);
	else
		rc = profile_parse(text, bytes, n_layers, n_experts, out, err);
	fclose(file);
	free(text);
	return rc < 0 ? error_prefix(err, rc, "profile: %s", path) : 0;
}

int profile_write(const char *path, uint32_t n_layers, uint32_t n_experts, const uint64_t *uses,
	struct error *err)
{
	struct new_file out;
	int rc = new_file_open(&out, path, true, 0, err);
	if (rc == 0)
		fprintf(out.file, HEAD "\nlayers %u experts %u\n", n_layers, n_experts);
	for (uint32_t l = 0; rc == 0 && l < n_layers; l++)
		for (uint32_t e = 0; e < n_experts; e++) {
			uint64_t n = uses[(size_t)l * n_experts + e];
			if (n > 0)
				fprintf(out.file, "%u %u %llu\n", l, e, (unsigned long long)n);
		}
	if (rc == 0 && ferror(out.file))
		rc = error_set(err, EIO, "%s: it could not be written", path);
	return new_file_close(&out, rc, err);
}
