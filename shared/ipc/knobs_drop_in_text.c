/*
 * Edits the text of the drop-in line by line: a change replaces the value behind a key's name or
 * removes that line. Comments, the order of lines and anything else that a person wrote stay. Lines
 * are read as config.c and libinih read them: leading blanks are ignored, a line is "[section]",
 * "name = value" or "name: value", and " ;" begins a comment behind a value.
 */
#include "shared/ipc/knobs_private.h"

#include <stdlib.h>
#include <string.h>

#define HEAD                                                                                   \
	"# Written by outriderctl knob set --persist; outriderctl knob reset --persist takes " \
	"lines out.\n"
#define BLANKS " \t\r\n"

struct edit {
	const struct knob_outcomes *outcomes;
	const void *config;
	bool without;
	bool written[KNOBS_BATCH_MAX]; /* the text has this outcome's key */
	char section[128];
	bool blank; /* nothing so far but the head that we write ourselves */
	FILE *to;
};

static const char *section_of(const struct config_key *key)
{
	return key->section ? key->section : "";
}

/* The index of the outcome whose key the line sets, or n. *value: where the line's value begins. */
static size_t find(const struct edit *edit, const char *line, const char **value)
{
	const char *name = line + strspn(line, BLANKS);
	size_t n = strcspn(name, "=:"), i;

	if (!name[n] || strchr("#;[", name[0]))
		return edit->outcomes->n;
	*value = name + n + 1;
	*value += strspn(*value, " \t");
	while (n > 0 && strchr(BLANKS, name[n - 1]))
		n--;
	for (i = 0; i < edit->outcomes->n; i++) {
		const struct config_key *key = edit->outcomes->of[i].key;

		if (strcmp(section_of(key), edit->section) == 0 && strlen(key->name) == n &&
			strncmp(key->name, name, n) == 0)
			break;
	}
	return i;
}

/* Where the value ends: at a comment or the line's end. */
static const char *value_end(const char *value)
{
	const char *end = value;

	for (const char *c = value; *c && *c != '\n'; c++) {
		if (*c == ';' && (c == value || strchr(BLANKS, c[-1])))
			break;
		if (!strchr(BLANKS, *c))
			end = c + 1;
	}
	return end;
}

static void write_key(struct edit *edit, size_t i)
{
	const struct config_key *key = edit->outcomes->of[i].key;
	char value[CONFIG_VALUE_BYTES];

	config_value(key, edit->config, value, sizeof value);
	fprintf(edit->to, "%s = %s\n", key->name, value);
	edit->written[i] = true;
	edit->blank = false;
}

/* Writes the keys of a section for which no line was found. */
static void write_missing(struct edit *edit, const char *section)
{
	for (size_t i = 0; !edit->without && i < edit->outcomes->n; i++) {
		const char *own = section_of(edit->outcomes->of[i].key);

		if (!edit->written[i] && strcmp(own, section) == 0)
			write_key(edit, i);
	}
}

/* Edits one line, which ends with a newline. */
static void edit_line(struct edit *edit, const char *line)
{
	const char *text = line + strspn(line, BLANKS), *value = "";
	char replaced[CONFIG_VALUE_BYTES];
	size_t i = find(edit, line, &value);

	if (i < edit->outcomes->n) {
		if (edit->without)
			return;
		config_value(edit->outcomes->of[i].key, edit->config, replaced, sizeof replaced);
		fprintf(edit->to, "%.*s%s%s", (int)(value - line), line, replaced,
			value_end(value));
		edit->written[i] = true;
		edit->blank = false;
		return;
	}
	if (text[0] == '[') {
		write_missing(edit, edit->section);
		snprintf(edit->section, sizeof edit->section, "%.*s",
			(int)strcspn(text + 1, "]\r\n"), text + 1);
	} else if (text[0] && strcmp(text, HEAD) != 0) {
		edit->blank = false;
	}
	fputs(line, edit->to);
}

static void edit_lines(struct edit *edit, const char *text)
{
	while (*text) {
		size_t n = strcspn(text, "\n");
		char *line = malloc(n + 2);

		if (!line)
			return;
		memcpy(line, text, n);
		/* The last line may lack its newline. */
		memcpy(line + n, "\n", 2);
		edit_line(edit, line);
		free(line);
		text += n + (text[n] == '\n');
	}
	write_missing(edit, edit->section);
	for (size_t i = 0; !edit->without && i < edit->outcomes->n; i++) {
		const char *section = section_of(edit->outcomes->of[i].key);

		if (edit->written[i])
			continue;
		fprintf(edit->to, "[%s]\n", section);
		write_missing(edit, section);
	}
}

char *knobs_drop_in_edit(const char *text, const struct knob_outcomes *outcomes, const void *config,
	bool without, bool *blank)
{
	struct edit edit = {
		.outcomes = outcomes, .config = config, .without = without, .blank = true};
	char *out = NULL;
	size_t bytes = 0;

	edit.to = open_memstream(&out, &bytes);
	if (!edit.to)
		return NULL;
	edit_lines(&edit, *text ? text : HEAD);
	bool failed = ferror(edit.to) != 0;
	if (fclose(edit.to) != 0 || failed) {
		free(out);
		return NULL;
	}
	*blank = edit.blank;
	return out;
}
