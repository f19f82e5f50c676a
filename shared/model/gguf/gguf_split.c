/* Split models: one mapping of all parts, one tensor table (llama.cpp's gguf-split writes such files). */
#include "shared/model/gguf/gguf_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

/* The keys of a part about the whole and about itself. */
struct split {
	uint64_t no, count, n_tensors;
};

/* split.count 0 or absent: a single file. The count of tensors is in every part. */
static int read_split(const struct gguf *g, struct split *out, struct error *err)
{
	*out = (struct split){.count = 1};
	int rc = gguf_get_u64(g, "split.count", 0, GGUF_PARTS_MAX, &out->count, err);
	if (rc && rc != -ENOENT)
		return rc;
	bool single = rc == -ENOENT || out->count == 0;
	if (out->count == 0)
		out->count = 1;
	rc = gguf_get_u64(g, "split.no", 0, out->count - 1, &out->no, err);
	if (rc && rc != -ENOENT)
		return rc;
	if (rc && out->count > 1)
		return error_set(err, EINVAL,
			"key split.no is missing, split.count is %llu: the number of this part is "
			"unknown",
			(unsigned long long)out->count);
	/* A file that was joined again has split.count 0, and its other keys mean nothing. */
	if (single)
		return 0;
	rc = gguf_get_u64(g, "split.tensors.count", 0, INT32_MAX, &out->n_tensors, err);
	if (out->count == 1 && rc == -ENOENT)
		return 0;
	if (out->count == 1 && rc == 0 && out->n_tensors != g->n_tensors && gguf_n_problems(g) == 0)
		return error_set(err, EINVAL,
			"key split.tensors.count is %llu, the only part (split.count 1) has %zu "
			"tensors",
			(unsigned long long)out->n_tensors, g->n_tensors);
	return rc == -ENOENT ? error_set(err, EINVAL,
				       "key split.tensors.count is missing, split.count is %llu",
				       (unsigned long long)out->count)
			     : rc;
}

/* The path of part i (from 0), made from the path of part `no`, whose name must end in its own
 * number. NULL: it does not, or memory is exhausted. */
static char *part_path(const char *path, uint64_t no, uint64_t i, uint64_t count)
{
	char suffix[64];
	int n = snprintf(suffix, sizeof(suffix), "-%05llu-of-%05llu.gguf",
		(unsigned long long)no + 1, (unsigned long long)count);
	size_t bytes = strlen(path);
	if (n < 0 || bytes < (size_t)n || strcmp(path + bytes - n, suffix) != 0)
		return NULL;
	char *out = NULL;
	if (asprintf(&out, "%.*s-%05llu-of-%05llu.gguf", (int)(bytes - (size_t)n), path,
		    (unsigned long long)i + 1, (unsigned long long)count) < 0)
		return NULL;
	return out;
}

static bool written_lately(const char *path)
{
	struct timespec now;
	struct stat status;
	clock_gettime(CLOCK_REALTIME, &now);
	return stat(path, &status) == 0 && status.st_mtim.tv_sec <= now.tv_sec &&
	       now.tv_sec - status.st_mtim.tv_sec < GGUF_SETTLED_S;
}

int gguf_unsettled(const char *path, int code, struct error *err)
{
	if (error_exit_status(code) != EX_DATAERR)
		return code;
	bool lately = written_lately(path);
	/* NAME-00001-of-00003.gguf: the other parts are in the same directory. */
	size_t bytes = strlen(path);
	unsigned long count = bytes > 10 ? strtoul(path + bytes - 10, NULL, 10) : 0;
	for (uint64_t i = 1; i < count && i < GGUF_PARTS_MAX && !lately; i++) {
		char *part = part_path(path, 0, i, count);
		lately = part != NULL && written_lately(part);
		free(part);
	}
	if (!lately)
		return code;
	struct error why = *err;
	return error_set(err, EAGAIN,
		"%.400s (written to less than %d s ago: it may not be complete yet)", why.text,
		GGUF_SETTLED_S);
}

/* Checks that the first part is given, which has the metadata. */
static int check_first(const struct gguf *g, const struct split *s, struct error *err)
{
	char *first = part_path(g->path, s->no, 0, s->count);
	int rc = 0;
	if (!first)
		rc = error_set(err, EINVAL,
			"is part %llu of %llu of a split model (split.no, split.count), but its "
			"name does not end in -%05llu-of-%05llu.gguf, so the others cannot be "
			"found",
			(unsigned long long)s->no + 1, (unsigned long long)s->count,
			(unsigned long long)s->no + 1, (unsigned long long)s->count);
	else if (s->no != 0)
		rc = error_set(err, EINVAL,
			"is part %llu of %llu of a split model (split.no); open it by its first "
			"part, %s",
			(unsigned long long)s->no + 1, (unsigned long long)s->count, first);
	free(first);
	return rc;
}

/* Checks that part i belongs to the model whose first part says `s`. */
static int check_part(const struct gguf *first, const struct gguf *part, const struct split *s,
	uint64_t i, struct error *err)
{
	struct split own;
	int rc = read_split(part, &own, err);
	if (rc)
		return rc;
	if (own.count != s->count || own.no != i)
		return error_set(err, EINVAL,
			"says that it is part %llu of %llu (split.no, split.count); part %llu of "
			"%llu is wanted",
			(unsigned long long)own.no + 1, (unsigned long long)own.count,
			(unsigned long long)i + 1, (unsigned long long)s->count);
	if (own.n_tensors != s->n_tensors)
		return error_set(err, EINVAL,
			"is of another model: key split.tensors.count is %llu, in the first part "
			"%llu",
			(unsigned long long)own.n_tensors, (unsigned long long)s->n_tensors);
	/* gguf-split repeats no metadata; if a part has some, they must agree. */
	struct gguf_string a, b;
	if (gguf_get_string(part, "general.architecture", &b, NULL) != 0)
		return 0;
	if (gguf_get_string(first, "general.architecture", &a, NULL) != 0 ||
		gguf_string_compare(a, b) != 0)
		return error_set(err, EINVAL,
			"is of another model: key general.architecture is \"%s\"",
			gguf_name_text(b).text);
	return 0;
}

/* Moves a file's mapping to `to`, and all pointers into it. */
static int move_mapping(struct gguf *g, unsigned char *to, struct error *err)
{
	const unsigned char *from = g->data;
	if (mremap((void *)(uintptr_t)from, g->bytes, g->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
		    to) == MAP_FAILED)
		return error_set(err, errno, "cannot map %zu bytes beside the other parts: %s",
			g->bytes, strerror(errno));
	g->data = to;
	for (size_t i = 0; i < g->n_keys; i++) {
		struct gguf_key *key = &g->keys[i];
		key->name.data = (const char *)to + ((const unsigned char *)key->name.data - from);
		key->value = to + (key->value - from);
	}
	for (size_t i = 0; i < g->n_tensors; i++) {
		struct gguf_string *name = &g->tensors[i].name;
		name->data = (const char *)to + ((const unsigned char *)name->data - from);
	}
	return 0;
}

/* Appends part i's tensors to those that are there. A repeated name is found when all are in. */
static void take_tensors(struct gguf *g, const struct gguf *part, uint64_t base)
{
	for (size_t i = 0; i < part->n_tensors; i++) {
		struct gguf_tensor *t = &g->tensors[g->n_tensors++];
		*t = part->tensors[i];
		t->offset += base;
	}
}

/* parts[0] is g. On success every mapping but g's own belongs to g. */
static int join(struct gguf *g, struct gguf **parts, size_t n, struct error *err)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t total = 0, n_tensors = 0;
	for (size_t i = 0; i < n; i++) {
		g->parts[i].base = total;
		g->parts[i].bytes = parts[i]->bytes;
		g->parts[i].stamp = parts[i]->whole.stamp;
		g->parts[i].touched_ns = parts[i]->whole.touched_ns;
		total += (parts[i]->bytes + page - 1) / page * page;
		n_tensors += parts[i]->n_tensors;
	}
	struct gguf_tensor *tensors = realloc(g->tensors, (n_tensors + 1) * sizeof(*tensors));
	if (!tensors)
		return error_set(
			err, ENOMEM, "no memory for %llu tensors", (unsigned long long)n_tensors);
	g->tensors = tensors;
	g->tensors_capacity = n_tensors + 1;
	unsigned char *map =
		mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		return error_refused(
			err, errno, "cannot map %llu bytes", (unsigned long long)total);
	/* g's own mapping first: from then on, closing g unmaps what there is of the others too. */
	int rc = move_mapping(g, map, err);
	if (rc) {
		munmap(map, total);
		return rc;
	}
	g->bytes = total;
	for (size_t i = 1; !rc && i < n; i++) {
		rc = move_mapping(parts[i], map + g->parts[i].base, err);
		if (rc)
			break;
		parts[i]->mapped = false;
		g->parts[i].fd = parts[i]->fd;
		parts[i]->fd = -1;
		take_tensors(g, parts[i], g->parts[i].base);
	}
	return rc;
}

static int open_others(
	struct gguf *g, const struct split *s, struct gguf **parts, struct error *err)
{
	for (uint64_t i = 0; i < s->count; i++) {
		char *path = part_path(g->path, 0, i, s->count);
		if (!path) {
			error_set(err, ENOMEM, "no memory for %llu parts",
				(unsigned long long)s->count);
			return -ENOMEM;
		}
		g->parts[g->n_parts++] =
			(struct gguf_part){.path = path, .fd = i == 0 ? g->fd : -1};
		if (i == 0)
			continue;
		int rc = gguf_open_file(path, g->check, &parts[i], err);
		if (!rc)
			rc = check_part(g, parts[i], s, i, err);
		if (rc) {
			gguf_error_prefix(err, rc, path);
			return rc;
		}
	}
	uint64_t n_tensors = 0;
	for (uint64_t i = 0; i < s->count; i++)
		n_tensors += parts[i]->n_tensors;
	/* When a file is checked, tensors may have been left out. */
	if (n_tensors != s->n_tensors && gguf_n_problems(g) == 0)
		return error_set(err, EINVAL,
			"key split.tensors.count is %llu, its %llu parts have %llu tensors: one of "
			"them is of another model",
			(unsigned long long)s->n_tensors, (unsigned long long)s->count,
			(unsigned long long)n_tensors);
	return 0;
}

int gguf_open_parts(struct gguf *gguf, struct error *err)
{
	struct split s;
	int rc = read_split(gguf, &s, err);
	if (rc || s.count < 2)
		return rc;
	rc = check_first(gguf, &s, err);
	if (rc)
		return rc;
	struct gguf **parts = calloc(s.count, sizeof(struct gguf *));
	gguf->parts = calloc(s.count, sizeof(*gguf->parts));
	if (!parts || !gguf->parts) {
		free(parts);
		return error_set(
			err, ENOMEM, "no memory for %llu parts", (unsigned long long)s.count);
	}
	parts[0] = gguf;
	rc = open_others(gguf, &s, parts, err);
	if (!rc)
		rc = join(gguf, parts, s.count, err);
	for (uint64_t i = 1; i < s.count; i++)
		gguf_close(&parts[i]);
	free(parts);
	if (rc)
		return rc;
	free(gguf->tensors_by_name);
	gguf->tensors_by_name = NULL;
	return gguf_index_tensors(gguf, err);
}
