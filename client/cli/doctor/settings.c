#include "client/cli/doctor/doctor.h"

#include "shared/base/config.h"
#include "shared/base/file.h"
#include "shared/base/new_file.h"
#include "shared/base/units.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { VERIFIER, CACHE, DRAFTER, POLICY, FILES };

/* The tables of services/knobs, whose headers cannot be included together: their enumerators have
 * equal names. */
extern const struct config_key verifier_config_keys[], cache_config_keys[], drafter_config_keys[],
	settings_keys[];

struct writing {
	const struct doctor *doctor;
	char *model, *draft; /* absolute; draft: or NULL */
	char *path[FILES], *text[FILES];
	struct new_file file[FILES];
};

static const char *const names[FILES] = {
	"verifier.conf", "expert-cache.conf", "drafter.conf", "policy.conf"};
static const struct config_key *const keys[FILES] = {
	verifier_config_keys, cache_config_keys, drafter_config_keys, settings_keys};

enum { VALUES_BYTES = 16 << 10 }; /* bytes of any service's settings */

static void write_device(const struct writing *w, FILE *to)
{
	if (w->doctor->device)
		fprintf(to, "\ndevice = %s\n", w->doctor->device);
}

static void write_verifier(const struct writing *w, FILE *to)
{
	const struct plan *p = &w->doctor->plan;

	fprintf(to,
		"model = %s\n\n"
		"# One per core within the CPU time: %u here.\n"
		"threads = 0\n\n"
		"# Tokens of one session, and sessions computed at a time: the KV cache takes %s.\n"
		"context = %u\n"
		"sessions_max = %lld\n",
		w->model, w->doctor->machine.cpus.threads, UNITS_SIZE(p->kv_bytes), p->context,
		(long long)p->sessions);
	write_device(w, to);
	if (w->doctor->device_memory)
		fprintf(to, "device_memory = %s\n", w->doctor->device_memory);
	if (w->doctor->prefix_dir)
		fprintf(to,
			"\n# Its buffers take %s.\n"
			"prefix_dir = %s\n",
			UNITS_SIZE(p->disk_bytes), w->doctor->prefix_dir);
}

static void write_cache(const struct writing *w, FILE *to)
{
	const struct plan *p = &w->doctor->plan;

	fprintf(to, "model = %s\n\n", w->model);
	if (w->doctor->model.experts)
		fprintf(to, "# As many experts as fit: here %s, %.0f %% of them.\n",
			UNITS_SIZE(p->budget_bytes), 100 * p->share);
	fputs("budget = auto\n", to);
	write_device(w, to);
}

static void write_drafter(const struct writing *w, FILE *to)
{
	if (w->draft)
		fprintf(to, "draft = %s\n", w->draft);
	else
		fputs("# Without a draft model drafts are repetitions in the text (n-grams).\n",
			to);
	fputs("method = auto\n", to);
	write_device(w, to);
}

static void write_policy(FILE *to)
{
	fputs("# Measures what drafts cost and bring, and sets K for each pass.\n"
	      "policy = yield\n",
		to);
}

static void write_text(const struct writing *w, int which, FILE *to)
{
	fprintf(to,
		"# Written by outrider doctor, for a machine with %s. outrider.conf(5) has all "
		"keys.\n\n",
		w->doctor->machine.cpu);
	if (which == VERIFIER)
		write_verifier(w, to);
	else if (which == CACHE)
		write_cache(w, to);
	else if (which == DRAFTER)
		write_drafter(w, to);
	else
		write_policy(to);
}

/* Checks that the service will read what was meant: a path may contain characters that a file of
 * settings cannot. */
static int check_text(const struct writing *w, int which, size_t bytes, struct error *err)
{
	const struct config_key *model =
		config_find(keys[which], which == DRAFTER ? "draft" : "model");
	const char *meant = which == DRAFTER ? w->draft : w->model;
	char *values = calloc(1, VALUES_BYTES);
	FILE *file = values ? fmemopen(w->text[which], bytes, "r") : NULL;

	if (!file) {
		free(values);
		return error_set(err, ENOMEM, "no memory for %s", w->path[which]);
	}
	for (const struct config_key *key = keys[which]; key->name; key++)
		assert(key->offset + key->size + sizeof(int64_t) <= VALUES_BYTES);
	config_defaults(keys[which], values);
	int rc = config_read(file, w->path[which], keys[which], values, err);
	if (rc == 0 && model && strcmp(values + model->offset, meant ? meant : "") != 0)
		rc = error_set(err, EINVAL,
			"%s: a configuration file cannot hold the path of this model, and would "
			"name %s: give the file a plain name",
			meant ? meant : "", values + model->offset);
	fclose(file);
	free(values);
	return rc;
}

static int make_text(struct writing *w, int which, const char *directory, struct error *err)
{
	size_t bytes = 0;
	FILE *to = open_memstream(&w->text[which], &bytes);

	if (!to || asprintf(&w->path[which], "%s/%s", directory, names[which]) < 0) {
		w->path[which] = NULL;
		if (to)
			fclose(to);
		return error_set(err, ENOMEM, "no memory for %s", names[which]);
	}
	write_text(w, which, to);
	if (fclose(to) != 0)
		return error_set(err, ENOMEM, "no memory for %s", names[which]);
	return check_text(w, which, bytes, err);
}

static int find_models(struct writing *w, struct error *err)
{
	const struct doctor *d = w->doctor;

	w->model = file_absolute(d->model_path);
	bool drafts = d->has_draft || d->is_head;
	w->draft = drafts ? file_absolute(d->draft_path) : NULL;
	if (!w->model || (drafts && !w->draft))
		return error_set(err, errno, "%s: %s", w->model ? d->draft_path : d->model_path,
			strerror(errno));
	return 0;
}

static int make_directory(const char *directory, struct error *err)
{
	struct stat st;

	if (mkdir(directory, 0755) == 0)
		return 0;
	if (errno != EEXIST)
		return error_set(err, errno, "%s: cannot be made: %s", directory, strerror(errno));
	if (stat(directory, &st) == 0 && !S_ISDIR(st.st_mode))
		return error_set(err, ENOTDIR, "%s: not a directory", directory);
	return 0;
}

/* Opens all files before any gets its name. */
static int write_files(struct writing *w, bool force, struct error *err)
{
	int rc = 0, n = 0;

	for (; rc == 0 && n < FILES; n++) {
		rc = new_file_open(&w->file[n], w->path[n], force, strlen(w->text[n]), err);
		if (rc == 0 && fputs(w->text[n], w->file[n].file) < 0)
			rc = error_set(err, errno, "%s: %s", w->path[n], strerror(errno));
	}
	for (int i = 0; i < n; i++)
		rc = new_file_close(&w->file[i], rc, err);
	return rc;
}

int doctor_write(const struct doctor *doctor, const char *directory, bool force, struct error *err)
{
	struct writing w = {.doctor = doctor};
	int rc = find_models(&w, err);

	for (int i = 0; rc == 0 && i < FILES; i++)
		rc = make_text(&w, i, directory, err);
	if (rc == 0)
		rc = make_directory(directory, err);
	if (rc == 0)
		rc = write_files(&w, force, err);
	for (int i = 0; i < FILES; i++) {
		free(w.path[i]);
		free(w.text[i]);
	}
	free(w.model);
	free(w.draft);
	return rc;
}
