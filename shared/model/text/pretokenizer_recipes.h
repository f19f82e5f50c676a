/* How each pre-tokenizer cuts a text: a constant table, which pretokenizer.c executes. */
#pragma once

#include "shared/model/text/pretokenizer.h"

enum { STAGES_MAX = 6, NAMES_MAX = 16 };

/* How a match is cut further, counted in characters. THOUSANDS: into threes from its end; the first
 * piece may be shorter. POWERS: from its beginning, each time into the largest power of two, up to
 * 512, that remains. */
enum cut { CUT_NOT = 0, CUT_THOUSANDS, CUT_POWERS };

/* The expressions for each name. A stage cuts the pieces of the stage before it; what its
 * expression does not match remains a piece. They follow the tokenizer.json (or code) of the models
 * for which the name was made; GGUF has no key for the normalisation. */
struct recipe {
	const char *names[NAMES_MAX]; /* the first is the one that messages show */
	const char *stages[STAGES_MAX]; /* for PCRE2, with UTF and UCP */
	int cut_stage; /* number, from 1, of the stage whose matches are cut further */
	enum cut cut;
	enum normalization normalization;
	bool ignore_merges, adds_bos;
};

/* NULL: there is no recipe of this name. The name needs no NUL. */
const struct recipe *recipe_find(const char *name, size_t bytes);
/* Returns -ENOTSUP, with a message that lists the known names. */
int recipe_refuse(const char *name, size_t bytes, struct error *err);
