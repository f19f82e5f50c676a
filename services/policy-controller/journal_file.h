/* The journal's file, entry by entry: for journal.c, which keeps one, on the loop thread. */
#pragma once

#include "services/policy-controller/journal.h"

#include <sys/types.h>

enum { JOURNAL_HEAD_BYTES = 4096, JOURNAL_BLOCK = 512 };

/* Its check sum, when all else is in it. */
void journal_file_seal(struct journal_entry *entry);
/* Where an entry lies. */
off_t journal_file_place(const struct journal_file *file, uint64_t number);
/* n entries that lie side by side, from the place of `first` on; at most JOURNAL_BLOCK. */
bool journal_file_block(const struct journal_file *file, uint64_t first, uint32_t n,
	unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES]);
/* The entry at place `at` of a block that begins at place `first`, when it is one. */
bool journal_file_entry(const struct journal_file *file,
	unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES], uint64_t first, uint32_t at,
	struct journal_entry *out);
/* The highest number in the file. */
uint64_t journal_file_last(const struct journal_file *file);

/* Whether it is a journal that can be read; *capacity: what it has room for. */
bool journal_file_capacity(const struct journal_file *file, uint64_t *capacity);
/* Whether it is one of file->capacity. */
bool journal_file_fits(const struct journal_file *file);
off_t journal_file_bytes(const struct journal_file *file);
/* Makes it an empty one. 0, or -1 with errno. */
int journal_file_begin(const struct journal_file *file);
/* Whether nobody has written anything to it: a new one, or one whose making was interrupted. */
bool journal_file_blank(const struct journal_file *file);
