#include "services/verifier/prefixes/prefix_disk_internal.h"

#include "shared/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct found {
	struct prefix_header header;
	struct timespec used;
	bool taken;
};

struct scan {
	struct found *found;
	uint32_t n, n_max, n_bad;
	uint32_t n_others_max;
	char why[512]; /* the first file of another model is not used */
};

/* The id in a name with this end; 0: it is not one of our names. */
static uint64_t id_of(const char *name, const char *end)
{
	uint64_t id = strtoull(name, NULL, 16);
	char again[PREFIX_NAME_BYTES];

	prefix_disk_name(id, end, again);
	return strcmp(name, again) == 0 ? id : 0;
}

/* Makes room for one more element. False: there is no memory. */
static bool grow(void **array, uint32_t n, uint32_t *n_max, size_t bytes)
{
	if (n < *n_max)
		return true;
	uint32_t more = *n_max == 0 ? 256 : 2 * *n_max;
	void *grown = realloc(*array, more * bytes);
	if (grown == NULL)
		return false;
	*array = grown;
	*n_max = more;
	return true;
}

static void add_other(struct prefix_disk *disk, struct scan *scan, uint64_t id, uint64_t bytes,
	const struct error *why)
{
	void *others = disk->others;

	if (!grow(&others, disk->n_others, &scan->n_others_max, sizeof(*disk->others)))
		return;
	disk->others = others;
	disk->others[disk->n_others++] = (struct prefix_other){id, bytes};
	disk->index.bytes += bytes;
	if (scan->why[0] == '\0')
		snprintf(scan->why, sizeof(scan->why), "%s", why->text);
}

static int read_header(int fd, struct stat *status, struct prefix_header *header, struct error *err)
{
	unsigned char bytes[PREFIX_HEADER_BYTES] = {0};

	if (fd < 0 || fstat(fd, status) != 0)
		return error_set(err, errno, "%s", strerror(errno));
	if (!S_ISREG(status->st_mode))
		return error_set(err, EBADMSG, "it is no regular file");
	if (pread(fd, bytes, sizeof(bytes), 0) < 0)
		return error_set(err, errno, "%s", strerror(errno));
	return prefix_header_read(bytes, (uint64_t)status->st_size, header, err);
}

static void look(struct prefix_disk *disk, struct scan *scan, const char *name, uint64_t id)
{
	struct prefix_header header = {0};
	struct stat status = {0};
	struct error err;
	int fd = openat(disk->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int rc = read_header(fd, &status, &header, &err);

	if (fd >= 0)
		close(fd);
	if (rc == 0 && header.id != id)
		rc = error_set(&err, EBADMSG, "it has another name than its header says");
	if (rc != 0) {
		scan->n_bad++;
		log_limited(LOG_LEVEL_NOTICE, "prefix file %s/%s is removed: %s", disk->path, name,
			err.text);
		(void)unlinkat(disk->dir, name, 0);
		return;
	}
	rc = prefix_shape_check(&header.shape, &disk->shape, &err);
	if (rc == 0 &&
		header.content_bytes != (header.kind == PREFIX_STATE ? disk->shape.state_bytes
								     : disk->content_bytes))
		rc = error_set(&err, ESTALE, "its pages have another size");
	if (rc != 0) {
		add_other(disk, scan, id, (uint64_t)status.st_size, &err);
		return;
	}
	void *found = scan->found;
	if (!grow(&found, scan->n, &scan->n_max, sizeof(*scan->found)))
		return;
	scan->found = found;
	scan->found[scan->n++] = (struct found){header, status.st_mtim, false};
}

static void read_dir(struct prefix_disk *disk, struct scan *scan)
{
	int fd = dup(disk->dir);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *entry;
	uint64_t id;

	if (dir == NULL) {
		log_error("prefix_dir %s: %s", disk->path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((entry = readdir(dir)) != NULL) {
		/* A process was killed while it wrote this. */
		if (id_of(entry->d_name, PREFIX_PART) != 0)
			(void)unlinkat(disk->dir, entry->d_name, 0);
		else if ((id = id_of(entry->d_name, PREFIX_END)) != 0)
			look(disk, scan, entry->d_name, id);
	}
	closedir(dir);
}

static int by_use(const void *a, const void *b)
{
	const struct timespec *x = &((const struct found *)a)->used,
			      *y = &((const struct found *)b)->used;

	if (x->tv_sec != y->tv_sec)
		return x->tv_sec < y->tv_sec ? -1 : 1;
	return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* A page can be found only if the page before it is there. */
static void add_all(struct prefix_disk *disk, struct scan *scan)
{
	bool more = true;
	char name[PREFIX_NAME_BYTES];

	while (more) {
		more = false;
		for (uint32_t i = 0; i < scan->n; i++) {
			struct found *f = &scan->found[i];

			if (f->taken)
				continue;
			pthread_mutex_lock(&disk->lock);
			f->taken = prefix_disk_make_room(disk, f->header.content_bytes) &&
				   prefix_index_add(&disk->index, &f->header, true) != PREFIX_NONE;
			pthread_mutex_unlock(&disk->lock);
			prefix_disk_unlink(disk);
			more |= f->taken;
		}
	}
	for (uint32_t i = 0; i < scan->n; i++) {
		if (scan->found[i].taken)
			continue;
		prefix_disk_name(scan->found[i].header.id, PREFIX_END, name);
		(void)unlinkat(disk->dir, name, 0);
	}
}

void prefix_disk_scan(struct prefix_disk *disk)
{
	struct scan scan = {.found = NULL};

	read_dir(disk, &scan);
	if (scan.n > 0)
		qsort(scan.found, scan.n, sizeof(*scan.found), by_use);
	add_all(disk, &scan);
	log_info("prefix_dir %s: %llu bytes in use, by %s", disk->path,
		(unsigned long long)disk->index.bytes, prefix_io_name(disk->io));
	if (disk->n_others > 0)
		log_notice("prefix_dir %s: %u files are not used, and give way first: %s",
			disk->path, disk->n_others, scan.why);
	free(scan.found);
}
