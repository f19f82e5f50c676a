/*
 * A region: a named, versioned block of shared memory in a memfd whose size is sealed. It starts
 * with a header (magic number, name, layout version, size) that an attaching process checks. It
 * holds offsets and ids, never pointers. A region outlives the process that made it: systemd's fd
 * store keeps it, and so does every peer that has mapped it and hands it to the owner's successor
 * (broker.h). A struct region belongs to its caller, which may use it on any thread.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/huge_pages.h"
#include "shared/base/limits.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>

struct region_header {
	/* layout: the version of the payload's layout, counted per region name */
	uint32_t magic, layout;
	uint64_t bytes; /* of the whole region, header included */
	uint64_t uid; /* random; tells a new region from an older one of the same name */
	/* how often it has had an owner: 1 when created, +1 with each adoption. Not
	 * daemon_generation. */
	_Atomic uint64_t generation;
	char name[LIMIT_NAME];
};

#define REGION_DATA 128 /* offset of the payload: the header, padded */
static_assert(sizeof(struct region_header) <= REGION_DATA, "header fits");

struct region {
	int fd;
	struct region_header *header; /* start of the mapping */
	size_t bytes;
};

enum region_flags {
	/* Use huge pages where they are available (shared/base/huge_pages.h), and interleave the
	 * region over all memory nodes (nodes.h), because threads of every node read it. The region
	 * may then be longer than requested. */
	REGION_HUGE = 1,
	/* Only part of the region will ever have pages. The caller ensures that this part fits in
	 * memory. */
	REGION_SPARSE = 2,
};

/* Creates a zero-filled region of REGION_DATA + payload_bytes bytes with generation 1. flags: of
 * enum region_flags. -ENOMEM, with the size in the message, when the region is larger than the
 * machine's memory and swap; not checked with REGION_SPARSE. */
int region_create(const char *name, uint32_t layout, size_t payload_bytes, unsigned flags,
	struct region *out, struct error *err);
/* Like region_create with REGION_HUGE. *pages tells which pages the region got. */
int region_create_huge(const char *name, uint32_t layout, size_t payload_bytes,
	struct huge_pages *pages, struct region *out, struct error *err);
/* Maps the region behind a descriptor that another process sent. Takes ownership of fd, and closes
 * it on failure. Checks the header, the seals, and that the file is as large as the header says.
 * bytes_min: the least size, REGION_DATA included. If not `writable`, the region is mapped
 * read-only and its descriptor is replaced by one that is O_RDONLY (without /proc it stays as it
 * came). If `writable`, a descriptor that was given for reading only is refused with -EACCES. */
int region_attach(int fd, const char *name, uint32_t layout, size_t bytes_min, bool writable,
	struct region *out, struct error *err);
/* Called by the owner's successor: attaches for writing and increments the generation. Processes
 * that keep the region for its owner hold an O_RDONLY descriptor; region_adopt opens the file for
 * writing again through it. The file's mode, 0600, allows that to the same user only. */
int region_adopt(int fd, const char *name, uint32_t layout, size_t bytes_min, struct region *out,
	struct error *err);
void region_close(struct region *region);
/* Returns a new O_RDONLY descriptor of the file behind fd, which the caller closes, or -errno.
 * Needs /proc. */
int region_read_only(int fd);
/* Returns a new descriptor of a device's memory (broker_offer_fd), for its owner's successor: one for
 * writing, where its kind of file knows the difference. The caller closes it. -errno. */
int region_memory_fd(int fd);
/* Bytes of the region that occupy memory now; 0 when the kernel does not tell. */
uint64_t region_memory(const struct region *region);
/* Offset in the payload, at `from` or later, of the first byte that may be nonzero; the payload's
 * size if there is none. Parts that were never written have no memory and would get some if they
 * were read, so a reader skips them with this. */
size_t region_next_data(const struct region *region, size_t from);

static inline void *region_payload(const struct region *region)
{
	return (unsigned char *)region->header + REGION_DATA;
}
