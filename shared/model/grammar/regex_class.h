/* Character classes of regular expressions. */
#pragma once

#include "shared/model/grammar/charset.h"

/* Adds the class \d, \w or \s, given by its small letter; false: there is none of that letter. The
 * capital letter stands for the negated set. */
bool regex_class_letter(struct rules *builder, struct charset *set, char letter);
/* Adds a general category of Unicode by its name: "L", "Lu", "Letter" ...; false: there is none of
 * that name. */
bool regex_class_category(
	struct rules *builder, struct charset *set, const char *name, size_t bytes);
/* Adds what `.` matches: everything except line ends. */
void regex_class_dot(struct rules *builder, struct charset *set);
