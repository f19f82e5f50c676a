/* The checksum of packed weights, which may have many gigabytes: computed by several threads, as
 * fast as memory is read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The calling thread calls `progress` from time to time; when it returns false, the sum is
 * abandoned (-ECANCELED). -ENOMEM. */
int packed_sum(const void *data, size_t bytes, uint32_t n_threads, bool (*progress)(void *arg),
	void *arg, uint64_t *sum);
