/*
 * For outrider-bench ipc --backend: the process at the other end, which imports a region of a device's
 * memory by its descriptor. Its queue waits for flags that the first process's queue writes, and
 * answers them; and it copies to the memory and from it.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/ipc/region.h"

#include <sys/types.h>

enum {
	IPC_GPU_HOPS = 16, /* round trips that are queued at once */
	IPC_GPU_SIZES = 3,
};
#define IPC_GPU_BYTES \
	(16u << 20) /* of the device's memory, and what is copied in one measurement */
extern const size_t ipc_gpu_sizes[IPC_GPU_SIZES]; /* of a copy */

struct ipc_gpu_flags {
	alignas(CACHE_LINE) _Atomic uint32_t asked;
	alignas(CACHE_LINE) _Atomic uint32_t answered;
};

enum ipc_gpu_what {
	IPC_GPU_OPEN = 1, /* open the back end */
	IPC_GPU_IMPORT, /* import the memory whose descriptor follows, in place of what there was */
	IPC_GPU_ANSWER, /* queue answers to the IPC_GPU_HOPS flags behind `value` */
	IPC_GPU_COPY, /* copies of ipc_gpu_sizes[value] to the memory and from it */
	IPC_GPU_CHECK, /* every byte of the memory must be `value` */
};

struct ipc_gpu_packet {
	enum ipc_gpu_what what;
	uint32_t value;
	/* The reply: */
	int rc; /* -errno, and then text */
	uint64_t ns[2];
	char text[256];
};

struct ipc_gpu_other {
	pid_t pid;
	int socket;
};

/* Forks the other process, before this one has a back end. The region has a struct ipc_gpu_flags. */
int ipc_gpu_start(
	struct ipc_gpu_other *other, const char *backend, struct region *region, struct error *err);
/* May be called for one that was not started. No queue of the other one's may wait for a flag. */
void ipc_gpu_stop(struct ipc_gpu_other *other);
/* Asks the other process for something and waits for the reply. fd: sent with it, or -1. */
int ipc_gpu_ask(
	struct ipc_gpu_other *other, struct ipc_gpu_packet *packet, int fd, struct error *err);
/* Wraps the region for a queue's flags. */
int ipc_gpu_wrap(struct backend *backend, const struct region *region, struct buffer *out,
	struct error *err);
struct place ipc_gpu_asked(const struct buffer *flags);
struct place ipc_gpu_answered(const struct buffer *flags);
