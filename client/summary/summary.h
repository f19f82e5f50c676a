/*
 * The state of a service in a few lines for a person: what it serves, how fast, how full it is, how
 * well drafts do, what is wrong. Made from what each process reports about itself
 * (outrider_status). For this project's programs; not part of the library's interface.
 */
#pragma once

#include "client/include/outrider.h"

enum { SUMMARY_LINES = 12, SUMMARY_BYTES = 512 };

/* Returns the number of lines. */
size_t summary(
	const struct outrider_status *status, char lines[static SUMMARY_LINES][SUMMARY_BYTES]);
