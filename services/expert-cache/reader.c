#include "services/expert-cache/reader.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/spec/slots.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	RETRIES_MAX = 4,
	/* A disk that fails fails thousands of reads: this many are logged, then one line a while says how many more. */
	LOGGED_MAX = 4,
};
#define LOGGED_WINDOW_NS 10000000000ull

struct file {
	char *path;
	uint64_t base;
	struct stat opened;
};

struct reader {
	const struct reader_io_ops *ops;
	void *io;
	unsigned n_files;
	struct file *files; /* [n_files] */
	int *fds; /* [n_files] through the page cache, [n_files] O_DIRECT or -1 */
	unsigned depth, busy;
	bool refused_direct; /* a read said EINVAL: the file system only opens so */
	char link[32];
	uint64_t failures, window_ns; /* failures since window_ns */
};

/* Whether to log one more failure. */
static bool worth_a_line(struct reader *reader, const struct file *file)
{
	uint64_t now_ns = clock_ns();
	if (now_ns - reader->window_ns > LOGGED_WINDOW_NS) {
		if (reader->failures > LOGGED_MAX)
			log_error("%s: %llu more reads failed", file->path,
				(unsigned long long)(reader->failures - LOGGED_MAX));
		reader->window_ns = now_ns;
		reader->failures = 0;
	}
	return reader->failures++ < LOGGED_MAX;
}

static int open_file(struct reader *reader, unsigned i, struct error *err)
{
	struct file *file = &reader->files[i];
	reader->fds[i] = open(file->path, O_RDONLY | O_CLOEXEC);
	if (reader->fds[i] < 0 || fstat(reader->fds[i], &file->opened) != 0)
		return error_set(err, errno, "%s: %s", file->path, strerror(errno));
	return 0;
}

static void close_direct(struct reader *reader)
{
	for (unsigned i = reader->n_files; i < 2 * reader->n_files; i++) {
		if (reader->fds[i] >= 0)
			close(reader->fds[i]);
		reader->fds[i] = -1;
	}
}

/* All parts or none: whether a read is direct is then one question. */
static int open_direct(struct reader *reader, enum auto_choice direct, struct error *err)
{
	for (unsigned i = 0; i < reader->n_files; i++) {
		const char *path = reader->files[i].path;
		int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
		reader->fds[reader->n_files + i] = fd;
		if (fd >= 0)
			continue;
		if (direct == CHOICE_YES)
			return error_set(err, errno,
				"%s: cannot be read past the page cache (direct = yes): %s", path,
				strerror(errno));
		log_notice("%s: cannot be read past the page cache (%s): reading through it", path,
			strerror(errno));
		close_direct(reader);
		return 0;
	}
	return 0;
}

static int open_files(struct reader *reader, enum auto_choice direct, struct error *err)
{
	int status = 0;
	for (unsigned i = 0; status == 0 && i < reader->n_files; i++)
		status = open_file(reader, i, err);
	if (status != 0 || direct == CHOICE_NO)
		return status;
	return open_direct(reader, direct, err);
}

static int open_io(struct reader *reader, enum io_choice io, struct error *err)
{
	int status = -ENOSYS;
	if (io != IO_PREAD) {
		reader->ops = &reader_io_uring;
		status = reader->ops->open(
			reader->fds, reader->n_files, reader->depth, &reader->io, err);
		if (status == 0 || io == IO_URING)
			return status;
		log_notice("%s: reading with threads instead", err->text);
	}
	reader->ops = &reader_io_pread;
	return reader->ops->open(reader->fds, reader->n_files, reader->depth, &reader->io, err);
}

static int copy_files(struct reader *reader, const struct reader_file *files, unsigned n_files)
{
	reader->files = calloc(n_files, sizeof(*reader->files));
	reader->fds = malloc(2 * n_files * sizeof(*reader->fds));
	if (reader->files == NULL || reader->fds == NULL)
		return -ENOMEM;
	for (unsigned i = 0; i < 2 * n_files; i++)
		reader->fds[i] = -1;
	reader->n_files = n_files;
	for (unsigned i = 0; i < n_files; i++) {
		reader->files[i].base = files[i].base;
		reader->files[i].path = strdup(files[i].path);
		if (reader->files[i].path == NULL)
			return -ENOMEM;
	}
	return 0;
}

int reader_open(const struct reader_file *files, unsigned n_files, enum io_choice io,
	enum auto_choice direct, unsigned depth, struct reader **out, struct error *err)
{
	struct reader *reader = calloc(1, sizeof(*reader));
	if (reader == NULL)
		return error_set(err, ENOMEM, "no memory to read %s", files[0].path);
	reader->depth = depth;
	int status = copy_files(reader, files, n_files);
	if (status != 0)
		error_set(err, ENOMEM, "no memory to read %s", files[0].path);
	if (status == 0)
		status = open_files(reader, direct, err);
	if (status == 0)
		status = open_io(reader, io, err);
	if (status != 0) {
		reader->io = NULL;
		reader_close(&reader);
		return status;
	}
	snprintf(reader->link, sizeof(reader->link), "%s%s", reader->ops->name,
		reader->fds[n_files] >= 0 ? " O_DIRECT" : "");
	*out = reader;
	return 0;
}

void reader_close(struct reader **reader)
{
	struct reader *old = *reader;
	if (old == NULL)
		return;
	struct read_request *finished;
	while (old->busy > 0)
		reader_wait(old, 1000000000, &finished, 1);
	if (old->io != NULL)
		old->ops->close(old->io);
	for (unsigned i = 0; i < 2 * old->n_files; i++)
		if (old->fds[i] >= 0)
			close(old->fds[i]);
	for (unsigned i = 0; i < old->n_files; i++)
		free(old->files[i].path);
	free(old->files);
	free(old->fds);
	free(old);
	*reader = NULL;
}

const char *reader_link(const struct reader *reader)
{
	return reader->link;
}

unsigned reader_busy(const struct reader *reader)
{
	return reader->busy;
}

unsigned reader_depth(const struct reader *reader)
{
	return reader->depth;
}

void reader_submit(struct reader *reader, struct read_request *request)
{
	request->done = 0;
	request->retries = 0;
	request->status = 0;
	request->plain = reader->fds[reader->n_files] < 0 || reader->refused_direct;
	unsigned file = reader->n_files - 1;
	while (file > 0 && reader->files[file].base > request->offset)
		file--;
	request->file = file;
	request->position = request->offset - reader->files[file].base;
	reader->busy++;
	reader->ops->start(reader->io, request);
}

/* What to do after a read that failed: true to read again. */
static bool try_again(struct reader *reader, struct read_request *request)
{
	const struct file *file = &reader->files[request->file];
	int code = (int)-request->result;
	if (code == EINVAL && !request->plain) {
		if (!reader->refused_direct)
			log_notice("%s: O_DIRECT reads are refused: reading through the page cache",
				file->path);
		reader->refused_direct = true;
		request->plain = true;
		return true;
	}
	if (code == EINTR)
		return true;
	if ((code == EAGAIN || code == EIO || code == ENOMEM) && request->retries < RETRIES_MAX) {
		request->retries++;
		return true;
	}
	request->status = -code;
	if (worth_a_line(reader, file))
		log_error("%s: reading %zu bytes at %llu: %s", file->path,
			request->bytes - request->done,
			(unsigned long long)(request->position + request->done), strerror(code));
	return false;
}

/* Whether the request is over after its read ended. */
static bool finish(struct reader *reader, struct read_request *request)
{
	if (request->result < 0)
		return !try_again(reader, request);
	request->done += (size_t)request->result;
	if (request->done >= request->need)
		return true;
	if (request->result == 0) {
		request->status = -EIO;
		const struct file *file = &reader->files[request->file];
		if (worth_a_line(reader, file))
			log_error("%s: ends at %llu, inside an expert: it was cut short while open",
				file->path,
				(unsigned long long)(request->position + request->done));
		return true;
	}
	/* O_DIRECT goes on only from a page. */
	if (request->done % SLOTS_PAGE != 0)
		request->plain = true;
	return false;
}

unsigned reader_wait(
	struct reader *reader, uint64_t timeout_ns, struct read_request **finished, unsigned max)
{
	unsigned n = 0;
	while (n < max && reader->busy > 0) {
		struct read_request *request =
			reader->ops->next(reader->io, n == 0 ? timeout_ns : 0);
		if (request == NULL)
			break;
		if (finish(reader, request)) {
			reader->busy--;
			finished[n++] = request;
		} else {
			reader->ops->start(reader->io, request);
		}
	}
	return n;
}

static int check_file(const struct file *file, struct error *err)
{
	struct stat now;
	if (stat(file->path, &now) != 0)
		return error_set(err, errno, "%s: %s; the open file is read on", file->path,
			strerror(errno));
	if (now.st_dev != file->opened.st_dev || now.st_ino != file->opened.st_ino)
		return error_set(err, ESTALE,
			"%s: replaced by another file; the one that was opened is read on",
			file->path);
	if (now.st_size != file->opened.st_size ||
		now.st_mtim.tv_sec != file->opened.st_mtim.tv_sec ||
		now.st_mtim.tv_nsec != file->opened.st_mtim.tv_nsec)
		return error_set(err, ESTALE,
			"%s: written to while in use (%lld bytes, were %lld): restart the service",
			file->path, (long long)now.st_size, (long long)file->opened.st_size);
	return 0;
}

int reader_check(const struct reader *reader, struct error *err)
{
	int status = 0;
	for (unsigned i = 0; status == 0 && i < reader->n_files; i++)
		status = check_file(&reader->files[i], err);
	return status;
}
