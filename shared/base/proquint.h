/*
 * Names of 64-bit numbers that a person can read aloud and type: "lusab-babad-gutih-tugad", four
 * words of 16 bits each, the lowest bits first. Consonants have four bits, vowels two (Wilkerson,
 * "A proposal for proquints", arXiv:0901.4016). Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
	PROQUINT_BYTES = 24, /* a full name of four words, with the NUL */
	PROQUINT_SHORT = 11, /* length of the first two words, which tables and sentences show */
};

/* All four words. Returns out. */
const char *proquint(uint64_t number, char out[static PROQUINT_BYTES]);
/* The first two words. Returns out. */
const char *proquint_short(uint64_t number, char out[static PROQUINT_BYTES]);
/* The same, in memory that lasts as long as the enclosing block. */
#define PROQUINT(number) proquint_short((number), (char[PROQUINT_BYTES]){0})

/* True when the text could begin a name: "lus", "lusab-", "lusab-ba". */
bool proquint_is_prefix(const char *text);
/* Whether the number's name begins with the text. */
bool proquint_begins(uint64_t number, const char *text);
