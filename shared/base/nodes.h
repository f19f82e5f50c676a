/*
 * Memory nodes (NUMA), through libnuma. If the system has one node, or does not tell, everything is
 * on node 0 and nothing needs to be done. Any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Number of nodes with memory that this process may use; at least 1. */
uint32_t nodes_count(void);
/* Interleaves the pages of memory over the nodes, for memory that threads of every node read. Call
 * before it is first touched. address: the start of a page. Advice only: if it is refused, pages
 * lie where they are first touched. */
void nodes_interleave(void *address, size_t bytes);
