/* The checksum of packed weights, which may be many gigabytes: by several threads, as fast as memory is read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* progress is called now and then by the calling thread; when it says false the rest is left (-ECANCELED). -ENOMEM. */
int packed_sum(const void *data, size_t bytes, uint32_t n_threads, bool (*progress)(void *arg),
	void *arg, uint64_t *sum);
