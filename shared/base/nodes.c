#include "shared/base/nodes.h"

#include <numa.h>

uint32_t nodes_count(void)
{
	if (numa_available() < 0)
		return 1;
	unsigned int n = numa_bitmask_weight(numa_all_nodes_ptr);
	return n < 1 ? 1 : n;
}

void nodes_interleave(void *address, size_t bytes)
{
	if (nodes_count() > 1)
		numa_interleave_memory(address, bytes, numa_all_nodes_ptr);
}
