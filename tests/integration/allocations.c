/*
 * Counts the heap allocations of each thread, for the integration tests: a shared object that is loaded before the C library
 * (LD_PRELOAD), by every process of a service. The counts of process N lie in file N of the folder that OUTRIDER_ALLOCATIONS
 * names, which tests/integration/allocations.py reads while the process runs.
 *
 * Those that make or read a message of the control plane (within libzmq and libprotobuf-c) are counted apart, with the messages.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <protobuf-c/protobuf-c.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zmq.h>

/* As in allocations.py. */
struct thread_count {
	_Atomic uint64_t thread; /* its number, 0 where the row is free */
	_Atomic uint64_t n; /* allocations for nothing but its own work */
	_Atomic uint64_t of_messages, messages;
};
enum { THREADS = 256 };

static struct {
	_Atomic uint32_t used;
	struct thread_count none; /* of threads beyond them, and before the file is there */
} local;
static struct thread_count *counts;
static __thread struct thread_count *mine __attribute__((tls_model("initial-exec")));
static __thread unsigned in_message __attribute__((tls_model("initial-exec"))); /* calls deep */

__attribute__((constructor)) static void begin(void)
{
	const char *folder = getenv("OUTRIDER_ALLOCATIONS");
	char path[4096];

	if (!folder)
		return;
	snprintf(path, sizeof(path), "%s/%d", folder, (int)getpid());
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, THREADS * sizeof(*counts)) != 0)
		abort();
	void *map =
		mmap(NULL, THREADS * sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		abort();
	close(fd);
	counts = map;
}

static void count(void)
{
	if (!mine && counts) {
		uint32_t row = atomic_fetch_add(&local.used, 1);

		mine = row < THREADS ? &counts[row] : &local.none;
		atomic_store(&mine->thread, (uint64_t)gettid());
	}
	if (mine)
		atomic_fetch_add(in_message > 0 ? &mine->of_messages : &mine->n, 1);
}

static void *next(const char *name)
{
	void *function = dlsym(RTLD_NEXT, name);

	if (!function)
		abort();
	return function;
}

/* Of a call that makes or reads one. */
static void message_begin(void)
{
	if (in_message++ == 0 && mine)
		atomic_fetch_add(&mine->messages, 1);
}

int zmq_msg_init_size(zmq_msg_t *message, size_t bytes)
{
	static int (*real)(zmq_msg_t *, size_t);

	if (!real)
		real = (int (*)(zmq_msg_t *, size_t))next("zmq_msg_init_size");
	message_begin();
	int rc = real(message, bytes);
	in_message--;
	return rc;
}

/* On its way, and looked for: no further message. */
int zmq_msg_send(zmq_msg_t *message, void *socket, int flags)
{
	static int (*real)(zmq_msg_t *, void *, int);

	if (!real)
		real = (int (*)(zmq_msg_t *, void *, int))next("zmq_msg_send");
	in_message++;
	int rc = real(message, socket, flags);
	in_message--;
	return rc;
}

int zmq_msg_recv(zmq_msg_t *message, void *socket, int flags)
{
	static int (*real)(zmq_msg_t *, void *, int);

	if (!real)
		real = (int (*)(zmq_msg_t *, void *, int))next("zmq_msg_recv");
	in_message++;
	int rc = real(message, socket, flags);
	in_message--;
	return rc;
}

ProtobufCMessage *protobuf_c_message_unpack(const ProtobufCMessageDescriptor *descriptor,
	ProtobufCAllocator *allocator, size_t bytes, const uint8_t *data)
{
	static ProtobufCMessage *(*real)(
		const ProtobufCMessageDescriptor *, ProtobufCAllocator *, size_t, const uint8_t *);

	if (!real)
		real = (ProtobufCMessage * (*)(const ProtobufCMessageDescriptor *,
						   ProtobufCAllocator *, size_t, const uint8_t *))
			next("protobuf_c_message_unpack");
	message_begin();
	ProtobufCMessage *out = real(descriptor, allocator, bytes, data);
	in_message--;
	return out;
}

/* glibc's own are behind these names. */
extern void *__libc_malloc(size_t bytes); /* NOLINT(bugprone-reserved-identifier) */
extern void *__libc_calloc(size_t n, size_t bytes); /* NOLINT(bugprone-reserved-identifier) */
extern void *__libc_realloc(void *old, size_t bytes); /* NOLINT(bugprone-reserved-identifier) */
extern void *__libc_memalign(size_t unit, size_t bytes); /* NOLINT(bugprone-reserved-identifier) */

void *malloc(size_t bytes)
{
	count();
	return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	count();
	return __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
	count();
	return __libc_realloc(old, bytes);
}

void *memalign(size_t unit, size_t bytes)
{
	count();
	return __libc_memalign(unit, bytes);
}

void *aligned_alloc(size_t unit, size_t bytes)
{
	return memalign(unit, bytes);
}

int posix_memalign(void **out, size_t unit, size_t bytes)
{
	*out = memalign(unit, bytes);
	return *out ? 0 : ENOMEM;
}
