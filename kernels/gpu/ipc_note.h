/*
 * Where a device's memory cannot be exported as a descriptor, CUDA's IPC shares it by a handle of 64
 * bytes. The descriptor that travels is then that of a small file with the handle, which both runtimes
 * write and read. Such memory ends with the process that allocated it.
 */
#pragma once

#include "kernels/gpu/runtime.h"

#include <sys/mman.h>
#include <unistd.h>

struct ipc_note {
	uint64_t magic, bytes; /* bytes: of the memory */
	unsigned char handle[64];
};
static constexpr uint64_t IPC_NOTE_MAGIC = 0x65746f6e6370696f;

/* A descriptor of a file with the note; -errno. */
static inline int ipc_note_write(const struct ipc_note *note, struct error *err)
{
	int fd = memfd_create("outrider-ipc", MFD_CLOEXEC);

	if (fd < 0 || pwrite(fd, note, sizeof(*note), 0) != static_cast<ssize_t>(sizeof(*note))) {
		int rc = error_set(
			err, errno, "memory of the GPU cannot be described: %s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return rc;
	}
	return fd;
}

/* False when the descriptor is none of a note. */
static inline bool ipc_note_read(int fd, struct ipc_note *note)
{
	return pread(fd, note, sizeof(*note), 0) == static_cast<ssize_t>(sizeof(*note)) &&
	       note->magic == IPC_NOTE_MAGIC;
}
