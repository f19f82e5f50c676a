/* The journal's file, entry by entry. For journal.c, on the loop thread. */
#pragma once

#include "services/policy-controller/journal.h"

#include <sys/types.h>

enum { JOURNAL_HEAD_BYTES = 4096, JOURNAL_BLOCK = 512 };

/* Sets the checksum; all other fields must be set. */
void journal_file_seal(struct journal_entry *entry);
/* File offset of an entry. */
off_t journal_file_place(const struct journal_file *file, uint64_t number);
/* Reads n adjacent entries from the place of `first` on; at most JOURNAL_BLOCK. */
bool journal_file_block(const struct journal_file *file, uint64_t first, uint32_t n,
	unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES]);
/* Takes the entry at place `at` of a block that begins at place `first`. False when it is not a
 * valid entry. */
bool journal_file_entry(const struct journal_file *file,
	unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES], uint64_t first, uint32_t at,
	struct journal_entry *out);
/* The highest number of an entry in the file. */
uint64_t journal_file_last(const struct journal_file *file);

/* True when the file is a journal that can be read; *capacity: the entries that it has room for. */
bool journal_file_capacity(const struct journal_file *file, uint64_t *capacity);
/* True when it is a journal of file->capacity entries. */
bool journal_file_fits(const struct journal_file *file);
off_t journal_file_bytes(const struct journal_file *file);
/* Makes the file an empty journal. 0, or -1 with errno. */
int journal_file_begin(const struct journal_file *file);
/* True when the file has no content: it is new, or its creation was interrupted. */
bool journal_file_blank(const struct journal_file *file);
