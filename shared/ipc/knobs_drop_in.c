/*
 * Lasting changes: FILE.d/90-knobs.conf, which the next start reads like any other drop-in. Only
 * the lines of the changed keys are edited (knobs_drop_in_text.c), but the file is replaced as a
 * whole: the next one is written beside it, read back, and renamed over it, so that a reader finds
 * one or the other.
 */
#include "shared/ipc/knobs_private.h"

#include "shared/base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_BYTES_MAX = 1 << 20 };

void knobs_drop_in_init(struct knobs *knobs)
{
	const char *path = knobs->o.config_path;
	if (!path || !*path ||
		(size_t)snprintf(knobs->directory, sizeof knobs->directory, "%s.d", path) >=
			sizeof knobs->directory) {
		knobs->directory[0] = '\0';
		return;
	}
	snprintf(knobs->file, sizeof knobs->file, "%s/" KNOBS_DROP_IN, knobs->directory);
}

static int read_file(struct knobs *knobs, const char *path, struct error *err)
{
	config_defaults(knobs->o.keys, knobs->scratch);
	memset(knobs->given, 0, knobs->n_keys * sizeof *knobs->given);
	FILE *file;
	int r = file_open(path, &file, err);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = config_read_given(file, path, knobs->o.keys, knobs->scratch, knobs->given, err);
	fclose(file);
	return r;
}

int knobs_drop_in_read(struct knobs *knobs, struct error *err)
{
	memset(knobs->given, 0, knobs->n_keys * sizeof *knobs->given);
	return knobs->file[0] ? read_file(knobs, knobs->file, err) : 0;
}

static int cannot_write(const char *path, int code, struct error *err)
{
	return error_set(
		err, code, "%s: cannot be written: %s: nothing was changed", path, strerror(code));
}

/* Syncs the directory, so that a name created or changed in it survives a loss of power. */
static int sync_directory(const char *path, struct error *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	int r = fsync(fd) < 0 && errno != EINVAL ? -errno : 0;
	close(fd);
	return r < 0 ? error_set(err, -r, "%s: %s", path, strerror(-r)) : 0;
}

static int make_directory(const struct knobs *knobs, struct error *err)
{
	char parent[sizeof knobs->directory];
	if (mkdir(knobs->directory, 0755) < 0) {
		if (errno == ENOENT)
			return error_set(err, ENOENT,
				"%s: its folder does not exist: nothing was changed; outrider up "
				"--config-dir DIR names another folder",
				knobs->directory);
		return errno == EEXIST ? 0 : cannot_write(knobs->directory, errno, err);
	}
	snprintf(parent, sizeof parent, "%s", knobs->directory);
	char *slash = strrchr(parent, '/');
	if (slash == parent)
		slash++;
	if (slash)
		*slash = '\0';
	return sync_directory(slash ? parent : ".", err);
}

/* The text of the next drop-in, malloc'd. */
static int edit(struct knobs *knobs, const struct knob_outcomes *outcomes, const void *config,
	bool without, char **out, struct error *err)
{
	char *text = NULL;
	size_t bytes = 0;
	int r = file_read_regular(knobs->file, TEXT_BYTES_MAX, &text, &bytes, err);
	if (r < 0 && r != -ENOENT)
		return r;
	*out = knobs_drop_in_edit(text ? text : "", outcomes, config, without, &knobs->fresh_blank);
	free(text);
	return *out ? 0
		    : error_set(err, ENOMEM, "%s: no memory for %s", knobs->process, knobs->file);
}

/* Writes the next drop-in beside the present one, synced to disk, so that it can be read back. */
static int write_fresh(struct knobs *knobs, const char *text, struct error *err)
{
	struct error why = {""};
	int r = new_file_open(&knobs->fresh, knobs->file, true, 0, &why);
	if (r == 0 && (fputs(text, knobs->fresh.file) < 0 || fflush(knobs->fresh.file) != 0))
		r = error_set(&why, errno, "%s: %s", knobs->file, strerror(errno));
	if (r == 0)
		return 0;
	knobs_drop_in_abandon(knobs);
	return error_set(err, -r, "%s: nothing was changed", why.text);
}

/* Checks that the written file gives the wanted values: a text may hold what a line of a file
 * cannot express (a comment sign, blanks at its ends). */
static int read_back(struct knobs *knobs, const struct knob_outcomes *outcomes, const void *config,
	bool without, struct error *err)
{
	int r = read_file(knobs, knobs->fresh.part, err);
	for (size_t i = 0; r == 0 && i < outcomes->n; i++) {
		const struct config_key *key = outcomes->of[i].key;
		if (knobs->given[key - knobs->o.keys] == without ||
			(!without && !config_equal(key, config, knobs->scratch)))
			r = error_set(err, EINVAL,
				"%s: a configuration file cannot hold this value of %s: nothing "
				"was changed",
				knobs->process, key->name);
	}
	if (r < 0)
		knobs_drop_in_abandon(knobs);
	return r;
}

/* Records the value that the drop-in has now and will lose. */
static int note_removed(struct knobs *knobs, struct knob_outcome *outcome, struct error *err)
{
	char value[CONFIG_VALUE_BYTES];
	if (!knobs->given[outcome->key - knobs->o.keys])
		return 0;
	config_value(outcome->key, knobs->scratch, value, sizeof value);
	outcome->removed = strdup(value);
	return outcome->removed ? 0
				: error_set(err, ENOMEM, "%s: no memory to change %s",
					  knobs->process, outcome->key->name);
}

int knobs_drop_in_prepare(struct knobs *knobs, struct knob_outcomes *outcomes, const void *config,
	bool without, struct error *err)
{
	int r = make_directory(knobs, err);
	if (r == 0)
		r = knobs_drop_in_read(knobs, err);
	for (size_t i = 0; r == 0 && without && i < outcomes->n; i++)
		r = note_removed(knobs, &outcomes->of[i], err);
	if (r < 0)
		return r;
	char *text = NULL;
	r = edit(knobs, outcomes, config, without, &text, err);
	if (r == 0)
		r = write_fresh(knobs, text, err);
	free(text);
	return r < 0 ? r : read_back(knobs, outcomes, config, without, err);
}

int knobs_drop_in_commit(struct knobs *knobs, struct error *err)
{
	struct stat st;
	int r = 0;
	/* A file that sets nothing is removed, unless the path is a symbolic link. */
	bool gone = knobs->fresh_blank && !(lstat(knobs->file, &st) == 0 && S_ISLNK(st.st_mode));
	if (!gone)
		r = new_file_close(&knobs->fresh, 0, NULL);
	else if (unlink(knobs->file) < 0 && errno != ENOENT)
		r = -errno;
	if (gone)
		knobs_drop_in_abandon(knobs);
	if (r < 0)
		return cannot_write(knobs->file, -r, err);
	/* The rename or removal takes effect at the next start; whether it also survives a loss of
	 * power right now changes nothing. */
	(void)sync_directory(knobs->directory, NULL);
	return 0;
}

void knobs_drop_in_abandon(struct knobs *knobs)
{
	(void)new_file_close(&knobs->fresh, -ECANCELED, NULL);
}
