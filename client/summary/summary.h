/*
 * What a person asks of a service, in a few lines: what it serves, how fast, how full, how drafts do, what is wrong. Made of what
 * each process says of itself (outrider_status). For the programs of this project; it is no part of the library's interface.
 */
#pragma once

#include "client/include/outrider.h"

enum { SUMMARY_LINES = 12, SUMMARY_BYTES = 512 };

/* Returns how many lines there are. */
size_t summary(
	const struct outrider_status *status, char lines[static SUMMARY_LINES][SUMMARY_BYTES]);
