/* How each pre-tokenizer cuts, as a table that pretokenizer.c carries out. */
#pragma once

#include "shared/model/text/pretokenizer.h"

enum { STAGES_MAX = 6, NAMES_MAX = 16 };

/* How a match is cut further: not; into threes from its end, of which the first may be fewer; into the largest powers of two, up
 * to 512, that are left. In characters. */
enum cut { CUT_NOT = 0, CUT_THOUSANDS, CUT_POWERS };

/* The expressions of each name: each stage cuts the pieces of the one before it, and what an expression does not match stays a
 * piece. The tokenizer.json (or code) of the models that a name was made for decides; GGUF has no key for the normalisation. */
struct recipe {
	const char *names[NAMES_MAX]; /* the first is the one to show */
	const char *stages[STAGES_MAX]; /* for PCRE2, with UTF and UCP */
	int cut_stage; /* number of the stage whose matches are cut so, from 1 */
	enum cut cut;
	enum normalization normalization;
	bool ignore_merges, adds_bos;
};

/* NULL: there is none of this name, which need not be terminated. */
const struct recipe *recipe_find(const char *name, size_t bytes);
/* -ENOTSUP, and a message that lists what there is. */
int recipe_refuse(const char *name, size_t bytes, struct error *err);
