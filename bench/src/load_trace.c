/* Traces of requests that load replays (load_plan.h). */
#include "bench/src/load_plan.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CSV_COLUMNS = 64, MOONCAKE_BLOCK = 512, BLOCKS_MOST = 65536 };
#define LENGTH_MOST 1e6

/* The columns of Azure's traces, in this order in `at`. */
static const char *const azure_columns[] = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
enum { AZURE_TIME, AZURE_PROMPT, AZURE_OUTPUT, AZURE_COLUMNS };

struct trace {
	struct load_plan *plan;
	const struct load_replay *replay;
	const char *path;
	size_t line;
	double first_s, last_s; /* times in the file */
	bool any, full;
	int column[AZURE_COLUMNS]; /* where the columns of a CSV are; [0] -1: it is JSONL */
	uint64_t blocks[BLOCKS_MOST];
};

/* Seconds of "2023-11-16 18:15:46.6805900", with any number of digits behind the point and with or
 * without an offset from UTC behind them, which all lines share. */
static bool parse_time(const char *text, double *seconds)
{
	struct tm tm = {0};
	const char *rest = strptime(text, "%Y-%m-%d", &tm);
	char *end;

	if (rest && (*rest == ' ' || *rest == 'T'))
		rest = strptime(rest + 1, "%H:%M:%S", &tm);
	else
		rest = NULL;
	if (!rest)
		return false;
	*seconds = (double)timegm(&tm);
	if (*rest == '.')
		*seconds += strtod(rest, &end);
	return true;
}

static bool parse_length(const char *text, double *out)
{
	char *end;

	*out = strtod(text, &end);
	return end != text && *out >= 0 && *out <= LENGTH_MOST;
}

static uint32_t scaled(double tokens, double scale)
{
	double n = round(tokens * scale);

	return n < 1 ? 1 : (uint32_t)n;
}

/* Adds one line's request. at_s: as in the file. */
static int add(struct trace *t, double at_s, double prompt, double output, uint32_t n_blocks,
	struct error *err)
{
	if (!t->any)
		t->first_s = t->last_s = at_s;
	t->any = true;
	if (!(at_s >= t->last_s))
		return error_set(err, EINVAL, "%s:%zu: it is earlier than the line before it",
			t->path, t->line);
	t->last_s = at_s;
	struct load_arrival arrival = {
		.due_s = (at_s - t->first_s) / t->replay->speed,
		.prompt_tokens = scaled(prompt, t->replay->scale),
		.output_tokens = scaled(output, t->replay->scale),
	};
	t->full = t->replay->seconds > 0 && arrival.due_s >= t->replay->seconds;
	if (t->full)
		return 0;
	if (load_plan_add(t->plan, &arrival, t->blocks, n_blocks) < 0)
		return error_set(err, ENOMEM, "no memory for the requests of %s", t->path);
	t->full = t->replay->n > 0 && t->plan->n == t->replay->n;
	return 0;
}

/* Divides a line at its commas. Returns the number of fields. */
static int split(char *line, char *fields[CSV_COLUMNS])
{
	int n = 0;

	line[strcspn(line, "\r\n")] = '\0';
	while (line && n < CSV_COLUMNS)
		fields[n++] = strsep(&line, ",");
	return n;
}

static int csv_head(struct trace *t, char *line, struct error *err)
{
	char *fields[CSV_COLUMNS];
	int n = split(line, fields);

	for (int c = 0; c < AZURE_COLUMNS; c++) {
		t->column[c] = -1;
		for (int i = 0; i < n; i++)
			if (strcmp(fields[i], azure_columns[c]) == 0)
				t->column[c] = i;
		if (t->column[c] < 0)
			return error_set(err, EINVAL,
				"%s:1: this is neither Mooncake's JSONL nor Azure's CSV, whose "
				"first line names the columns TIMESTAMP, ContextTokens and "
				"GeneratedTokens: %s is missing",
				t->path, azure_columns[c]);
	}
	return 0;
}

static int csv_line(struct trace *t, char *line, struct error *err)
{
	char *fields[CSV_COLUMNS];
	int n = split(line, fields);
	double at_s, prompt, output;

	for (int c = 0; c < AZURE_COLUMNS; c++)
		if (t->column[c] >= n)
			return error_set(err, EINVAL, "%s:%zu: it has no column %s", t->path,
				t->line, azure_columns[c]);
	if (!parse_time(fields[t->column[AZURE_TIME]], &at_s))
		return error_set(err, EINVAL,
			"%s:%zu: TIMESTAMP %.40s: expected a date and a time such as 2023-11-16 "
			"18:15:46.68",
			t->path, t->line, fields[t->column[AZURE_TIME]]);
	if (!parse_length(fields[t->column[AZURE_PROMPT]], &prompt) ||
		!parse_length(fields[t->column[AZURE_OUTPUT]], &output))
		return error_set(err, EINVAL,
			"%s:%zu: ContextTokens and GeneratedTokens: expected numbers of 0 to %g",
			t->path, t->line, LENGTH_MOST);
	return add(t, at_s, prompt, output, 0, err);
}

static int json_number_of(
	const struct trace *t, const json_t *line, const char *name, double *out, struct error *err)
{
	const json_t *value = json_object_get(line, name);

	*out = json_number_value(value);
	if (json_is_number(value) && *out >= 0)
		return 0;
	return error_set(
		err, EINVAL, "%s:%zu: %s: expected a number of at least 0", t->path, t->line, name);
}

static int json_line(struct trace *t, const char *text, struct error *err)
{
	json_error_t reason;
	json_t *line = json_loads(text, 0, &reason);
	double at_ms, prompt = 0, output = 0;
	uint32_t n_blocks = 0;
	const json_t *block;
	size_t i;

	if (!line)
		return error_set(err, EINVAL, "%s:%zu: %s", t->path, t->line, reason.text);
	int code = json_number_of(t, line, "timestamp", &at_ms, err);
	if (code == 0)
		code = json_number_of(t, line, "input_length", &prompt, err);
	if (code == 0)
		code = json_number_of(t, line, "output_length", &output, err);
	if (code == 0 && (prompt > LENGTH_MOST || output > LENGTH_MOST))
		code = error_set(
			err, EINVAL, "%s:%zu: a length is above %g", t->path, t->line, LENGTH_MOST);
	json_array_foreach(json_object_get(line, "hash_ids"), i, block)
	{
		if (i == BLOCKS_MOST)
			break;
		t->blocks[n_blocks++] = (uint64_t)json_integer_value(block) & INT32_MAX;
	}
	json_decref(line);
	return code ? code : add(t, at_ms * 1e-3, prompt, output, n_blocks, err);
}

static int take_line(struct trace *t, char *line, struct error *err)
{
	if (line[strspn(line, " \t\r\n")] == '\0')
		return 0;
	if (t->line == 1 && line[strspn(line, " \t")] != '{')
		return csv_head(t, line, err);
	return t->column[0] >= 0 ? csv_line(t, line, err) : json_line(t, line, err);
}

int load_plan_trace(struct load_plan *plan, const char *path, const struct load_replay *replay,
	struct error *err)
{
	static struct trace t; /* too large for a stack */
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t capacity = 0;
	int code = 0;

	t = (struct trace){.plan = plan, .replay = replay, .path = path, .column = {-1}};
	plan->block_tokens = MOONCAKE_BLOCK * replay->scale;
	if (!file)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	while (code == 0 && !t.full && getline(&line, &capacity, file) > 0) {
		t.line++;
		code = take_line(&t, line, err);
	}
	if (code == 0 && ferror(file))
		code = error_set(err, EIO, "%s: %s", path, strerror(errno));
	free(line);
	fclose(file);
	if (code == 0 && plan->n == 0)
		code = error_set(err, EINVAL, "%s: no requests", path);
	return code;
}
