/* The part of the metadata that only byte-level BPE has: how bytes are written as characters, and
 * the merges. */
#include "shared/base/limits.h"
#include "shared/base/utf8.h"
#include "shared/model/text/tokenizer_load.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT_MERGES = 4 << 20 };

static int no_memory(struct error *err)
{
	return error_set(err, ENOMEM, "no memory for a tokenizer");
}

/* Byte-level BPE writes a printable byte as itself and the 68 others as U+0100 and up, in ascending
 * order. */
static int byte_of_character(unsigned c)
{
	if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
		return (int)c;
	if (c < 256 || c >= 256 + 68)
		return -1;
	unsigned n = c - 256;
	/* 0 to 32, 127 to 160, 173. */
	return (int)(n < 33 ? n : n < 67 ? n - 33 + 127 : 173);
}

ptrdiff_t tokenizer_unmap_bytes(struct gguf_string s, char *out)
{
	ptrdiff_t n = 0;
	for (size_t at = 0; at < s.bytes;) {
		const unsigned char *p = (const unsigned char *)s.data + at;
		size_t length = utf8_sequence(s.data + at, s.bytes - at);
		if (length == 0 || length > 2)
			return -1;
		int byte = byte_of_character(
			length == 1 ? p[0] : (unsigned)(p[0] & 0x1f) << 6 | (p[1] & 0x3f));
		if (byte < 0)
			return -1;
		out[n++] = (char)byte;
		at += length;
	}
	return n;
}

static int bad_merge(struct error *err, uint64_t i, struct gguf_string s, const char *why)
{
	return error_set(err, EINVAL, "key " MERGES_KEY ": element %" PRIu64 " (%s) %s", i,
		gguf_name_text(s).text, why);
}

/* Reads merge i: "left right", two ordinary tokens whose concatenation is a third. bytes has room
 * for all of it. */
static int read_merge(
	struct tokenizer *t, struct gguf_string s, uint64_t i, char *bytes, struct error *err)
{
	const char *space = s.bytes > 1 ? memchr(s.data + 1, ' ', s.bytes - 1) : NULL;
	if (!space || space + 1 == s.data + s.bytes)
		return bad_merge(err, i, s, "is not two tokens with a space between them");
	size_t left_text = (size_t)(space - s.data);
	ptrdiff_t left = tokenizer_unmap_bytes((struct gguf_string){s.data, left_text}, bytes);
	ptrdiff_t right = left < 0 ? -1
				   : tokenizer_unmap_bytes((struct gguf_string){space + 1,
								   s.bytes - left_text - 1},
					     bytes + left);
	if (right < 0)
		return bad_merge(err, i, s, "has characters that stand for no byte");
	int32_t a = tokenizer_find_word(t, bytes, (size_t)left);
	int32_t b = tokenizer_find_word(t, bytes + left, (size_t)right);
	int32_t result = tokenizer_find_word(t, bytes, (size_t)(left + right));
	if (a < 0 || b < 0 || result < 0)
		return bad_merge(err, i, s, "joins or makes a string that is not a token");
	/* Of equal merges the first counts. */
	struct merge *slot = tokenizer_merge_slot(t, a, b);
	if (slot->pair == MERGE_NONE)
		*slot = (struct merge){
			(uint64_t)(uint32_t)a << 32 | (uint32_t)b, (uint32_t)i, result};
	return 0;
}

int tokenizer_load_merges(struct tokenizer *t, const struct gguf *gguf, struct error *err)
{
	enum gguf_value_type type;
	uint64_t n;
	size_t longest = 0;
	int rc = gguf_get_array(gguf, MERGES_KEY, &type, &n, err);
	if (rc == -ENOENT)
		return error_set(err, EINVAL, "key " MERGES_KEY " is missing");
	if (rc)
		return rc;
	if (type != GGUF_STRING)
		return error_set(err, EINVAL, "key " MERGES_KEY " is an array, but not of strings");
	if (n > LIMIT_MERGES)
		return error_set(err, EINVAL,
			"key " MERGES_KEY " has %" PRIu64 " elements; at most %d are supported", n,
			LIMIT_MERGES);
	for (t->n_merges = 16; t->n_merges < 2 * n;)
		t->n_merges *= 2;
	t->merges = malloc(t->n_merges * sizeof(*t->merges));
	if (!t->merges)
		return no_memory(err);
	for (size_t i = 0; i < t->n_merges; i++)
		t->merges[i].pair = MERGE_NONE;
	for (uint64_t i = 0; i < n; i++) {
		struct gguf_string s = gguf_array_string(gguf, MERGES_KEY, i);
		longest = s.bytes > longest ? s.bytes : longest;
		if (longest > 2 * LIMIT_TOKEN_BYTES + 1)
			return bad_merge(err, i, s, "is longer than two tokens can be");
	}
	char *bytes = malloc(longest + 1);
	if (!bytes)
		return no_memory(err);
	for (uint64_t i = 0; !rc && i < n; i++)
		rc = read_merge(t, gguf_array_string(gguf, MERGES_KEY, i), i, bytes, err);
	free(bytes);
	return rc;
}
