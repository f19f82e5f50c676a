#include "shared/base/nodes.h"

#include <numa.h>

uint32_t nodes_count(void)
{
	if (numa_available() < 0)
		return 1;
	unsigned int n = numa_bitmask_weight(numa_all_nodes_ptr);
	return n < 1 ? 1 : n;
}

uint32_t nodes_of_cpu(uint32_t cpu)
{
	if (nodes_count() == 1)
		return 0;
	int node = numa_node_of_cpu((int)cpu);
	return node < 0 ? 0 : (uint32_t)node;
}

void nodes_interleave(void *address, size_t bytes)
{
	if (nodes_count() > 1)
		numa_interleave_memory(address, bytes, numa_all_nodes_ptr);
}
