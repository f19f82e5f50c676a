/* Operations on strings that filters and methods share. Results are in the rendering's arena. */
#pragma once

#include "shared/model/text/template/render.h"
#include "shared/model/text/template/unicode.h"

/* s without the characters of `chars` (NULL: spaces) at its ends. */
struct string *strings_strip(struct render *r, const struct string *s, const struct string *chars,
	bool left, bool right);
/* The last place of needle in the first `to` bytes of s, or -1. The caller charges for reading s.
 */
ptrdiff_t strings_find_last(
	struct render *r, const struct string *s, const struct string *needle, size_t to);
/* max < 0: replaces all. */
struct string *strings_replace(struct render *r, struct string *s, const struct string *old,
	const struct string *new, int64_t max);
/* separator NULL: splits at runs of white space. max < 0: no limit. */
struct list *strings_split(
	struct render *r, struct string *s, const struct string *separator, int64_t max);
struct list *strings_split_last(
	struct render *r, struct string *s, const struct string *separator, int64_t max);
struct list *strings_lines(struct render *r, struct string *s, bool keep_ends);
struct string *strings_case(struct render *r, struct string *s, enum unicode_case how);
struct string *strings_capitalize(struct render *r, struct string *s);
/* Like Python's str.title: a letter that does not follow a letter begins a word. */
struct string *strings_title(struct render *r, struct string *s);
/* Adds `left` and `right` copies of fill at the two ends. */
struct string *strings_pad(
	struct render *r, struct string *s, int64_t left, int64_t right, const struct string *fill);
/* Joins the items, each as str() writes it. */
struct string *strings_join(
	struct render *r, const struct string *separator, const struct list *items);
struct string *strings_escape(struct render *r, const struct string *s);
/* An argument that must be an integer (or a bool); otherwise when it was not given. */
int64_t argument_int(struct render *r, struct value v, int64_t otherwise, const char *name);
/* An argument that must be a string; NULL when it was not given or none. */
struct string *argument_string(struct render *r, struct value v, const char *name);
