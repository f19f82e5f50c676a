#include "shared/base/file.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static bool is_null_device(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

static const char *kind_of(const struct stat *st)
{
	return S_ISDIR(st->st_mode)    ? "a directory"
	       : S_ISLNK(st->st_mode)  ? "a symbolic link"
	       : S_ISFIFO(st->st_mode) ? "a pipe"
	       : S_ISSOCK(st->st_mode) ? "a socket"
				       : "a device";
}

int file_open(const char *path, FILE **out, struct error *err)
{
	struct stat st;
	*out = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0) {
		int code = errno;
		if (fd >= 0)
			close(fd);
		/* open reports this for a socket. */
		return code == ENXIO
			       ? error_set(err, EBADMSG, "%s: a socket, not a regular file", path)
			       : error_set(err, code, "%s: %s", path, strerror(code));
	}
	if (!S_ISREG(st.st_mode) && !is_null_device(&st)) {
		close(fd);
		return error_set(err, S_ISDIR(st.st_mode) ? EISDIR : EBADMSG,
			"%s: %s, not a regular file", path, kind_of(&st));
	}
	*out = fdopen(fd, "r");
	if (*out)
		return 0;
	int code = errno;
	close(fd);
	return error_set(err, code, "%s: %s", path, strerror(code));
}

int file_open_own(const char *path, int flags, int *out, struct error *err)
{
	struct stat st;
	int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
	int code = fd < 0 ? errno : 0;
	*out = -1;
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
		*out = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	/* open's message for a link, a directory, a pipe or a socket would not help a person. */
	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return error_set(err, EEXIST, "%s: %s, not a regular file", path, kind_of(&st));
	code = code ? code : EIO;
	return error_set(err, code, "%s: %s", path, strerror(code));
}

int file_check(const char *name, const char *path, struct error *err)
{
	FILE *file;
	if (path[0] == '\0')
		return 0;
	int status = file_open(path, &file, err);
	if (status != 0)
		return error_prefix(err, status, "%s", name);
	fclose(file);
	return 0;
}

static int read_stream(FILE *file, const char *name, size_t bytes_max, char **text, size_t *bytes,
	struct error *err)
{
	size_t room = 0;
	do {
		room = room ? 2 * room : 1 << 16;
		room = room < bytes_max ? room : bytes_max + 1;
		char *grown = realloc(*text, room + 1);
		if (!grown)
			return error_set(err, ENOMEM, "%s: no memory for %zu bytes", name, room);
		*text = grown;
		errno = 0;
		*bytes += fread(*text + *bytes, 1, room - *bytes, file);
	} while (*bytes == room && room <= bytes_max);
	if (ferror(file)) {
		int code = errno ? errno : EIO;
		return error_set(err, code, "%s: %s", name, strerror(code));
	}
	if (*bytes > bytes_max)
		return error_set(err, E2BIG, "%s: more than %zu bytes", name, bytes_max);
	(*text)[*bytes] = '\0';
	return 0;
}

int file_read(const char *path, size_t bytes_max, char **text, size_t *bytes, struct error *err)
{
	bool is_stdin = strcmp(path, "-") == 0;
	FILE *file = is_stdin ? stdin : fopen(path, "re");
	*text = NULL;
	*bytes = 0;
	if (!file)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	int rc = read_stream(file, is_stdin ? "stdin" : path, bytes_max, text, bytes, err);
	if (!is_stdin)
		fclose(file);
	if (rc) {
		free(*text);
		*text = NULL;
	}
	return rc;
}

int file_read_regular(
	const char *path, size_t bytes_max, char **text, size_t *bytes, struct error *err)
{
	FILE *file;
	*text = NULL;
	*bytes = 0;
	int rc = file_open(path, &file, err);
	if (rc)
		return rc;
	rc = read_stream(file, path, bytes_max, text, bytes, err);
	fclose(file);
	if (rc) {
		free(*text);
		*text = NULL;
	}
	return rc;
}

char *file_absolute(const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	char *given = slash ? strndup(path, (size_t)(name - path)) : strdup(".");
	char *directory = given ? realpath(given, NULL) : NULL;
	char *out = NULL;
	if (directory &&
		asprintf(&out, "%s/%s", strcmp(directory, "/") == 0 ? "" : directory, name) < 0)
		out = NULL;
	free(directory);
	free(given);
	return out;
}
