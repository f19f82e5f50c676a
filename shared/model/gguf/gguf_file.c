/* Opening and mapping files, and the properties of an open one; gguf.c parses, gguf_split.c joins
 * parts. */
#include "shared/model/gguf/gguf_guard.h"
#include "shared/model/gguf/gguf_internal.h"
#include "shared/model/gguf/gguf_watch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_parsed(struct gguf *g, struct gguf **out, struct error *err)
{
	int rc = gguf_parse(g, err);
	if (rc) {
		gguf_close(&g);
		return rc;
	}
	g->whole.path = g->path;
	g->whole.bytes = g->bytes;
	*out = g;
	return 0;
}

/* Refuses part of a split model in memory, because its other parts cannot be found. */
static int refuse_parts(const struct gguf *g, struct error *err)
{
	uint64_t count = 1, no = 0;
	int rc = gguf_get_u64(g, "split.count", 0, UINT16_MAX, &count, err);
	if (rc && rc != -ENOENT)
		return rc;
	rc = gguf_get_u64(g, "split.no", 0, UINT16_MAX, &no, err);
	if (rc && rc != -ENOENT)
		return rc;
	if (count <= 1 && no == 0)
		return 0;
	return error_set(err, ENOTSUP,
		"one part of a split model (split.no %llu, split.count %llu), without the others",
		(unsigned long long)no, (unsigned long long)count);
}

static int open_memory(const void *data, size_t bytes, struct gguf_check *check, struct gguf **out,
	struct error *err)
{
	*out = NULL;
	struct gguf *g = calloc(1, sizeof(*g));
	if (!g || !(g->path = strdup(""))) {
		free(g);
		return error_set(err, ENOMEM, "no memory to open a GGUF file");
	}
	g->fd = g->whole.fd = -1;
	g->data = data;
	g->bytes = bytes;
	g->check = check;
	int rc = open_parsed(g, out, err);
	if (rc)
		return rc;
	rc = refuse_parts(*out, err);
	if (rc)
		gguf_close(out);
	return rc;
}

int gguf_open_memory(const void *data, size_t bytes, struct gguf **out, struct error *err)
{
	return open_memory(data, bytes, NULL, out, err);
}

/* Opens and maps g->path. The mapping is private and read-only: weights are paged in as they are touched. */
static int map_file(struct gguf *g, struct error *err)
{
	struct stat st;
	/* O_NONBLOCK, so that a FIFO does not make us wait for a writer. */
	g->fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (g->fd < 0 || fstat(g->fd, &st) < 0)
		return error_set(err, errno, "cannot open: %s", strerror(errno));
	if (S_ISDIR(st.st_mode))
		return error_set(err, EISDIR, "is a directory, not a GGUF file");
	if (!S_ISREG(st.st_mode))
		return error_set(err, EINVAL, "not a regular file, so it cannot be mapped");
	if (st.st_size == 0)
		return error_set(err, EBADMSG, "the file is empty: no magic at offset 0");
	void *map =
		mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, g->fd, 0);
	if (map == MAP_FAILED)
		return error_refused(err, errno, "cannot map %lld bytes", (long long)st.st_size);
	g->data = map;
	g->bytes = (size_t)st.st_size;
	g->whole = (struct gguf_part){.path = g->path,
		.bytes = g->bytes,
		.fd = g->fd,
		.stamp = gguf_stamp_of(&st),
		.touched_ns = gguf_touched_ns(&st)};
	g->mapped = true;
	gguf_guard_add(g);
	return 0;
}

int gguf_open_file(const char *path, struct gguf_check *check, struct gguf **out, struct error *err)
{
	*out = NULL;
	struct gguf *g = calloc(1, sizeof(*g));
	if (!g || !(g->path = strdup(path))) {
		free(g);
		return error_set(err, ENOMEM, "no memory to open it");
	}
	g->fd = -1;
	g->check = check;
	int rc = map_file(g, err);
	if (rc) {
		gguf_close(&g);
		return rc;
	}
	return open_parsed(g, out, err);
}

static int open_all(
	const char *path, struct gguf_check *check, struct gguf **out, struct error *err)
{
	int rc = gguf_open_file(path, check, out, err);
	if (!rc) {
		rc = gguf_open_parts(*out, err);
		if (rc)
			gguf_close(out);
	}
	return rc ? gguf_error_prefix(err, rc, path) : 0;
}

int gguf_open(const char *path, struct gguf **out, struct error *err)
{
	return open_all(path, NULL, out, err);
}

static struct gguf_check *make_check(gguf_report *report, void *arg, struct error *err)
{
	struct gguf_check *check = malloc(sizeof(*check));
	if (check)
		*check = (struct gguf_check){report, arg, 0};
	else
		error_set(err, ENOMEM, "no memory to check a file");
	return check;
}

/* Gives `check` to out, or frees it if there is no out. */
static int hand_over(struct gguf_check *check, int rc, struct gguf *out)
{
	if (out) {
		out->check = check;
		out->owns_check = true;
	} else {
		free(check);
	}
	return rc;
}

int gguf_open_checked(
	const char *path, gguf_report *report, void *arg, struct gguf **out, struct error *err)
{
	struct gguf_check *check = make_check(report, arg, err);
	*out = NULL;
	if (!check)
		return -ENOMEM;
	int rc = open_all(path, check, out, err);
	return hand_over(check, rc, *out);
}

int gguf_open_memory_checked(const void *data, size_t bytes, gguf_report *report, void *arg,
	struct gguf **out, struct error *err)
{
	struct gguf_check *check = make_check(report, arg, err);
	*out = NULL;
	if (!check)
		return -ENOMEM;
	int rc = open_memory(data, bytes, check, out, err);
	return hand_over(check, rc, *out);
}

int gguf_problem(const struct gguf *gguf, int rc, const struct error *err)
{
	if (!rc || !gguf->check || rc == -ENOMEM)
		return rc;
	gguf->check->n++;
	gguf->check->report(gguf->check->arg, err->text);
	return 0;
}

uint64_t gguf_n_problems(const struct gguf *gguf)
{
	return gguf->check ? gguf->check->n : 0;
}

int gguf_error_prefix(struct error *err, int code, const char *path)
{
	/* A long path must not push the reason out of the message. */
	enum { SHOWN = 200 };
	size_t n = strlen(path);
	return n > SHOWN ? error_prefix(err, code, "...%s", path + n - SHOWN)
			 : error_prefix(err, code, "%s", path);
}

void gguf_close(struct gguf **gguf)
{
	struct gguf *g = *gguf;
	if (!g)
		return;
	for (size_t i = 0; i < g->n_keys; i++)
		free(g->keys[i].strings);
	free(g->keys);
	free(g->keys_by_name);
	free(g->tensors);
	free(g->tensors_by_name);
	gguf_guard_remove(g);
	if (g->mapped)
		munmap((void *)(uintptr_t)g->data, g->bytes);
	for (size_t i = 0; i < g->n_parts; i++) {
		/* The first part's descriptor is g->fd. */
		if (i > 0 && g->parts[i].fd >= 0)
			close(g->parts[i].fd);
		free(g->parts[i].path);
	}
	if (g->fd >= 0)
		close(g->fd);
	free(g->parts);
	if (g->owns_check)
		free(g->check);
	free(g->path);
	free(g);
	*gguf = NULL;
}

const char *gguf_path(const struct gguf *gguf)
{
	return gguf->path;
}

int gguf_fd(const struct gguf *gguf)
{
	return gguf->fd;
}

const void *gguf_data(const struct gguf *gguf)
{
	return gguf->data;
}

size_t gguf_bytes(const struct gguf *gguf)
{
	return gguf->bytes;
}

uint32_t gguf_version(const struct gguf *gguf)
{
	return gguf->version;
}

size_t gguf_n_parts(const struct gguf *gguf)
{
	return gguf->parts ? gguf->n_parts : 1;
}

const struct gguf_part *gguf_part_at(const struct gguf *gguf, size_t i)
{
	if (i >= gguf_n_parts(gguf))
		return NULL;
	return gguf->parts ? &gguf->parts[i] : &gguf->whole;
}

void gguf_expect_scattered(const struct gguf *gguf, bool scattered)
{
	/* Only advice: if it is not taken, loading is slower. */
	if (gguf->mapped)
		(void)madvise((void *)(uintptr_t)gguf->data, gguf->bytes,
			scattered ? MADV_RANDOM : MADV_NORMAL);
}

void gguf_advise(const struct gguf *gguf, const void *from, size_t bytes, bool wanted)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)from, end = first + bytes, data = (uintptr_t)gguf->data;

	if (!gguf->mapped || first < data || end > data + gguf->bytes)
		return;
	if (wanted) {
		first = first / page * page;
		(void)madvise((void *)first, end - first, MADV_WILLNEED);
		return;
	}
	/* Whole pages only: others contain something else, too. */
	first = (first + page - 1) / page * page;
	end = end / page * page;
	if (first >= end)
		return;
#ifdef MADV_PAGEOUT
	(void)madvise((void *)first, end - first, MADV_PAGEOUT);
#endif
	(void)madvise((void *)first, end - first, MADV_DONTNEED);
}
