#include "shared/base/new_file.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Sets the target: the path itself, or the file that it links to. */
static int find_target(struct new_file *f, struct error *err)
{
	struct stat st;
	bool link = lstat(f->path, &st) == 0 && S_ISLNK(st.st_mode);
	f->target = link ? realpath(f->path, NULL) : strdup(f->path);
	if (f->target)
		return 0;
	if (link && errno == ENOENT)
		return error_set(err, EEXIST, "%s is a symbolic link to a file that does not exist",
			f->path);
	return error_set(err, errno, "%s: %s", f->path, strerror(errno));
}

/* Refuses a device or a directory, even with force. *mode: that of the file that will be replaced;
 * 0: there is none. */
static int check_place(const struct new_file *f, bool force, mode_t *mode, struct error *err)
{
	struct stat st;
	*mode = 0;
	if (stat(f->target, &st) != 0)
		return errno == ENOENT ? 0
				       : error_set(err, errno, "%s: %s", f->path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return error_set(err, EEXIST, "%s exists already and is %s", f->path,
			S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
	if (!force)
		return error_set(err, EEXIST, "%s exists already; --force replaces it", f->path);
	*mode = st.st_mode & 0777;
	return 0;
}

/* Opens the part; one left from an earlier run is overwritten. */
static int open_part(struct new_file *f, struct error *err)
{
	struct stat st;
	f->fd = open(f->part, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
	if (f->fd < 0)
		return error_set(err, errno, "%s cannot be written: %s", f->path, strerror(errno));
	if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		close(f->fd);
		f->fd = -1;
		return error_set(err, EEXIST, "%s: not a regular file", f->part);
	}
	f->file = ftruncate(f->fd, 0) == 0 ? fdopen(f->fd, "w") : NULL;
	return f->file ? 0 : error_set(err, errno, "%s: %s", f->part, strerror(errno));
}

static int check_space(const struct new_file *f, uint64_t bytes, struct error *err)
{
	struct statvfs fs;
	if (fstatvfs(f->fd, &fs) != 0)
		return 0;
	uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (bytes <= room)
		return 0;
	return error_set(err, ENOSPC, "%s: %.0f MiB are needed, %.0f MiB are free", f->path,
		ceil((double)bytes / (1 << 20)), floor((double)room / (1 << 20)));
}

int new_file_open(
	struct new_file *f, const char *path, bool force, uint64_t bytes, struct error *err)
{
	mode_t mode;
	*f = (struct new_file){.path = path, .fd = -1};
	int rc = find_target(f, err);
	if (rc == 0)
		rc = check_place(f, force, &mode, err);
	if (rc)
		return rc;
	if (asprintf(&f->part, "%s.part", f->target) < 0) {
		f->part = NULL;
		return error_set(err, ENOMEM, "no memory for a name");
	}
	rc = open_part(f, err);
	/* The new file keeps the mode of the one it replaces. */
	if (rc == 0 && mode != 0 && fchmod(f->fd, mode) != 0)
		rc = error_set(err, errno, "%s: %s", f->part, strerror(errno));
	return rc ? rc : check_space(f, bytes, err);
}

int new_file_close(struct new_file *f, int rc, struct error *err)
{
	bool ours = f->fd >= 0;
	/* Synced first: after a power failure the name could otherwise lead to a model that is cut
	 * short. */
	if (!rc && (fflush(f->file) != 0 || fdatasync(f->fd) != 0))
		rc = error_set(err, errno, "%s: %s", f->part, strerror(errno));
	if (f->file && fclose(f->file) != 0 && !rc)
		rc = error_set(err, errno, "%s: %s", f->part, strerror(errno));
	else if (!f->file && ours)
		close(f->fd);
	if (!rc && rename(f->part, f->target) != 0)
		rc = error_set(err, errno, "%s: %s", f->path, strerror(errno));
	if (rc && ours)
		unlink(f->part);
	free(f->part);
	free(f->target);
	*f = (struct new_file){.fd = -1};
	return rc;
}
