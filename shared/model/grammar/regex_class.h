/* Classes of characters in regular expressions. */
#pragma once

#include "shared/model/grammar/charset.h"

/* \d \w \s by their small letters; false: none of them. The capital one is the negated set. */
bool regex_class_letter(struct rules *builder, struct charset *set, char letter);
/* A general category of Unicode by its name: "L", "Lu", "Letter" ...; false: there is none. */
bool regex_class_category(
	struct rules *builder, struct charset *set, const char *name, size_t bytes);
/* What `.` matches: all but the ends of lines. */
void regex_class_dot(struct rules *builder, struct charset *set);
