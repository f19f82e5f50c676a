#include "shared/model/text/normalize.h"

#include "shared/base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static utf8proc_option_t options_of(enum normalization form)
{
	int options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
	return (utf8proc_option_t)(form == NORMALIZATION_NFKC ? options | UTF8PROC_COMPAT
							      : options);
}

/* Characters below this are normal whatever follows them: U+0300 is the first that composes with a
 * character before it, U+00A0 the first with a compatibility mapping. */
static unsigned char first_lead(enum normalization form)
{
	return form == NORMALIZATION_NFKC ? 0xc2 : 0xcc;
}

static bool has_lead(const char *text, size_t bytes, unsigned char lead)
{
	for (size_t i = 0; i < bytes; i++)
		if ((unsigned char)text[i] >= lead)
			return true;
	return false;
}

/* Makes room for n elements in *array. */
static int reserve(void *array, size_t *capacity, size_t n, size_t size)
{
	void **at = array;
	if (n <= *capacity)
		return 0;
	size_t larger = n + n / 2 + 64;
	void *grown = realloc(*at, larger * size);
	if (!grown)
		return -ENOMEM;
	*at = grown;
	*capacity = larger;
	return 0;
}

static int append_bytes(struct normalizer *z, const char *text, size_t bytes)
{
	if (reserve(&z->text, &z->capacity, z->bytes + bytes, 1))
		return -ENOMEM;
	memcpy(z->text + z->bytes, text, bytes);
	z->bytes += bytes;
	return 0;
}

static unsigned combining_class(int32_t character)
{
	return (unsigned)utf8proc_get_property(character)->combining_class & 0xff;
}

/* Sorts by rising class, stably. utf8proc's own sort takes quadratic time for long runs of marks,
 * which no real text has. */
static int sort_marks(struct normalizer *z, int32_t *marks, size_t n)
{
	size_t at[256] = {0}, sum = 0;
	bool sorted = true;
	for (size_t i = 0; i < n; i++) {
		at[combining_class(marks[i])]++;
		sorted &= i == 0 || combining_class(marks[i - 1]) <= combining_class(marks[i]);
	}
	if (sorted)
		return 0;
	if (reserve(&z->sorted, &z->sorted_capacity, n, sizeof(*marks)))
		return -ENOMEM;
	for (size_t c = 0; c < 256; c++) {
		size_t count = at[c];
		at[c] = sum;
		sum += count;
	}
	for (size_t i = 0; i < n; i++)
		z->sorted[at[combining_class(marks[i])]++] = marks[i];
	memcpy(marks, z->sorted, n * sizeof(*marks));
	return 0;
}

static int sort_all_marks(struct normalizer *z)
{
	for (size_t i = 0; i < z->n;) {
		size_t from = i;
		while (i < z->n && combining_class(z->characters[i]) != 0)
			i++;
		if (i - from > 1 && sort_marks(z, z->characters + from, i - from))
			return -ENOMEM;
		i += i == from;
	}
	return 0;
}

/* Decomposes the characters of valid UTF-8. */
static int decompose(
	struct normalizer *z, const char *text, size_t bytes, utf8proc_option_t options)
{
	enum { ONE_MAX = 32 }; /* U+FDFA becomes 18 characters */
	z->n = 0;
	for (size_t at = 0; at < bytes;) {
		int32_t character;
		int boundary = 0;
		at += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + at,
			(utf8proc_ssize_t)(bytes - at), &character);
		if (reserve(&z->characters, &z->n_capacity, z->n + ONE_MAX, sizeof(*z->characters)))
			return -ENOMEM;
		utf8proc_ssize_t n = utf8proc_decompose_char(
			character, z->characters + z->n, ONE_MAX, options, &boundary);
		if (n < 0 || n > ONE_MAX) {
			z->characters[z->n] = character;
			n = 1;
		}
		z->n += (size_t)n;
	}
	return 0;
}

/* Appends characters that are decomposed and sorted, after composing them. */
static int append_composed(struct normalizer *z, int32_t *characters, size_t n)
{
	utf8proc_ssize_t left = utf8proc_normalize_utf32(
		characters, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
	/* Only a number that is no character would be an error, and there is none here. */
	if (left < 0)
		return -EINVAL;
	if (reserve(&z->text, &z->capacity, z->bytes + 4 * (size_t)left, 1))
		return -ENOMEM;
	for (utf8proc_ssize_t i = 0; i < left; i++)
		z->bytes += (size_t)utf8proc_encode_char(
			characters[i], (utf8proc_uint8_t *)z->text + z->bytes);
	return 0;
}

static int append_normal(
	struct normalizer *z, enum normalization form, const char *text, size_t bytes)
{
	enum { HANGUL_T_BASE = 0x11a7 };
	int rc = decompose(z, text, bytes, options_of(form));
	if (!rc)
		rc = sort_all_marks(z);
	/* U+11A7 composes with nothing, but utf8proc 2.8 treats it as a final consonant. */
	for (size_t at = 0, from = 0; !rc && at < z->n; from = at) {
		for (at++; at < z->n && z->characters[at] != HANGUL_T_BASE;)
			at++;
		rc = append_composed(z, z->characters + from, at - from);
	}
	return rc;
}

/* Appends a stretch that begins with an ASCII character and ends before the next one: nothing
 * composes across its ends. */
static int append_stretch(
	struct normalizer *z, enum normalization form, const char *text, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		size_t valid = at, n;
		while ((n = utf8_sequence(text + valid, bytes - valid)) > 0)
			valid += n;
		size_t invalid = valid;
		while (invalid < bytes && !utf8_sequence(text + invalid, bytes - invalid))
			invalid++;
		int rc = append_normal(z, form, text + at, valid - at);
		if (!rc)
			rc = append_bytes(z, text + valid, invalid - valid);
		if (rc)
			return rc;
		at = invalid;
	}
	return 0;
}

int normalize(struct normalizer *normalizer, enum normalization form, const char *text,
	size_t bytes, const char **out, size_t *out_bytes)
{
	unsigned char lead = first_lead(form);
	*out = text;
	*out_bytes = bytes;
	if (form == NORMALIZATION_NONE || !has_lead(text, bytes, lead))
		return 0;
	normalizer->bytes = 0;
	for (size_t at = 0; at < bytes;) {
		size_t end = at + 1;
		while (end < bytes && (unsigned char)text[end] >= 0x80)
			end++;
		int rc = has_lead(text + at, end - at, lead)
				 ? append_stretch(normalizer, form, text + at, end - at)
				 : append_bytes(normalizer, text + at, end - at);
		if (rc)
			return rc;
		at = end;
	}
	*out = normalizer->text;
	*out_bytes = normalizer->bytes;
	return 0;
}

void normalizer_free(struct normalizer *normalizer)
{
	free(normalizer->text);
	free(normalizer->characters);
	free(normalizer->sorted);
	memset(normalizer, 0, sizeof(*normalizer));
}
