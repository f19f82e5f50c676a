#include "services/verifier/prefixes/prefix_disk.h"

#include "services/verifier/prefixes/prefix_disk_internal.h"
#include "shared/base/checksum.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/lock_file.h"
#include "shared/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAUSE_NS 5000000000u /* nothing is written for so long after a write that failed */
#define LOCK_MS 500 /* how often the lock is tried */

static void ring(const struct prefix_disk *disk)
{
	const uint64_t one = 1;

	(void)!write(disk->bell, &one, sizeof(one));
}

static void count(struct prefix_disk *disk)
{
	atomic_store_explicit(&disk->counts->bytes, disk->index.bytes, memory_order_relaxed);
	atomic_store_explicit(
		&disk->counts->files, disk->index.n_used + disk->n_others, memory_order_relaxed);
}

/* ---- The engine's thread. ---- */

uint64_t prefix_disk_find(
	struct prefix_disk *disk, uint64_t before, uint64_t domain, const int32_t *tokens)
{
	pthread_mutex_lock(&disk->lock);
	uint32_t e = prefix_index_find(&disk->index, before, domain, tokens);
	bool there = e != PREFIX_NONE && disk->index.entries[e].there;
	uint64_t id = there ? disk->index.entries[e].id : 0;
	pthread_mutex_unlock(&disk->lock);
	return id;
}

bool prefix_disk_pending(struct prefix_disk *disk, uint64_t id)
{
	bool pending = false;

	pthread_mutex_lock(&disk->lock);
	for (int i = 0; i < PREFIX_BUFFERS; i++)
		pending |= disk->buffers[i].state == BUFFER_GIVEN && disk->buffers[i].op.writes &&
			   disk->buffers[i].header.id == id;
	pthread_mutex_unlock(&disk->lock);
	return pending;
}

bool prefix_disk_has(struct prefix_disk *disk, uint64_t id)
{
	pthread_mutex_lock(&disk->lock);
	bool has = prefix_index_id(&disk->index, id) != PREFIX_NONE;
	pthread_mutex_unlock(&disk->lock);
	return has;
}

/* Under the lock. */
static struct prefix_buffer *take_free(struct prefix_disk *disk)
{
	for (int i = 0; i < PREFIX_BUFFERS; i++)
		if (disk->buffers[i].state == BUFFER_FREE)
			return &disk->buffers[i];
	return NULL;
}

struct prefix_buffer *prefix_disk_writes(struct prefix_disk *disk)
{
	struct prefix_buffer *buffer = NULL;

	pthread_mutex_lock(&disk->lock);
	if (disk->ready && disk->n_writing < PREFIX_WRITES && clock_ns() >= disk->paused_ns)
		buffer = take_free(disk);
	pthread_mutex_unlock(&disk->lock);
	return buffer;
}

void *prefix_buffer_content(struct prefix_buffer *buffer)
{
	return buffer->bytes + PREFIX_HEADER_BYTES;
}

/* Of a page or of a state. */
static uint64_t content_bytes(const struct prefix_disk *disk, bool is_state)
{
	return is_state ? disk->shape.state_bytes : disk->content_bytes;
}

/* Under the lock. Hands a buffer to the thread. */
static void give_to_thread(
	struct prefix_disk *disk, struct prefix_buffer *buffer, void *state, bool writes)
{
	buffer->outside = state;
	buffer->content_begun = false;
	buffer->state = BUFFER_GIVEN;
	buffer->op = (struct prefix_op){.writes = writes, .fd = -1};
	disk->n_writing += writes;
	disk->jobs[disk->n_jobs++] = buffer;
}

uint64_t prefix_disk_write(struct prefix_disk *disk, struct prefix_buffer *buffer,
	const struct prefix_header *header, void *state)
{
	uint64_t id = 0;

	buffer->header = *header;
	if (getrandom(&id, sizeof(id), GRND_NONBLOCK) != sizeof(id) || id == 0)
		return 0;
	buffer->header.id = id;
	buffer->header.shape = disk->shape;
	buffer->header.kind = state != NULL ? PREFIX_STATE : PREFIX_PAGE;
	buffer->header.content_bytes = content_bytes(disk, state != NULL);
	pthread_mutex_lock(&disk->lock);
	if (!prefix_disk_make_room(disk, buffer->header.content_bytes) ||
		prefix_index_add(&disk->index, &buffer->header, false) == PREFIX_NONE)
		id = 0;
	else
		give_to_thread(disk, buffer, state, true);
	count(disk);
	pthread_mutex_unlock(&disk->lock);
	if (id != 0)
		ring(disk);
	return id;
}

struct prefix_buffer *prefix_disk_read(struct prefix_disk *disk, uint64_t id, void *state)
{
	pthread_mutex_lock(&disk->lock);
	struct prefix_buffer *buffer = take_free(disk);
	if (buffer != NULL) {
		buffer->header.id = id;
		buffer->dropped = false;
		atomic_store_explicit(&buffer->rc, -EINPROGRESS, memory_order_relaxed);
		give_to_thread(disk, buffer, state, false);
	}
	pthread_mutex_unlock(&disk->lock);
	if (buffer != NULL)
		ring(disk);
	return buffer;
}

int prefix_disk_arrived(const struct prefix_buffer *buffer, const struct prefix_header **header)
{
	/* Pairs with the release in read_ended: the content is there. */
	int rc = atomic_load_explicit(&buffer->rc, memory_order_acquire);

	*header = &buffer->header;
	return rc;
}

void prefix_disk_give(struct prefix_disk *disk, struct prefix_buffer **buffer)
{
	pthread_mutex_lock(&disk->lock);
	if (atomic_load_explicit(&(*buffer)->rc, memory_order_relaxed) == -EINPROGRESS)
		(*buffer)->dropped = true;
	else
		(*buffer)->state = BUFFER_FREE;
	pthread_mutex_unlock(&disk->lock);
	*buffer = NULL;
}

bool prefix_disk_busy(struct prefix_disk *disk)
{
	pthread_mutex_lock(&disk->lock);
	bool busy = disk->n_writing > 0;
	pthread_mutex_unlock(&disk->lock);
	return busy;
}

/* ---- Files. ---- */

void prefix_disk_name(uint64_t id, const char *end, char *out)
{
	snprintf(out, PREFIX_NAME_BYTES, "%016llx%s", (unsigned long long)id, end);
}

bool prefix_disk_make_room(struct prefix_disk *disk, uint64_t content_bytes)
{
	struct prefix_index *x = &disk->index;
	uint64_t bytes = PREFIX_HEADER_BYTES + content_bytes;

	while (!prefix_index_fits(x, bytes) && disk->n_unlinks < UNLINKS) {
		uint32_t e = PREFIX_NONE;
		uint64_t id;

		if (disk->n_others > 0) {
			const struct prefix_other *other = &disk->others[--disk->n_others];

			id = other->id;
			x->bytes -= other->bytes;
		} else if ((e = prefix_index_least(x)) != PREFIX_NONE) {
			id = x->entries[e].id;
			prefix_index_remove(x, e, true);
		} else {
			return false;
		}
		disk->unlinks[disk->n_unlinks++] = id;
	}
	return prefix_index_fits(x, bytes);
}

static void unlink_id(struct prefix_disk *disk, uint64_t id)
{
	char name[PREFIX_NAME_BYTES];

	prefix_disk_name(id, PREFIX_END, name);
	(void)unlinkat(disk->dir, name, 0);
}

void prefix_disk_unlink(struct prefix_disk *disk)
{
	uint64_t unlinks[UNLINKS];

	pthread_mutex_lock(&disk->lock);
	uint32_t n = disk->n_unlinks;
	memcpy(unlinks, disk->unlinks, n * sizeof(*unlinks));
	disk->n_unlinks = 0;
	pthread_mutex_unlock(&disk->lock);
	for (uint32_t i = 0; i < n; i++)
		unlink_id(disk, unlinks[i]);
}

/* Removes the last page of those behind this one, or itself; 0: it is not there any more. */
static uint64_t lose_last(struct prefix_disk *disk, uint64_t id)
{
	struct prefix_index *x = &disk->index;
	uint64_t gone = 0;

	pthread_mutex_lock(&disk->lock);
	uint32_t e = prefix_index_id(x, id);
	if (e != PREFIX_NONE) {
		e = prefix_index_behind(x, e);
		gone = x->entries[e].id;
		prefix_index_remove(x, e, false);
	}
	count(disk);
	pthread_mutex_unlock(&disk->lock);
	return gone;
}

/* Removes a page that is not on disk, and those behind it, which nobody can use without it. */
static void lose(struct prefix_disk *disk, uint64_t id)
{
	uint64_t gone;

	while ((gone = lose_last(disk, id)) != 0)
		unlink_id(disk, gone);
}

/* ---- The thread. ---- */

static void *content_of(struct prefix_buffer *buffer)
{
	return buffer->outside != NULL ? buffer->outside : buffer->bytes + PREFIX_HEADER_BYTES;
}

/* A page lies behind its header in the buffer; a state is elsewhere, and is the second step. */
static void place_op(struct prefix_disk *disk, struct prefix_buffer *buffer)
{
	buffer->op.at = buffer->bytes;
	buffer->op.bytes =
		PREFIX_HEADER_BYTES + (buffer->outside == NULL ? disk->content_bytes : 0);
}

static void start_write(struct prefix_disk *disk, struct prefix_buffer *buffer)
{
	char name[PREFIX_NAME_BYTES];
	struct prefix_op *op = &buffer->op;

	buffer->header.content_sum = checksum(0, content_of(buffer), buffer->header.content_bytes);
	prefix_header_write(&buffer->header, buffer->bytes);
	prefix_disk_name(buffer->header.id, PREFIX_PART, name);
	op->fd =
		openat(disk->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	place_op(disk, buffer);
}

static int open_read(struct prefix_disk *disk, struct prefix_buffer *buffer)
{
	char name[PREFIX_NAME_BYTES];
	struct stat status;
	struct prefix_op *op = &buffer->op;

	prefix_disk_name(buffer->header.id, PREFIX_END, name);
	op->fd = openat(disk->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (op->fd < 0)
		return -errno;
	if (fstat(op->fd, &status) != 0)
		return -errno;
	place_op(disk, buffer);
	if (!S_ISREG(status.st_mode) ||
		(uint64_t)status.st_size !=
			PREFIX_HEADER_BYTES + content_bytes(disk, buffer->outside != NULL))
		return -EBADMSG;
	return 0;
}

/* Ends a write: the file gets its name. */
static int name_file(struct prefix_disk *disk, uint64_t id)
{
	char part[PREFIX_NAME_BYTES], name[PREFIX_NAME_BYTES];

	prefix_disk_name(id, PREFIX_PART, part);
	prefix_disk_name(id, PREFIX_END, name);
	return renameat(disk->dir, part, disk->dir, name) == 0 ? 0 : -errno;
}

static void write_ended(struct prefix_disk *disk, struct prefix_buffer *buffer, int rc)
{
	uint64_t id = buffer->header.id;
	char part[PREFIX_NAME_BYTES];
	uint32_t e = PREFIX_NONE;

	if (rc == 0)
		rc = name_file(disk, id);
	if (rc != 0) {
		prefix_disk_name(id, PREFIX_PART, part);
		(void)unlinkat(disk->dir, part, 0);
		counter_add(&disk->counts->failed, 1);
		log_limited(LOG_LEVEL_NOTICE,
			"prefix file %s/%s cannot be written: %s; such pages are not on disk, and "
			"are computed again",
			disk->path, part, strerror(-rc));
		lose(disk, id);
	}
	pthread_mutex_lock(&disk->lock);
	if (rc == 0 && (e = prefix_index_id(&disk->index, id)) != PREFIX_NONE)
		disk->index.entries[e].there = true;
	else if (rc != 0)
		disk->paused_ns = clock_ns() + PAUSE_NS;
	disk->n_writing--;
	buffer->state = BUFFER_FREE;
	pthread_mutex_unlock(&disk->lock);
	if (rc != 0)
		return;
	counter_add(&disk->counts->written, 1);
	/* The page before it could not be written: see lose. */
	if (e == PREFIX_NONE)
		unlink_id(disk, id);
}

static int check_read(struct prefix_disk *disk, struct prefix_buffer *buffer, struct error *err)
{
	uint64_t id = buffer->header.id;
	bool is_state = buffer->outside != NULL;
	int rc = prefix_header_read(buffer->bytes,
		PREFIX_HEADER_BYTES + content_bytes(disk, is_state), &buffer->header, err);

	if (rc == 0 && buffer->header.id != id)
		rc = error_set(err, EBADMSG, "it has another name than its header says");
	if (rc == 0)
		rc = prefix_shape_check(&buffer->header.shape, &disk->shape, err);
	if (rc == 0 && (buffer->header.kind == PREFIX_STATE) != is_state)
		rc = error_set(err, EBADMSG, "it is of another kind than it was");
	if (rc == 0)
		rc = prefix_content_check(&buffer->header, content_of(buffer), err);
	buffer->header.id = id;
	return rc;
}

static void read_ended(struct prefix_disk *disk, struct prefix_buffer *buffer, int rc)
{
	uint64_t id = buffer->header.id;
	struct error err;
	uint32_t e;

	if (rc == -EBADMSG)
		(void)error_set(&err, EBADMSG, "it is truncated, or no file");
	else if (rc != 0)
		(void)error_set(&err, -rc, "%s", strerror(-rc));
	else
		rc = check_read(disk, buffer, &err);
	if (rc != 0) {
		counter_add(&disk->counts->failed, 1);
		log_limited(LOG_LEVEL_NOTICE,
			"prefix file %s/%016llx" PREFIX_END
			" is not used: %s; its tokens are computed again",
			disk->path, (unsigned long long)id, err.text);
		lose(disk, id);
	} else {
		counter_add(&disk->counts->read, 1);
	}
	pthread_mutex_lock(&disk->lock);
	if (rc == 0 && (e = prefix_index_id(&disk->index, id)) != PREFIX_NONE)
		prefix_index_used(&disk->index, e);
	/* Pairs with the acquire in prefix_disk_arrived. */
	atomic_store_explicit(&buffer->rc, rc, memory_order_release);
	buffer->state = buffer->dropped ? BUFFER_FREE : BUFFER_READ;
	pthread_mutex_unlock(&disk->lock);
}

static void ended(struct prefix_disk *disk, struct prefix_buffer *buffer, int rc)
{
	struct prefix_op *op = &buffer->op;

	/* For the order in which a successor lets them go. */
	if (op->fd >= 0 && !op->writes && rc == 0)
		(void)futimens(op->fd, NULL);
	/* Some file systems report only here that there was no room. */
	if (op->fd >= 0 && close(op->fd) != 0 && rc == 0 && op->writes)
		rc = -errno;
	op->fd = -1;
	disk->n_flying--;
	if (op->writes)
		write_ended(disk, buffer, rc);
	else
		read_ended(disk, buffer, rc);
	disk->wake(disk->arg);
}

static void begin(struct prefix_disk *disk, struct prefix_buffer *buffer)
{
	int rc = 0;

	disk->n_flying++;
	if (buffer->op.writes) {
		start_write(disk, buffer);
		rc = buffer->op.fd < 0 ? -errno : 0;
	} else {
		rc = open_read(disk, buffer);
	}
	if (rc != 0)
		ended(disk, buffer, rc);
	else
		prefix_io_start(disk->io, &buffer->op);
}

/* Behind the header of a state. */
static void start_content(struct prefix_disk *disk, struct prefix_buffer *buffer)
{
	buffer->content_begun = true;
	buffer->op.at = buffer->outside;
	buffer->op.bytes = disk->shape.state_bytes;
	prefix_io_start(disk->io, &buffer->op);
}

/* One step of a read or write has ended. */
static void stepped(struct prefix_disk *disk, struct prefix_op *op)
{
	struct prefix_buffer *buffer =
		(struct prefix_buffer *)(void *)((char *)op - offsetof(struct prefix_buffer, op));
	long n = op->result;

	if (n > 0) {
		op->at += n;
		op->offset += (size_t)n;
		op->bytes -= (size_t)n;
	}
	if (n < 0 && n != -EINTR && n != -EAGAIN)
		ended(disk, buffer, (int)n);
	else if (n == 0)
		/* A file that ends too early, or a disk that takes nothing more. */
		ended(disk, buffer, op->writes ? -ENOSPC : -EBADMSG);
	else if (op->bytes == 0 && buffer->outside != NULL && !buffer->content_begun)
		start_content(disk, buffer);
	else if (op->bytes == 0)
		ended(disk, buffer, 0);
	else
		prefix_io_start(disk->io, op);
}

/* Takes what the engine has given. False: the end. */
static bool take_jobs(struct prefix_disk *disk)
{
	struct prefix_buffer *jobs[PREFIX_BUFFERS];

	pthread_mutex_lock(&disk->lock);
	uint32_t n = disk->n_jobs;
	memcpy(jobs, disk->jobs, n * sizeof(*jobs));
	disk->n_jobs = 0;
	bool stop = disk->stop;
	pthread_mutex_unlock(&disk->lock);
	/* First, so that there is room for what is written. */
	prefix_disk_unlink(disk);
	for (uint32_t i = 0; i < n; i++)
		begin(disk, jobs[i]);
	return !stop || disk->n_flying > 0;
}

static bool stopped(struct prefix_disk *disk)
{
	pthread_mutex_lock(&disk->lock);
	bool stop = disk->stop;
	pthread_mutex_unlock(&disk->lock);
	return stop;
}

/* Waits until no other process uses the directory. */
static bool take_lock(struct prefix_disk *disk)
{
	char path[PATH_MAX + 8];
	struct error err;
	bool said = false;

	snprintf(path, sizeof(path), "%s/lock", disk->path);
	while (!stopped(disk)) {
		struct pollfd bell = {.fd = disk->bell, .events = POLLIN};
		pid_t holder;
		int rc = lock_file_take(path, &disk->lock_fd, &holder, &err);

		if (rc == 0)
			return true;
		if (!said && rc == -EWOULDBLOCK)
			log_notice("prefix_dir %s is used by process %ld: waiting for it",
				disk->path, (long)holder);
		else if (!said)
			log_error("prefix_dir: %s", err.text);
		said = true;
		(void)poll(&bell, 1, LOCK_MS);
	}
	return false;
}

static void *thread_main(void *arg)
{
	struct prefix_disk *disk = arg;

	pthread_setname_np(pthread_self(), "prefixes");
	if (!take_lock(disk))
		return NULL;
	prefix_disk_scan(disk);
	pthread_mutex_lock(&disk->lock);
	count(disk);
	disk->ready = true;
	pthread_mutex_unlock(&disk->lock);
	disk->wake(disk->arg);
	while (take_jobs(disk)) {
		struct prefix_op *op = prefix_io_next(disk->io);

		if (op != NULL)
			stepped(disk, op);
	}
	return NULL;
}

/* ---- Start and end. ---- */

static int open_dir(struct prefix_disk *disk, struct error *err)
{
	if (mkdir(disk->path, 0700) != 0 && errno != EEXIST)
		return error_set(
			err, errno, "prefix_dir %s: mkdir: %s", disk->path, strerror(errno));
	disk->dir = open(disk->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (disk->dir < 0)
		return error_set(err, errno, "prefix_dir %s: %s", disk->path, strerror(errno));
	if (faccessat(disk->dir, ".", W_OK | X_OK, 0) != 0)
		return error_set(err, errno, "prefix_dir %s: %s", disk->path, strerror(errno));
	return 0;
}

uint64_t prefix_disk_memory(uint64_t content_bytes)
{
	return PREFIX_BUFFERS * (PREFIX_HEADER_BYTES + content_bytes);
}

static int allocate(
	struct prefix_disk *disk, const struct prefix_disk_options *o, struct error *err)
{
	uint64_t bytes = PREFIX_HEADER_BYTES + o->content_bytes;
	uint64_t both = bytes + PREFIX_HEADER_BYTES + o->shape.state_bytes;

	if (o->budget < bytes)
		return error_set(err, EINVAL,
			"prefix_disk is %llu bytes: a page of this model has %llu",
			(unsigned long long)o->budget, (unsigned long long)bytes);
	if (o->shape.state_bytes > 0 && o->budget < both)
		return error_set(err, EINVAL,
			"prefix_disk is %llu bytes: a page and the recurrent states of this model "
			"have %llu",
			(unsigned long long)o->budget, (unsigned long long)both);
	disk->path = strdup(o->dir);
	disk->memory = malloc(prefix_disk_memory(o->content_bytes));
	if (disk->path == NULL || disk->memory == NULL ||
		prefix_index_init(&disk->index, o->budget, bytes) != 0)
		return error_set(err, ENOMEM, "no memory for %d pages of %llu bytes",
			PREFIX_BUFFERS, (unsigned long long)bytes);
	for (int i = 0; i < PREFIX_BUFFERS; i++)
		disk->buffers[i].bytes = disk->memory + (size_t)i * bytes;
	disk->bell = eventfd(0, EFD_CLOEXEC);
	if (disk->bell < 0)
		return error_set(err, errno, "eventfd: %s", strerror(errno));
	disk->io = prefix_io_open(disk->bell);
	return disk->io != NULL ? 0 : error_set(err, ENOMEM, "no memory for io_uring");
}

int prefix_disk_open(
	const struct prefix_disk_options *options, struct prefix_disk **out, struct error *err)
{
	struct prefix_disk *disk = calloc(1, sizeof(*disk));

	*out = NULL;
	if (disk == NULL)
		return error_set(err, ENOMEM, "no memory for prefixes on disk");
	disk->dir = disk->bell = disk->lock_fd = -1;
	disk->shape = options->shape;
	disk->content_bytes = options->content_bytes;
	disk->wake = options->wake;
	disk->arg = options->arg;
	disk->counts = options->counts;
	pthread_mutex_init(&disk->lock, NULL);
	int rc = allocate(disk, options, err);
	if (rc == 0)
		rc = open_dir(disk, err);
	if (rc == 0 && (rc = pthread_create(&disk->thread, NULL, thread_main, disk)) != 0)
		rc = error_thread(err, rc, "the thread for prefix files cannot be started");
	disk->started = rc == 0;
	if (rc != 0)
		prefix_disk_close(&disk);
	*out = disk;
	return rc;
}

void prefix_disk_close(struct prefix_disk **out)
{
	struct prefix_disk *disk = *out;

	if (disk == NULL)
		return;
	pthread_mutex_lock(&disk->lock);
	disk->stop = true;
	pthread_mutex_unlock(&disk->lock);
	if (disk->started) {
		ring(disk);
		pthread_join(disk->thread, NULL);
	}
	prefix_io_close(&disk->io);
	prefix_index_exit(&disk->index);
	if (disk->dir >= 0)
		close(disk->dir);
	if (disk->bell >= 0)
		close(disk->bell);
	if (disk->lock_fd >= 0)
		close(disk->lock_fd);
	pthread_mutex_destroy(&disk->lock);
	free(disk->others);
	free(disk->path);
	free(disk->memory);
	free(disk);
	*out = NULL;
}
