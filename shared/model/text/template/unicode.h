/* Case and classes of characters beyond ASCII, from the C library's C.UTF-8 locale, which the
 * rendering opens when it first needs it. */
#pragma once

#include "shared/model/text/template/render.h"

enum unicode_case { UNICODE_UPPER, UNICODE_LOWER, UNICODE_TITLE, UNICODE_FOLD };

bool unicode_is_printable(
	struct render *r, uint32_t code); /* Python's str.isprintable, for repr() */
bool unicode_is_alpha(struct render *r, uint32_t code);
bool unicode_is_digit(struct render *r, uint32_t code);
bool unicode_is_upper(struct render *r, uint32_t code);
bool unicode_is_lower(struct render *r, uint32_t code);
/* Appends bytes from..to-1 of s, with each character in that case. */
void unicode_add(struct render *r, struct builder *b, const struct string *s, size_t from,
	size_t to, enum unicode_case how);
