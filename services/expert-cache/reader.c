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

struct reader {
	const struct reader_io_ops *ops;
	void *io;
	int fds[2]; /* page cache, O_DIRECT or -1 */
	unsigned depth, busy;
	bool refused_direct; /* a read said EINVAL: the file system only opens so */
	char path[1024];
	struct stat opened;
	char link[32];
	uint64_t failures, window_ns; /* failures since window_ns */
};

/* Whether to log one more failure. */
static bool worth_a_line(struct reader *reader)
{
	uint64_t now_ns = clock_ns();
	if (now_ns - reader->window_ns > LOGGED_WINDOW_NS) {
		if (reader->failures > LOGGED_MAX)
			log_error("%s: %llu more reads failed", reader->path,
				(unsigned long long)(reader->failures - LOGGED_MAX));
		reader->window_ns = now_ns;
		reader->failures = 0;
	}
	return reader->failures++ < LOGGED_MAX;
}

static int open_files(struct reader *reader, enum auto_choice direct, struct error *err)
{
	reader->fds[0] = open(reader->path, O_RDONLY | O_CLOEXEC);
	if (reader->fds[0] < 0)
		return error_set(err, errno, "%s: %s", reader->path, strerror(errno));
	if (fstat(reader->fds[0], &reader->opened) != 0)
		return error_set(err, errno, "%s: %s", reader->path, strerror(errno));
	if (direct == CHOICE_NO)
		return 0;
	reader->fds[1] = open(reader->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (reader->fds[1] >= 0)
		return 0;
	if (direct == CHOICE_YES)
		return error_set(err, errno,
			"%s: cannot be read past the page cache (direct = yes): %s", reader->path,
			strerror(errno));
	log_notice("%s: cannot be read past the page cache (%s): reading through it", reader->path,
		strerror(errno));
	return 0;
}

static int open_io(struct reader *reader, enum io_choice io, struct error *err)
{
	int status = -ENOSYS;
	if (io != IO_PREAD) {
		reader->ops = &reader_io_uring;
		status = reader->ops->open(reader->fds, reader->depth, &reader->io, err);
		if (status == 0 || io == IO_URING)
			return status;
		log_notice("%s: reading with threads instead", err->text);
	}
	reader->ops = &reader_io_pread;
	return reader->ops->open(reader->fds, reader->depth, &reader->io, err);
}

int reader_open(const char *path, enum io_choice io, enum auto_choice direct, unsigned depth,
	struct reader **out, struct error *err)
{
	struct reader *reader = calloc(1, sizeof(*reader));
	if (reader == NULL)
		return error_set(err, ENOMEM, "no memory to read %s", path);
	reader->fds[0] = reader->fds[1] = -1;
	reader->depth = depth;
	int status = 0;
	if ((size_t)snprintf(reader->path, sizeof(reader->path), "%s", path) >=
		sizeof(reader->path))
		status = error_set(err, ENAMETOOLONG, "%s: the path is too long", path);
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
		reader->fds[1] >= 0 ? " O_DIRECT" : "");
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
	for (int i = 0; i < 2; i++)
		if (old->fds[i] >= 0)
			close(old->fds[i]);
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
	request->plain = reader->fds[1] < 0 || reader->refused_direct;
	reader->busy++;
	reader->ops->start(reader->io, request);
}

/* What to do after a read that failed: true to read again. */
static bool try_again(struct reader *reader, struct read_request *request)
{
	int code = (int)-request->result;
	if (code == EINVAL && !request->plain) {
		if (!reader->refused_direct)
			log_notice("%s: O_DIRECT reads are refused: reading through the page cache",
				reader->path);
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
	if (worth_a_line(reader))
		log_error("%s: reading %zu bytes at %llu: %s", reader->path,
			request->bytes - request->done,
			(unsigned long long)(request->offset + request->done), strerror(code));
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
		if (worth_a_line(reader))
			log_error("%s: ends at %llu, inside an expert: it was cut short while open",
				reader->path,
				(unsigned long long)(request->offset + request->done));
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

int reader_check(const struct reader *reader, struct error *err)
{
	struct stat now;
	if (stat(reader->path, &now) != 0)
		return error_set(err, errno, "%s: %s; the open file is read on", reader->path,
			strerror(errno));
	if (now.st_dev != reader->opened.st_dev || now.st_ino != reader->opened.st_ino)
		return error_set(err, ESTALE,
			"%s: replaced by another file; the one that was opened is read on",
			reader->path);
	if (now.st_size != reader->opened.st_size ||
		now.st_mtim.tv_sec != reader->opened.st_mtim.tv_sec ||
		now.st_mtim.tv_nsec != reader->opened.st_mtim.tv_nsec)
		return error_set(err, ESTALE,
			"%s: written to while in use (%lld bytes, were %lld): restart the service",
			reader->path, (long long)now.st_size, (long long)reader->opened.st_size);
	return 0;
}
