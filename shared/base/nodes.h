/*
 * Memory nodes (NUMA), through libnuma. Where the system has one node, or does not say, everything is on node 0 and
 * nothing needs to be done. Any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Nodes with memory that this process may use; at least 1. */
uint32_t nodes_count(void);
/* For memory that threads of every node read, before it is first touched: its pages will lie on the nodes in turn.
 * address is the start of a page. Advice: where it is not taken, pages lie where they are first touched. */
void nodes_interleave(void *address, size_t bytes);
