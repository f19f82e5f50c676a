/*
 * Faults on demand, for the integration tests: a shared object that is loaded before the C library (LD_PRELOAD), by every
 * process of a service. It does what the file says that OUTRIDER_FAULTS names, which tests/integration/faults.py writes:
 * reads of the model that fail (preadv as well as io_uring), a file system that knows no O_DIRECT or only opens so, a clock
 * that is wrong, a long text that takes as long as is wanted, reads or writes of prefix files that fail.
 *
 * What io_uring reads the kernel itself has to end so: with EIO it ends a read of /proc/self/mem at address 0, and with ETIME
 * a timeout, which is what a read is turned into for any other code than EIO.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* As in faults.py. */
struct faults {
	_Atomic uint64_t from, to; /* reads that touch these bytes of the file fail */
	_Atomic int64_t left; /* how many more of them */
	_Atomic uint64_t failed; /* how many have */
	_Atomic int64_t code; /* how they fail, 0: EIO */
	_Atomic uint64_t no_direct; /* O_DIRECT is refused: 1 by open, 2 by preadv */
	_Atomic int64_t wall_ns; /* how wrong the time of day is */
	_Atomic uint64_t text_held; /* the thread that reads long texts stands still */
	_Atomic uint64_t text_waits; /* how often it has */
	_Atomic int64_t prefix_reads, prefix_writes; /* how many of prefix files fail from now on */
	_Atomic uint64_t prefix_failed; /* how many have */
	_Atomic uint64_t prefix_bytes; /* only those of so many bytes fail; 0: all of them */
};

static struct faults nothing, *faults = &nothing;
static int bad_fd = -1; /* reading and writing from 0 on fail with EIO */

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("OUTRIDER_FAULTS");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *map = fd < 0 ? MAP_FAILED
			   : mmap(NULL, sizeof(struct faults), PROT_READ | PROT_WRITE, MAP_SHARED,
				     fd, 0);

	if (fd >= 0)
		close(fd);
	if (map != MAP_FAILED)
		faults = map;
	bad_fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
}

/* Whether this read, of a model, is one that fails. */
static bool fails(uint64_t offset, uint64_t bytes)
{
	if (offset >= faults->to || offset + bytes <= faults->from || faults->left <= 0)
		return false;
	if (atomic_fetch_sub(&faults->left, 1) <= 0)
		return false;
	atomic_fetch_add(&faults->failed, 1);
	return true;
}

/* The thread of the verifier that does all the work of prefix files. */
static _Thread_local bool does_prefixes;

/* Whether this read or write, by the thread of prefix files, is one that fails. */
static bool prefix_fails(bool writes, uint64_t bytes)
{
	_Atomic int64_t *left = writes ? &faults->prefix_writes : &faults->prefix_reads;

	if (!does_prefixes || (faults->prefix_bytes != 0 && faults->prefix_bytes != bytes) ||
		*left <= 0 || atomic_fetch_sub(left, 1) <= 0)
		return false;
	atomic_fetch_add(&faults->prefix_failed, 1);
	return true;
}

ssize_t preadv(int fd, const struct iovec *iov, int n, off_t offset)
{
	static ssize_t (*next)(int, const struct iovec *, int, off_t);
	uint64_t bytes = 0;

	if (!next)
		next = (ssize_t(*)(int, const struct iovec *, int, off_t))dlsym(
			RTLD_NEXT, "preadv");
	for (int i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	if (faults->no_direct == 2 && (fcntl(fd, F_GETFL) & O_DIRECT)) {
		errno = EINVAL;
		return -1;
	}
	if (fails((uint64_t)offset, bytes)) {
		errno = faults->code ? (int)faults->code : EIO;
		return -1;
	}
	return next(fd, iov, n, offset);
}

ssize_t pread(int fd, void *out, size_t bytes, off_t offset)
{
	static ssize_t (*next)(int, void *, size_t, off_t);

	if (!next)
		next = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
	if (prefix_fails(false, bytes)) {
		errno = EIO;
		return -1;
	}
	return next(fd, out, bytes, offset);
}

ssize_t pwrite(int fd, const void *in, size_t bytes, off_t offset)
{
	static ssize_t (*next)(int, const void *, size_t, off_t);

	if (!next)
		next = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
	if (prefix_fails(true, bytes)) {
		errno = EIO;
		return -1;
	}
	return next(fd, in, bytes, offset);
}

static uint64_t bytes_of(const struct io_uring_sqe *sqe)
{
	const struct iovec *iov = (const struct iovec *)(uintptr_t)sqe->addr;
	uint64_t bytes = 0;

	if (sqe->opcode != IORING_OP_READV)
		return sqe->len;
	for (uint32_t i = 0; i < sqe->len; i++)
		bytes += iov[i].iov_len;
	return bytes;
}

/* A read of as many bytes, to the same memory, of a file that gives none; or none at all. */
static void spoil(struct io_uring_sqe *sqe)
{
	static const struct __kernel_timespec at_once;

	if (faults->code && faults->code != EIO) {
		*sqe = (struct io_uring_sqe){.opcode = IORING_OP_TIMEOUT,
			.fd = -1,
			.addr = (uintptr_t)&at_once,
			.len = 1,
			.user_data = sqe->user_data};
		return;
	}
	if (sqe->opcode == IORING_OP_READ_FIXED)
		sqe->opcode = IORING_OP_READ;
	sqe->flags &= (uint8_t)~IOSQE_FIXED_FILE;
	sqe->buf_index = 0;
	sqe->fd = bad_fd;
	sqe->off = 0;
}

/* Writing to /proc/self/mem at address 0 ends with EIO too. */
static void spoil_prefix(struct io_uring_sqe *sqe)
{
	sqe->fd = bad_fd;
	sqe->off = 0;
}

int io_uring_submit(struct io_uring *ring)
{
	static int (*next)(struct io_uring *);

	if (!next)
		next = (int (*)(struct io_uring *))dlsym(RTLD_NEXT, "io_uring_submit");
	/* What the kernel has been given already is looked at no more: only what was prepared since. */
	for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
		struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
		bool reads = sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READV ||
			     sqe->opcode == IORING_OP_READ_FIXED;
		bool writes = sqe->opcode == IORING_OP_WRITE;

		if (does_prefixes && (reads || writes)) {
			if (sqe->fd != bad_fd && sqe->len > sizeof(uint64_t) &&
				prefix_fails(writes, sqe->len))
				spoil_prefix(sqe);
		} else if (reads && sqe->fd != bad_fd && fails(sqe->off, bytes_of(sqe))) {
			spoil(sqe);
		}
	}
	return next(ring);
}

int open(const char *path, int flags, ...)
{
	static int (*next)(const char *, int, ...);
	va_list arguments;
	mode_t mode = 0;

	if (!next)
		next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
	va_start(arguments, flags);
	if (flags & (O_CREAT | O_TMPFILE))
		mode = va_arg(arguments, mode_t);
	va_end(arguments);
	if ((flags & O_DIRECT) && faults->no_direct == 1) {
		errno = EINVAL;
		return -1;
	}
	return next(path, flags, mode);
}

static _Thread_local bool reads_texts;

int pthread_setname_np(pthread_t thread, const char *name)
{
	static int (*next)(pthread_t, const char *);

	if (!next)
		next = (int (*)(pthread_t, const char *))dlsym(RTLD_NEXT, "pthread_setname_np");
	if (pthread_equal(thread, pthread_self()))
		reads_texts = strcmp(name, "text") == 0;
	if (pthread_equal(thread, pthread_self()))
		does_prefixes = strcmp(name, "prefixes") == 0;
	return next(thread, name);
}

/* The tokens of a text are put into memory that grows. */
void *realloc(void *memory, size_t bytes)
{
	static void *(*next)(void *, size_t);

	if (!next)
		next = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
	if (reads_texts && faults->text_held) {
		atomic_fetch_add(&faults->text_waits, 1);
		while (faults->text_held)
			usleep(1000);
	}
	return next(memory, bytes);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static int (*next)(clockid_t, struct timespec *);

	if (!next)
		next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	int r = next(clock, now);
	if (r == 0 && clock == CLOCK_REALTIME && faults->wall_ns) {
		int64_t ns = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + faults->wall_ns;
		now->tv_sec = ns / 1000000000;
		now->tv_nsec = ns % 1000000000;
	}
	return r;
}
