#include "shared/base/huge_pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The pool's default page size and its free pages. Reserved ones are counted among the free but are not. */
static void read_pool(struct huge_pages *out)
{
	FILE *file = fopen("/proc/meminfo", "re");
	uint64_t value, reserved = 0;
	char line[128];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "HugePages_Free: %" SCNu64, &value) == 1)
			out->free = value;
		else if (sscanf(line, "HugePages_Rsvd: %" SCNu64, &value) == 1)
			reserved = value;
		else if (sscanf(line, "Hugepagesize: %" SCNu64 " kB", &value) == 1)
			out->page_bytes = (size_t)value << 10;
	}
	if (file)
		fclose(file);
	out->free -= reserved < out->free ? reserved : out->free;
}

static size_t round_up(size_t bytes, size_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

static int begin(size_t bytes, struct huge_pages *out, struct error *err)
{
	*out = (struct huge_pages){.kind = HUGE_NONE};
	read_pool(out);
	if (bytes == 0 || bytes > SIZE_MAX / 2)
		return error_set(err, EINVAL, "%zu bytes of huge pages are asked for", bytes);
	out->bytes = round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
	if (out->page_bytes > 0)
		out->needed = round_up(bytes, out->page_bytes) / out->page_bytes;
	return 0;
}

/* The word in brackets is what holds: "always [madvise] never". */
static int transparent(int shared)
{
	FILE *file = fopen(shared ? "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
				  : "/sys/kernel/mm/transparent_hugepage/enabled",
		"re");
	char text[128] = "";

	if (!file)
		return 0;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	return text[0] != '\0' && !strstr(text, "[never]") && !strstr(text, "[deny]");
}

enum huge_kind huge_pages_advise(void *address, size_t bytes, int shared)
{
	return madvise(address, bytes, MADV_HUGEPAGE) == 0 && transparent(shared) ? HUGE_TRANSPARENT
										  : HUGE_NONE;
}

int huge_pages_map(size_t bytes, struct huge_pages *out, void **address, struct error *err)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	int rc = begin(bytes, out, err);

	*address = NULL;
	if (rc != 0)
		return rc;
	/* The mapping reserves its pages or fails: it does not die when touched. */
	if (out->needed > 0 && out->needed <= out->free) {
		size_t whole = out->needed * out->page_bytes;
		void *memory =
			mmap(NULL, whole, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0);

		if (memory != MAP_FAILED) {
			out->kind = HUGE_POOL;
			out->bytes = whole;
			*address = memory;
			return 0;
		}
	}
	void *memory = mmap(NULL, out->bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (memory == MAP_FAILED)
		return error_set(err, ENOMEM, "no memory: %zu bytes", out->bytes);
	out->kind = huge_pages_advise(memory, out->bytes, 0);
	*address = memory;
	return 0;
}

/* -errno, without a message: there is another way. */
static int open_memfd(const char *name, unsigned int flags, size_t bytes, int *fd, void **address)
{
	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	if (*fd < 0)
		return -errno;
	*address = MAP_FAILED;
	if (ftruncate(*fd, (off_t)bytes) == 0)
		*address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (*address != MAP_FAILED)
		return 0;
	int rc = -errno;
	close(*fd);
	*fd = -1;
	*address = NULL;
	return rc;
}

int huge_pages_memfd(const char *name, size_t bytes, struct huge_pages *out, int *fd,
	void **address, struct error *err)
{
	int rc = begin(bytes, out, err);

	*fd = -1;
	*address = NULL;
	if (rc != 0)
		return rc;
	if (out->needed > 0 && out->needed <= out->free &&
		open_memfd(name, MFD_HUGETLB, out->needed * out->page_bytes, fd, address) == 0) {
		out->kind = HUGE_POOL;
		out->bytes = out->needed * out->page_bytes;
		return 0;
	}
	rc = open_memfd(name, 0, out->bytes, fd, address);
	if (rc != 0)
		return error_set(err, -rc, "no shared memory %s of %zu bytes: %s", name, out->bytes,
			strerror(-rc));
	out->kind = huge_pages_advise(*address, out->bytes, 1);
	return 0;
}

void huge_pages_notice(const struct huge_pages *pages, char *out, size_t out_bytes)
{
	const char *instead = pages->kind == HUGE_TRANSPARENT
				      ? "transparent huge pages are asked for instead"
				      : "small pages are used instead (transparent huge pages are "
					"off), which reads slower";

	if (pages->kind == HUGE_POOL)
		snprintf(out, out_bytes, "%s", "");
	else if (pages->page_bytes == 0)
		snprintf(out, out_bytes, "this kernel has no huge-page pool: %s", instead);
	else
		snprintf(out, out_bytes,
			"the huge-page pool has %" PRIu64 " free pages of %zu KiB, %" PRIu64
			" are needed (vm.nr_hugepages): %s",
			pages->free, pages->page_bytes >> 10, pages->needed, instead);
}
