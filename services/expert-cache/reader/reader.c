/* Opening and closing a reader and its files; reader_queue.c reads. */
#include "services/expert-cache/reader/reader_internal.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/spec/slots.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	/* A failing disk fails thousands of reads. This many are logged; after that, one line from
	 * time to time says how many more. */
	LOGGED_MAX = 4,
	/* Measuring goes up to here; a given depth may be larger. */
	MEASURED_DEPTH_MAX = 64,
};
#define LOGGED_WINDOW_NS 10000000000ull
/* The pause before the second try; each further one is twice as long. 15 ms in all before a read is
 * given up: as long as a disk may be busy with itself, and as a verifier can wait. */
#define PAUSE_NS 1000000ull

static void tell(struct reader *reader)
{
	if (reader->failures > LOGGED_MAX)
		log_error("%s: %llu more reads failed", reader->failed->path,
			(unsigned long long)(reader->failures - LOGGED_MAX));
	reader->failures = 0;
}

void reader_tell(struct reader *reader, uint64_t now_ns)
{
	if (reader->failures > 0 && now_ns > reader->window_ns + LOGGED_WINDOW_NS)
		tell(reader);
}

bool reader_worth_a_line(struct reader *reader, const struct file *file)
{
	uint64_t now_ns = clock_ns();
	reader_tell(reader, now_ns);
	if (reader->failures == 0)
		reader->window_ns = now_ns;
	reader->failed = file;
	return reader->failures++ < LOGGED_MAX;
}

/* part: the open file, or NULL. */
static int open_file(
	struct reader *reader, unsigned i, const struct gguf_part *part, struct error *err)
{
	struct file *file = &reader->files[i];
	struct stat status;
	reader->fds[i] = part != NULL ? fcntl(part->fd, F_DUPFD_CLOEXEC, 3)
				      : open(file->path, O_RDONLY | O_CLOEXEC);
	if (reader->fds[i] < 0 || fstat(reader->fds[i], &status) != 0)
		return error_set(err, errno, "%s: %s", file->path, strerror(errno));
	file->stamp = gguf_stamp_of(&status);
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

/* All parts or none, so that one flag tells whether reads are direct. */
static int open_direct(struct reader *reader, enum auto_choice direct, struct error *err)
{
	for (unsigned i = 0; i < reader->n_files; i++) {
		const char *path = reader->files[i].path;
		char open_file_path[48];
		/* The open file itself: its name may lead to another file by now. */
		snprintf(
			open_file_path, sizeof(open_file_path), "/proc/self/fd/%d", reader->fds[i]);
		int fd = open(open_file_path, O_RDONLY | O_CLOEXEC | O_DIRECT);
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

static int open_files(struct reader *reader, const struct reader_file *files,
	enum auto_choice direct, struct error *err)
{
	int status = 0;
	for (unsigned i = 0; status == 0 && i < reader->n_files; i++)
		status = open_file(reader, i, files[i].part, err);
	if (status != 0 || direct == CHOICE_NO)
		return status;
	return open_direct(reader, direct, err);
}

static int open_io(struct reader *reader, const struct reader_options *options, struct error *err)
{
	int status = -ENOSYS;
	if (options->ops == NULL && options->io != IO_PREAD) {
		reader->ops = &reader_io_uring;
		status = reader->ops->open(
			reader->fds, reader->n_files, reader->depth_max, &reader->io, err);
		if (status == 0 || options->io == IO_URING)
			return status;
		log_notice("%s: reading with threads instead", err->text);
	}
	reader->ops = options->ops != NULL ? options->ops : &reader_io_pread;
	return reader->ops->open(reader->fds, reader->n_files, reader->depth_max, &reader->io, err);
}

static int allocate_pieces(struct reader *reader)
{
	/* As many pieces may be paused as are in the kernel, without taking a place from any. */
	unsigned n = 2 * reader->depth_max;
	reader->pieces = calloc(n, sizeof(*reader->pieces));
	reader->idle = calloc(n, sizeof(struct read_piece *));
	if (reader->pieces == NULL || reader->idle == NULL)
		return -ENOMEM;
	while (reader->n_idle < n) {
		reader->idle[reader->n_idle] = &reader->pieces[reader->n_idle];
		reader->n_idle++;
	}
	return 0;
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

int reader_open(const struct reader_file *files, unsigned n_files,
	const struct reader_options *options, struct reader **out, struct error *err)
{
	struct reader *reader = calloc(1, sizeof(*reader));
	if (reader == NULL)
		return error_set(err, ENOMEM, "no memory to read %s", files[0].path);
	reader->finished_last = &reader->finished;
	reader->depth_max = options->depth != 0 ? options->depth : MEASURED_DEPTH_MAX;
	reader->pause_ns = options->pause_ns != 0 ? options->pause_ns : PAUSE_NS;
	int status = copy_files(reader, files, n_files);
	if (status == 0)
		status = allocate_pieces(reader);
	if (status != 0)
		error_set(err, ENOMEM, "no memory to read %s", files[0].path);
	if (status == 0)
		status = open_files(reader, files, options->direct, err);
	if (status == 0) {
		status = open_io(reader, options, err);
		if (status != 0)
			reader->io = NULL;
	}
	if (status == 0) {
		snprintf(reader->link, sizeof(reader->link), "%s O_DIRECT", reader->ops->name);
		status = reader_tune(
			reader, options->depth, options->read_bytes / SLOTS_PAGE * SLOTS_PAGE, err);
	}
	if (status != 0) {
		reader_close(&reader);
		return status;
	}
	*out = reader;
	return 0;
}

static void take_back_held(struct reader *reader)
{
	for (int p = 0; p < READ_PRIORITIES; p++) {
		struct read_request *request = reader->held[p].first;
		for (struct read_request *next; request != NULL; request = next) {
			next = request->next;
			reader_cancel(reader, request);
		}
	}
}

void reader_close(struct reader **reader)
{
	struct reader *old = *reader;
	if (old == NULL)
		return;
	struct read_request *finished;
	old->closing = true;
	reader_give_up(old);
	take_back_held(old);
	while (old->busy > 0)
		reader_wait(old, 1000000000, &finished, 1);
	tell(old);
	if (old->io != NULL)
		old->ops->close(old->io);
	for (unsigned i = 0; old->fds != NULL && i < 2 * old->n_files; i++)
		if (old->fds[i] >= 0)
			close(old->fds[i]);
	for (unsigned i = 0; old->files != NULL && i < old->n_files; i++)
		free(old->files[i].path);
	free(old->files);
	free(old->fds);
	free(old->pieces);
	free(old->idle);
	free(old);
	*reader = NULL;
}

const char *reader_link(const struct reader *reader)
{
	return reader_is_direct(reader) ? reader->link : reader->ops->name;
}

unsigned reader_depth(const struct reader *reader)
{
	return reader->depth;
}

size_t reader_piece_bytes(const struct reader *reader)
{
	return reader->read_bytes;
}

double reader_rate(const struct reader *reader)
{
	return (double)atomic_load_explicit(&reader->rate, memory_order_relaxed);
}

unsigned reader_busy(const struct reader *reader)
{
	return reader->busy;
}

unsigned reader_held(const struct reader *reader)
{
	return reader->n_held;
}

void reader_slots(struct reader *reader, unsigned char *slots, size_t slot_bytes, uint32_t n)
{
	if (reader->ops->slots != NULL)
		reader->ops->slots(reader->io, slots, slot_bytes, n);
}

void reader_forget_slot(struct reader *reader, uint32_t slot)
{
	if (reader->ops->forget_slot != NULL)
		reader->ops->forget_slot(reader->io, slot);
}

int reader_check(const struct reader *reader, struct error *err)
{
	for (unsigned i = 0; i < reader->n_files; i++) {
		const struct file *file = &reader->files[i];
		struct stat status;
		if (fstat(reader->fds[i], &status) != 0 ||
			(uint64_t)status.st_size < file->stamp.bytes)
			return error_set(err, ESTALE,
				"%s: the file became shorter while it was in use", file->path);
	}
	return 0;
}
