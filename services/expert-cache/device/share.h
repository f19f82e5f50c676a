/*
 * How much of a device's memory experts may take: what it has, less what the verifier takes for
 * weights, passes and KV cache, and less a reserve for what nobody tells: the driver, the drafter, other
 * programs. The figures of shared/spec/slots.h and kernels/backend.h. Pure.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/base/error.h"

/* The reserve is this part of the memory. */
#define DEVICE_RESERVE_PART 16

struct device_share {
	const char *name; /* of the device, for messages; borrowed */
	uint64_t memory, free; /* of the device, now */
	uint64_t needs; /* of the verifier, and whether it has told them; else estimated */
	bool said;
	uint64_t reserve;
	uint64_t whole; /* left for experts, of all the memory */
	uint64_t bytes; /* the same, of what is free now; at most `whole` */
};

/* needs: the verifier's; there: of these, bytes that it has already, which memory->free does not
 * include. Nor does it include `had`, the bytes that the slots have. */
void device_share_find(const struct backend *backend, const struct backend_memory *memory,
	uint64_t needs, uint64_t there, uint64_t had, struct device_share *out);

/* Refuses slots that can never fit: -ENOMEM. An estimate of the verifier's needs refuses nothing that
 * the device could hold alone. bytes: of the slots; automatic: of those that auto gives. */
int device_share_check(
	const struct device_share *share, uint64_t bytes, uint64_t automatic, struct error *err);
