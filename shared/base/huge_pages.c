#include "shared/base/huge_pages.h"

#include "shared/base/limits.h"
#include "shared/base/memory.h"
#include "shared/base/round.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARED_SWITCH "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define PRIVATE_SWITCH "/sys/kernel/mm/transparent_hugepage/enabled"
/* A huge page of x86-64, and of other machines with small pages of 4 KiB. */
#define TRANSPARENT_BYTES ((size_t)2 << 20)
/* A huge page is allocated whole as soon as one of its bytes is. Below this size that costs more
 * than it saves. */
#define TRANSPARENT_LEAST ((size_t)16 << 20)

/* The pool's page size and its free pages. The kernel counts reserved pages among the free ones,
 * although they are not. */
static void read_pool(struct huge_pages *out)
{
	uint64_t free = memory_info("/proc/meminfo", "HugePages_Free");
	uint64_t reserved = memory_info("/proc/meminfo", "HugePages_Rsvd");
	uint64_t kib = memory_info("/proc/meminfo", "Hugepagesize");

	if (free == UINT64_MAX || reserved == UINT64_MAX || kib == 0 || kib > SIZE_MAX >> 11)
		return; /* a kernel without huge pages */
	out->free = free > reserved ? free - reserved : 0;
	out->page_bytes = (size_t)kib << 10;
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

/* The word in brackets is in force: "always [madvise] never". */
static bool transparent(bool shared)
{
	FILE *file = fopen(shared ? SHARED_SWITCH : PRIVATE_SWITCH, "re");
	char text[128] = "";

	if (!file)
		return false;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	return text[0] != '\0' && !strstr(text, "[never]") && !strstr(text, "[deny]");
}

enum huge_kind huge_pages_advise(void *address, size_t bytes, bool shared)
{
	return madvise(address, bytes, MADV_HUGEPAGE) == 0 && transparent(shared) ? HUGE_TRANSPARENT
										  : HUGE_NONE;
}

int huge_pages_map(size_t bytes, struct huge_pages *out, void **address, struct error *err)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	char advice[MEMORY_ADVICE_BYTES];
	int rc = begin(bytes, out, err);

	*address = NULL;
	if (rc != 0)
		return rc;
	/* The mapping reserves its pages or fails, so touching it later cannot kill. */
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
		out->refused = errno;
	}
	void *memory = mmap(NULL, out->bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (memory == MAP_FAILED)
		return error_set(
			err, ENOMEM, "no memory: %zu bytes%s", out->bytes, memory_advice(advice));
	out->kind = huge_pages_advise(memory, out->bytes, false);
	*address = memory;
	return 0;
}

void *huge_pages_alloc(size_t bytes)
{
	const size_t huge = TRANSPARENT_BYTES;
	size_t unit = bytes < TRANSPARENT_LEAST ? CACHE_LINE : huge;

	if (bytes > SIZE_MAX / 2)
		return NULL;
	void *memory = aligned_alloc(unit, round_up(bytes, unit));
	/* The memory behind the last whole page may be used by something else one day. */
	if (memory && bytes >= TRANSPARENT_LEAST)
		(void)madvise(memory, bytes / huge * huge, MADV_HUGEPAGE);
	return memory;
}

/* -errno without a message: there is another way. */
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

	out->shared = true;
	*fd = -1;
	*address = NULL;
	if (rc != 0)
		return rc;
	if (out->needed > 0 && out->needed <= out->free) {
		size_t whole = out->needed * out->page_bytes;
		rc = open_memfd(name, MFD_HUGETLB, whole, fd, address);
		if (rc == 0) {
			out->kind = HUGE_POOL;
			out->bytes = whole;
			return 0;
		}
		out->refused = -rc;
	}
	rc = open_memfd(name, 0, out->bytes, fd, address);
	if (rc != 0)
		return error_refused(
			err, -rc, "no shared memory %s of %zu bytes", name, out->bytes);
	out->kind = huge_pages_advise(*address, out->bytes, true);
	return 0;
}

void huge_pages_notice(const struct huge_pages *pages, char *out, size_t out_bytes)
{
	char instead[192];

	out[0] = '\0';
	if (pages->kind == HUGE_POOL)
		return;
	if (pages->kind == HUGE_TRANSPARENT)
		snprintf(instead, sizeof(instead), "transparent huge pages are asked for instead");
	else
		snprintf(instead, sizeof(instead),
			"small pages are used, which are read slower; to change this, "
			"raise vm.nr_hugepages or write %s to %s",
			pages->shared ? "advise" : "madvise",
			pages->shared ? SHARED_SWITCH : PRIVATE_SWITCH);
	if (pages->page_bytes == 0)
		snprintf(out, out_bytes, "this kernel has no huge-page pool: %s", instead);
	else if (pages->refused != 0)
		snprintf(out, out_bytes,
			"the huge-page pool had %" PRIu64 " free pages of %zu KiB, but the kernel "
			"did not give %" PRIu64 " of them (%s): %s",
			pages->free, pages->page_bytes >> 10, pages->needed,
			strerror(pages->refused), instead);
	else
		snprintf(out, out_bytes,
			"the huge-page pool has %" PRIu64 " free pages of %zu KiB, %" PRIu64
			" are needed (vm.nr_hugepages): %s",
			pages->free, pages->page_bytes >> 10, pages->needed, instead);
}
