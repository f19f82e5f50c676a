/*
 * How much of a device's memory experts may take: what it has, less what the verifier takes for
 * weights, passes and KV cache, less what the drafter may take for a draft model, and less a reserve for
 * what nobody tells: the driver, other programs. The figures of shared/spec/slots.h and
 * kernels/backend.h. Pure.
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
	uint64_t drafter; /* what it may take */
	uint64_t reserve;
	uint64_t kv; /* of needs: the KV cache, if that was told */
	uint64_t said_most; /* as it was told: device_share_limit */
	uint64_t limit; /* of the memory, for the whole service: all but the reserve, or less */
	/* left for experts and the drafter: of all the memory, and of what is free now, at most that */
	uint64_t most, both;
	uint64_t whole, bytes; /* the same without the drafter's */
};

/* needs, drafter: the verifier's and the drafter's; there: of both, bytes that they have already, which
 * memory->free does not include. Nor does it include `had`, the bytes that the slots have. */
void device_share_find(const struct backend *backend, const struct backend_memory *memory,
	uint64_t needs, uint64_t drafter, uint64_t there, uint64_t had, struct device_share *out);

/* The service may take `most` of the memory; 0: all but the reserve. */
void device_share_limit(struct device_share *share, uint64_t most);

/* Refuses slots that can never fit: -ENOMEM. An estimate of the verifier's needs refuses nothing that
 * the device could hold alone. bytes: of the slots; automatic: of those that auto gives. */
int device_share_check(
	const struct device_share *share, uint64_t bytes, uint64_t automatic, struct error *err);

/* Whether the drafter may take what share->drafter says, with at least `least` bytes left for experts.
 * -ENOMEM: it may not; the message says who has what. there: it has taken it, so what is free now does
 * not count. budget: the setting, for the message. */
int device_share_drafter(const struct device_share *share, uint64_t least, bool there,
	const char *budget, struct error *err);
