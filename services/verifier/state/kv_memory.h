/*
 * The cells of the KV cache in a device's memory: a buffer of the back end that other processes keep by
 * its descriptor, so that it outlives this one. What describes it lies in the region "kv", in the
 * host's memory. Behind the cells the memory has that region's number, which ties the two together:
 * nobody can compute a checksum of the cells. Used by main, before any thread starts.
 *
 * Adoption. The successor of a process that was killed may use the memory when no kernel of the dead
 * process runs any more. The driver ends them when the process's descriptors are closed, and that is
 * so when its pidfd tells its end.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "kernels/backend.h"

/* Not a region: the name under which the memory's descriptor travels. */
#define KV_MEMORY "kv.mem"

/* A number for the device whose memory holds the cells; 0: they lie in the host's memory, because
 * that computes, or by the setting kv_memory. */
uint64_t kv_memory_device(const struct verifier_config *config, const struct backend *backend);

/* Bytes of the memory for a store of so many. */
uint64_t kv_memory_bytes(uint64_t store_bytes);

/* Allocates it and writes the number behind the store. *fd is its descriptor, the caller's. -ENOMEM. */
int kv_memory_make(struct backend *backend, uint64_t store_bytes, uint64_t number,
	struct buffer *out, int *fd, struct error *err);

/* Waits until the process that wrote to the memory has ended. -EBUSY: it has not, within seconds. */
int kv_memory_wait(uint64_t pid, struct error *err);

/* Takes a predecessor's over. left: its descriptor, which stays the caller's. -ESTALE: it has another
 * number. */
int kv_memory_adopt(struct backend *backend, int left, uint64_t store_bytes, uint64_t number,
	struct buffer *out, int *fd, struct error *err);
