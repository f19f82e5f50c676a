/*
 * A region: named, versioned, typed shared memory in a memfd whose size is sealed. It starts with a header that an
 * attaching side checks: magic, name, layout version, size. Holds offsets and ids, never pointers. It outlives its maker in
 * systemd's fd store, and any peer that has it mapped hands it to a successor (broker.h).
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/huge_pages.h"
#include "shared/base/limits.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>

struct region_header {
	uint32_t magic, layout; /* layout: the version of what follows, per region name */
	uint64_t bytes; /* of the whole region */
	uint64_t uid; /* random: tells a new region of the same name from the old one */
	_Atomic uint64_t generation; /* of the owner: +1 each time one creates or adopts it */
	char name[LIMIT_NAME];
};

#define REGION_DATA 128 /* the payload starts here: the header, padded */
static_assert(sizeof(struct region_header) <= REGION_DATA, "header fits");

struct region {
	int fd;
	struct region_header *header; /* the mapping */
	size_t bytes;
};

enum region_flags {
	/* In huge pages where they can be had (shared/base/huge_pages.h), and on all memory nodes in turn (nodes.h): threads of
	 * every node read it. The region may then be longer than was asked for. */
	REGION_HUGE = 1,
	/* Only part of it will ever have pages; the caller sees to it that this part fits in memory. */
	REGION_SPARSE = 2,
};

/* A new region of REGION_DATA + payload bytes, zero-filled; generation 1. -ENOMEM names the size: it is more than the
 * machine has, unless it is sparse. */
int region_create(const char *name, uint32_t layout, size_t payload_bytes, unsigned flags,
	struct region *out, struct error *err);
/* The same with REGION_HUGE, and what it became. */
int region_create_huge(const char *name, uint32_t layout, size_t payload_bytes,
	struct huge_pages *pages, struct region *out, struct error *err);
/* Maps a descriptor received from elsewhere; takes ownership of fd (closes it on failure). Checks the header, the
 * seals and that the file is as large as the header says; bytes_min includes REGION_DATA. Without `writable` the region's
 * descriptor is narrowed to O_RDONLY. With it, a descriptor that was given for reading is -EACCES. */
int region_attach(int fd, const char *name, uint32_t layout, size_t bytes_min, bool writable,
	struct region *out, struct error *err);
/* By the owner's successor: attach for writing and take the next generation. Keepers hold a descriptor that is O_RDONLY; the
 * file is opened again through it, which its mode of 0600 allows to this user alone. */
int region_adopt(int fd, const char *name, uint32_t layout, size_t bytes_min, struct region *out,
	struct error *err);
void region_close(struct region *region);
/* An O_RDONLY descriptor of the file behind fd, the caller's to close; or -errno. It needs /proc. */
int region_read_only(int fd);
/* Bytes of it that are memory now; 0 when the kernel does not tell. */
uint64_t region_memory(const struct region *region);
/* The first byte of the payload, at `from` or behind it, that may be something else than 0: what was never written has no memory,
 * and would get some if it were read. The payload's size: there is none. */
size_t region_next_data(const struct region *region, size_t from);

static inline void *region_payload(const struct region *region)
{
	return (unsigned char *)region->header + REGION_DATA;
}
