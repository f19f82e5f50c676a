#include "shared/base/proquint.h"

#include <string.h>

enum { WORD = 5, WORDS = 4 };

static const char consonants[] = "bdfghjklmnprstvz", vowels[] = "aiou";

static void word(uint32_t bits, char out[static WORD])
{
	out[0] = consonants[bits >> 12 & 15];
	out[1] = vowels[bits >> 10 & 3];
	out[2] = consonants[bits >> 6 & 15];
	out[3] = vowels[bits >> 4 & 3];
	out[4] = consonants[bits & 15];
}

const char *proquint(uint64_t number, char out[static PROQUINT_BYTES])
{
	for (uint32_t i = 0; i < WORDS; i++) {
		word((uint32_t)(number >> 16 * i) & 0xffff, out + i * (WORD + 1));
		out[i * (WORD + 1) + WORD] = i + 1 < WORDS ? '-' : '\0';
	}
	return out;
}

const char *proquint_short(uint64_t number, char out[static PROQUINT_BYTES])
{
	proquint(number, out);
	out[PROQUINT_SHORT] = '\0';
	return out;
}

bool proquint_is_prefix(const char *text)
{
	size_t n = strlen(text);

	for (size_t i = 0; i < n; i++) {
		size_t place = i % (WORD + 1);

		if (place == WORD ? text[i] != '-'
				  : !strchr(place % 2 ? vowels : consonants, text[i]))
			return false;
	}
	return n > 0 && n < PROQUINT_BYTES;
}

bool proquint_begins(uint64_t number, const char *text)
{
	char name[PROQUINT_BYTES];

	return strncmp(proquint(number, name), text, strlen(text)) == 0;
}
