#include "shared/ipc/region.h"

#include "shared/base/nodes.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define REGION_MAGIC 0x4e47524fu /* "ORGN" */

/* No holder of a descriptor may resize the file: a peer that shrank it would kill us with SIGBUS.
 */
#define REGION_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* An open file keeps the access mode it was opened with, even when its descriptor is passed on.
 * Opening it through /proc makes a new open file. */
static int open_again(int fd, int flags)
{
	char path[32];
	int again;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	again = open(path, flags | O_CLOEXEC);
	return again < 0 ? -errno : again;
}

int region_read_only(int fd)
{
	return open_again(fd, O_RDONLY);
}

int region_memory_fd(int fd)
{
	int again = open_again(fd, O_RDWR);

	if (again >= 0)
		return again;
	again = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return again < 0 ? -errno : again;
}

static bool reads_only(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && (flags & O_ACCMODE) == O_RDONLY;
}

/* Replaces region->fd with a descriptor of the same file opened again. */
static int change_right(struct region *region, int flags)
{
	int again = open_again(region->fd, flags);

	if (again < 0)
		return again;
	close(region->fd);
	region->fd = again;
	return 0;
}

/* The pages of a memfd are allocated when they are first touched. A region larger than the machine
 * would be granted without complaint, and a process would be killed later. */
static int check_memory(const char *name, size_t bytes, struct error *err)
{
	struct sysinfo info;
	uint64_t total;

	if (sysinfo(&info) < 0)
		return error_set(err, errno, "region %s: sysinfo: %s", name, strerror(errno));
	total = ((uint64_t)info.totalram + info.totalswap) * info.mem_unit;
	if (bytes > total)
		return error_set(err, ENOMEM,
			"region %s: %zu MiB asked for, the machine has %llu MiB", name, bytes >> 20,
			(unsigned long long)(total >> 20));
	return 0;
}

static int map(const char *name, int prot, struct region *out, struct error *err)
{
	void *at = mmap(NULL, out->bytes, prot, MAP_SHARED, out->fd, 0);

	if (at == MAP_FAILED)
		return error_refused(
			err, errno, "region %s: cannot map %zu bytes", name, out->bytes);
	out->header = at;
	return 0;
}

/* A memfd starts with mode 0777: any user who was given a descriptor for reading could open it for
 * writing. */
static int seal(const struct region *region, const char *name, struct error *err)
{
	if (fchmod(region->fd, 0600) < 0)
		return error_set(
			err, errno, "region %s: its mode cannot be set: %s", name, strerror(errno));
	if (fcntl(region->fd, F_ADD_SEALS, REGION_SEALS) == 0)
		return 0;
	return error_set(
		err, errno, "region %s: its size cannot be sealed: %s", name, strerror(errno));
}

static int make_file(const char *name, struct region *region, struct error *err)
{
	region->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (region->fd < 0)
		return error_set(err, errno, "region %s: memfd_create: %s", name, strerror(errno));
	if (ftruncate(region->fd, (off_t)region->bytes) != 0)
		return error_set(err, errno, "region %s: cannot make it %zu bytes long: %s", name,
			region->bytes, strerror(errno));
	return map(name, PROT_READ | PROT_WRITE, region, err);
}

/* Makes the region's file and maps it. It has region->bytes bytes, or more where huge pages round
 * the size up. */
static int make_memory(const char *name, unsigned flags, struct huge_pages *pages,
	struct region *region, struct error *err)
{
	void *address;

	/* The pool of huge pages reserves all of a region or nothing, so it does not suit a region
	 * of which only part will be used. */
	if (!(flags & REGION_HUGE) || flags & REGION_SPARSE) {
		int code = make_file(name, region, err);

		if (code == 0 && flags & REGION_HUGE)
			(void)huge_pages_advise(region->header, region->bytes, true);
		return code;
	}
	int code = huge_pages_memfd(name, region->bytes, pages, &region->fd, &address, err);
	if (code < 0)
		return code;
	region->header = address;
	region->bytes = pages->bytes;
	return 0;
}

static int create(const char *name, uint32_t layout, size_t payload_bytes, unsigned flags,
	struct huge_pages *pages, struct region *out, struct error *err)
{
	struct region region = {.fd = -1};
	uint64_t uid;
	int code;

	*out = region;
	if (name[0] == '\0' || strlen(name) >= LIMIT_NAME)
		return error_set(err, EINVAL, "region \"%s\": a name has 1 to %d bytes", name,
			LIMIT_NAME - 1);
	if (payload_bytes > PTRDIFF_MAX - REGION_DATA)
		return error_set(err, ENOMEM,
			"region %s: %zu bytes asked for, at most %zu can be addressed", name,
			payload_bytes, (size_t)PTRDIFF_MAX - REGION_DATA);
	region.bytes = REGION_DATA + payload_bytes;
	code = flags & REGION_SPARSE ? 0 : check_memory(name, region.bytes, err);
	if (code < 0)
		return code;
	if (getrandom(&uid, sizeof uid, 0) != sizeof uid)
		return error_set(err, EIO, "region %s: getrandom: %s", name, strerror(errno));
	code = make_memory(name, flags, pages, &region, err);
	/* None of its pages has been allocated yet. */
	if (code == 0 && flags & REGION_HUGE)
		nodes_interleave(region.header, region.bytes);
	if (code == 0)
		code = seal(&region, name, err);
	if (code < 0) {
		region_close(&region);
		return code;
	}
	assert(region.header);
	region.header->layout = layout;
	region.header->bytes = region.bytes;
	region.header->uid = uid;
	atomic_store_explicit(&region.header->generation, 1, memory_order_relaxed);
	memcpy(region.header->name, name, strlen(name) + 1);
	region.header->magic = REGION_MAGIC;
	*out = region;
	return 0;
}

int region_create(const char *name, uint32_t layout, size_t payload_bytes, unsigned flags,
	struct region *out, struct error *err)
{
	struct huge_pages pages;

	return create(name, layout, payload_bytes, flags, &pages, out, err);
}

int region_create_huge(const char *name, uint32_t layout, size_t payload_bytes,
	struct huge_pages *pages, struct region *out, struct error *err)
{
	return create(name, layout, payload_bytes, REGION_HUGE, pages, out, err);
}

/* Checks the file before it is mapped: its size is sealed and at least bytes_min. */
static int check_file(int fd, const char *name, size_t bytes_min, size_t *bytes, struct error *err)
{
	struct stat st;
	int seals;

	if (fstat(fd, &st) < 0)
		return error_set(
			err, errno, "region %s: descriptor %d: %s", name, fd, strerror(errno));
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
		return error_set(err, EPERM, "region %s: its size is not sealed", name);
	if (bytes_min < REGION_DATA)
		bytes_min = REGION_DATA;
	if (st.st_size < 0 || (uint64_t)st.st_size < bytes_min)
		return error_set(err, EINVAL, "region %s: %lld bytes, expected at least %zu", name,
			(long long)st.st_size, bytes_min);
	*bytes = (size_t)st.st_size;
	return 0;
}

static int check_header(
	const struct region *region, const char *name, uint32_t layout, struct error *err)
{
	const struct region_header *header = region->header;
	char got[LIMIT_NAME];

	assert(header);
	if (header->magic != REGION_MAGIC)
		return error_set(err, EINVAL, "region %s: magic is %#x, expected %#x", name,
			header->magic, REGION_MAGIC);
	memcpy(got, header->name, sizeof got);
	got[sizeof got - 1] = '\0';
	if (strcmp(got, name) != 0)
		return error_set(err, EINVAL, "region %s: is named \"%s\"", name, got);
	if (header->layout != layout)
		return error_set(err, EPROTO, "region %s: layout %u, expected %u", name,
			header->layout, layout);
	if (header->bytes != region->bytes)
		return error_set(err, EINVAL, "region %s: header says %llu bytes, the file has %zu",
			name, (unsigned long long)header->bytes, region->bytes);
	return 0;
}

/* The access that a region is mapped with. */
enum right {
	RIGHT_READ,
	RIGHT_WRITE,
	RIGHT_OWNER /* writes, whatever access its descriptor came with */
};

static int take_right(struct region *region, const char *name, enum right right, struct error *err)
{
	int code;

	if (right == RIGHT_READ) {
		/* Without /proc the descriptor stays as it came; the mapping is read-only all the
		 * same. */
		if (!reads_only(region->fd))
			(void)change_right(region, O_RDONLY);
		return 0;
	}
	if (!reads_only(region->fd))
		return 0;
	if (right == RIGHT_WRITE)
		return error_set(err, EACCES, "region %s: it was given for reading alone", name);
	code = change_right(region, O_RDWR);
	return code < 0 ? error_set(err, -code,
				  "region %s: cannot be opened for writing again (/proc/self/fd): "
				  "%s",
				  name, strerror(-code))
			: 0;
}

static int attach(int fd, const char *name, uint32_t layout, size_t bytes_min, enum right right,
	struct region *out, struct error *err)
{
	struct region region = {.fd = fd};
	int code;

	*out = (struct region){.fd = -1};
	/* Checked before the file is opened again: a sealed file is a memfd, and opening one has no
	 * side effect. */
	code = check_file(fd, name, bytes_min, &region.bytes, err);
	if (code == 0)
		code = take_right(&region, name, right, err);
	if (code == 0)
		code = map(name, right == RIGHT_READ ? PROT_READ : PROT_READ | PROT_WRITE, &region,
			err);
	if (code == 0)
		code = check_header(&region, name, layout, err);
	if (code < 0) {
		region_close(&region);
		return code;
	}
	*out = region;
	return 0;
}

int region_attach(int fd, const char *name, uint32_t layout, size_t bytes_min, bool writable,
	struct region *out, struct error *err)
{
	return attach(fd, name, layout, bytes_min, writable ? RIGHT_WRITE : RIGHT_READ, out, err);
}

int region_adopt(int fd, const char *name, uint32_t layout, size_t bytes_min, struct region *out,
	struct error *err)
{
	int code = attach(fd, name, layout, bytes_min, RIGHT_OWNER, out, err);

	if (code < 0)
		return code;
	/* Acquire and release order the increments. What the predecessor wrote is visible because
	 * it is dead: its descriptor came to us through the kernel. */
	atomic_fetch_add_explicit(&out->header->generation, 1, memory_order_acq_rel);
	return 0;
}

uint64_t region_memory(const struct region *region)
{
	struct stat st;

	return fstat(region->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

void region_close(struct region *region)
{
	if (region->header)
		munmap(region->header, region->bytes);
	/* An all-zero struct holds nothing either: it must not close descriptor 0. */
	if (region->fd > 0 || (region->fd == 0 && region->header))
		close(region->fd);
	*region = (struct region){.fd = -1};
}

size_t region_next_data(const struct region *region, size_t from)
{
	off_t at = lseek(region->fd, (off_t)(REGION_DATA + from), SEEK_DATA);

	if (at >= 0)
		return (size_t)at > REGION_DATA + from ? (size_t)at - REGION_DATA : from;
	/* ENXIO: only holes follow. After any other error nothing is known, so everything from
	 * `from` on may be data. */
	return errno == ENXIO ? region->bytes - REGION_DATA : from;
}
