#include "shared/model/tokenizer_load.h"

#include "shared/base/limits.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	LIMIT_MERGES = 4 << 20,
	/* A special token is looked for at every byte of a text, so its length bounds the work per byte. */
	SPECIAL_BYTES_MAX = 512,
};

static int no_memory(struct error *err)
{
	return error_set(err, ENOMEM, "no memory for a tokenizer");
}

static bool upper_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F');
}

/* SentencePiece files are another kind; what is wrong inside one is said before that it is one. */
static int refuse_sentencepiece(const struct gguf *gguf, struct error *err)
{
	enum gguf_value_type type;
	uint64_t n;
	int rc = gguf_get_array(gguf, "tokenizer.ggml.scores", &type, &n, err);
	for (uint64_t i = 0; !rc && i < n; i++) {
		if (!isfinite(gguf_array_f64(gguf, "tokenizer.ggml.scores", i)))
			return error_set(err, EINVAL,
				"key tokenizer.ggml.scores: element %" PRIu64 " is %g", i,
				gguf_array_f64(gguf, "tokenizer.ggml.scores", i));
	}
	if (rc && rc != -ENOENT)
		return rc;
	rc = gguf_get_array(gguf, "tokenizer.ggml.token_type", &type, &n, NULL);
	for (uint64_t i = 0; !rc && i < n; i++) {
		struct gguf_string s = gguf_array_string(gguf, TOKENS_KEY, i);
		if (gguf_array_i64(gguf, "tokenizer.ggml.token_type", i) != TOKEN_BYTE)
			continue;
		if (s.bytes != 6 || memcmp(s.data, "<0x", 3) != 0 || !upper_hex(s.data[3]) ||
			!upper_hex(s.data[4]) || s.data[5] != '>')
			return error_set(err, EINVAL,
				"key " TOKENS_KEY ": token %" PRIu64
				" is of type byte, but its text %s is not <0x00> to <0xFF>",
				i, gguf_name_text(s).text);
	}
	return error_set(err, ENOTSUP,
		"key tokenizer.ggml.model is \"llama\" (SentencePiece), which is not supported "
		"(supported: "
		"gpt2)");
}

int tokenizer_load_kind(struct tokenizer *t, const struct gguf *gguf, struct error *err)
{
	struct gguf_string model, pre = {"default", 7};
	int rc = gguf_get_string(gguf, "tokenizer.ggml.model", &model, err);
	if (rc == -ENOENT)
		return error_set(err, EINVAL,
			"key tokenizer.ggml.model is missing: the file has no tokenizer");
	if (rc)
		return rc;
	if (model.bytes == 5 && memcmp(model.data, "llama", 5) == 0)
		return refuse_sentencepiece(gguf, err);
	if (model.bytes != 4 || memcmp(model.data, "gpt2", 4) != 0)
		return error_set(err, ENOTSUP,
			"key tokenizer.ggml.model is \"%s\", which is not supported (supported: "
			"gpt2)",
			gguf_name_text(model).text);
	/* Files older than the key are what "default" is for. */
	rc = gguf_get_string(gguf, "tokenizer.ggml.pre", &pre, err);
	if (rc && rc != -ENOENT)
		return rc;
	return pretokenizer_create(pre.data, pre.bytes, &t->pretokenizer, err);
}

/* Byte-level BPE writes a printable byte as itself and the 68 others as U+0100 onwards, in ascending order. */
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

static int read_types(struct tokenizer *t, const struct gguf *gguf, struct error *err)
{
	const char *key = "tokenizer.ggml.token_type";
	enum gguf_value_type type;
	uint64_t n;
	memset(t->types, TOKEN_NORMAL, t->n_vocab);
	int rc = gguf_get_array(gguf, key, &type, &n, err);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	if (type == GGUF_STRING || type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL)
		return error_set(err, EINVAL, "key %s is an array, but not of integers", key);
	if (n != t->n_vocab)
		return error_set(err, EINVAL, "key %s has %" PRIu64 " elements for %u tokens", key,
			n, t->n_vocab);
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		int64_t value = gguf_array_i64(gguf, key, i);
		if (value < TOKEN_UNDEFINED || value > TOKEN_BYTE)
			return error_set(err, EINVAL,
				"key %s: element %u is %lld; 0 to 6 are known", key, i,
				(long long)value);
		t->types[i] = value == TOKEN_UNDEFINED ? TOKEN_NORMAL : (uint8_t)value;
	}
	return 0;
}

/* Copies the texts, so that a tokenizer outlives the file, and behind each the bytes it stands for. */
static int read_texts(struct tokenizer *t, const struct gguf *gguf, struct error *err)
{
	size_t total = 0;
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		size_t bytes = gguf_array_string(gguf, TOKENS_KEY, i).bytes;
		total += bytes;
		if (bytes > LIMIT_TOKEN_BYTES || total > LIMIT_VOCAB_BYTES)
			return error_set(err, EINVAL,
				"key " TOKENS_KEY ": token %u has %zu bytes; %d are allowed, and "
				"%d for all tokens",
				i, bytes, LIMIT_TOKEN_BYTES, LIMIT_VOCAB_BYTES);
	}
	/* Within the file's size, twice. */
	t->text = malloc(2 * total + 1);
	if (!t->text)
		return no_memory(err);
	char *at = t->text;
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		struct gguf_string s = gguf_array_string(gguf, TOKENS_KEY, i);
		memcpy(at, s.data, s.bytes);
		t->texts[i] = t->pieces[i] = (struct gguf_string){at, s.bytes};
		at += s.bytes;
		/* Added tokens are literal text; an ordinary token with a character that stands for no byte is, too. */
		bool literal = t->types[i] != TOKEN_NORMAL && t->types[i] != TOKEN_BYTE;
		ptrdiff_t n = literal ? -1 : tokenizer_unmap_bytes(t->texts[i], at);
		if (t->types[i] == TOKEN_UNUSED)
			t->pieces[i].bytes = 0;
		if (n < 0)
			continue;
		t->pieces[i] = (struct gguf_string){at, (size_t)n};
		at += n;
	}
	return 0;
}

/* The first of equal pieces wins: official files have duplicates. */
static void add_word(struct tokenizer *t, uint32_t id)
{
	struct gguf_string piece = t->pieces[id];
	if (piece.bytes == 0 || tokenizer_find_word(t, piece.data, piece.bytes) >= 0)
		return;
	t->words[tokenizer_word_slot(t, piece.data, piece.bytes)] = (int32_t)id;
	if (piece.bytes == 1)
		t->byte_ids[(unsigned char)piece.data[0]] = (int32_t)id;
}

static int index_words(struct tokenizer *t, struct error *err)
{
	/* At most half full. */
	for (t->n_words = 16; t->n_words < 2 * (size_t)t->n_vocab;)
		t->n_words *= 2;
	t->words = malloc(t->n_words * sizeof(*t->words));
	if (!t->words)
		return no_memory(err);
	memset(t->words, 0xff, t->n_words * sizeof(*t->words));
	memset(t->byte_ids, 0xff, sizeof(t->byte_ids));
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		if (t->types[i] == TOKEN_NORMAL || t->types[i] == TOKEN_BYTE)
			add_word(t, i);
	}
	/* Added tokens that merges go through, in vocabularies that have them twice over. */
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		if (t->types[i] == TOKEN_USER_DEFINED)
			add_word(t, i);
	}
	return 0;
}

static int compare_specials(const void *a, const void *b, void *arg)
{
	const struct tokenizer *t = arg;
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	struct gguf_string s = t->texts[x], r = t->texts[y];
	size_t n = s.bytes < r.bytes ? s.bytes : r.bytes;
	int order = memcmp(s.data, r.data, n);
	if (!order)
		order = (s.bytes > r.bytes) - (s.bytes < r.bytes);
	return order ? order : (x > y) - (x < y);
}

static int index_specials(struct tokenizer *t, struct error *err)
{
	uint32_t n = 0;
	t->specials = malloc((size_t)t->n_vocab * sizeof(*t->specials));
	if (!t->specials)
		return no_memory(err);
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		bool special = t->types[i] == TOKEN_UNKNOWN || t->types[i] == TOKEN_CONTROL ||
			       t->types[i] == TOKEN_USER_DEFINED;
		if (!special || t->texts[i].bytes == 0)
			continue;
		if (t->texts[i].bytes > SPECIAL_BYTES_MAX)
			return error_set(err, EINVAL,
				"key " TOKENS_KEY
				": special token %u has %zu bytes; at most %d are supported",
				i, t->texts[i].bytes, SPECIAL_BYTES_MAX);
		t->special_first[(unsigned char)t->texts[i].data[0]] = true;
		t->specials[n++] = (int32_t)i;
	}
	qsort_r(t->specials, n, sizeof(*t->specials), compare_specials, t);
	for (uint32_t i = 0; i < n; i++) {
		struct gguf_string s = t->texts[t->specials[i]];
		struct gguf_string last = t->n_specials ? t->texts[t->specials[t->n_specials - 1]]
							: (struct gguf_string){"", 0};
		if (s.bytes != last.bytes || memcmp(s.data, last.data, s.bytes) != 0)
			t->specials[t->n_specials++] = t->specials[i];
	}
	return 0;
}

int tokenizer_load_tokens(struct tokenizer *t, const struct gguf *gguf, struct error *err)
{
	enum gguf_value_type type;
	uint64_t n;
	int rc = gguf_get_array(gguf, TOKENS_KEY, &type, &n, err);
	if (rc == -ENOENT)
		return error_set(err, EINVAL, "key " TOKENS_KEY " is missing");
	if (rc)
		return rc;
	if (type != GGUF_STRING)
		return error_set(err, EINVAL, "key " TOKENS_KEY " is an array, but not of strings");
	if (n == 0 || n > LIMIT_VOCAB)
		return error_set(err, EINVAL,
			"key " TOKENS_KEY " has %" PRIu64 " tokens; 1 to %d are supported", n,
			LIMIT_VOCAB);
	t->n_vocab = (uint32_t)n;
	t->texts = calloc(n, sizeof(*t->texts));
	t->pieces = calloc(n, sizeof(*t->pieces));
	t->types = calloc(n, sizeof(*t->types));
	t->eog = calloc(n, sizeof(*t->eog));
	if (!t->texts || !t->pieces || !t->types || !t->eog)
		return no_memory(err);
	rc = read_types(t, gguf, err);
	if (!rc)
		rc = read_texts(t, gguf, err);
	if (!rc)
		rc = index_words(t, err);
	return rc ? rc : index_specials(t, err);
}

static int bad_merge(struct error *err, uint64_t i, struct gguf_string s, const char *why)
{
	return error_set(err, EINVAL, "key " MERGES_KEY ": element %" PRIu64 " (%s) %s", i,
		gguf_name_text(s).text, why);
}

/* Merge i: "left right", two ordinary tokens whose concatenation is a third. bytes has room for the whole. */
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
		return bad_merge(err, i, s, "joins or makes what is not a token");
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

static bool text_is(struct gguf_string s, const char *text)
{
	return s.bytes == strlen(text) && memcmp(s.data, text, s.bytes) == 0;
}

/* Converters write one end-of-sequence id, but chat models also end turns with others, known by their text. */
static void find_eog_by_text(struct tokenizer *t)
{
	static const char *const texts[] = {
		"<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|return|>", "<|call|>", "<|end|>"};
	enum { RETURN = 3, CALL = 4, END = 5, N = 6 };
	int32_t found[N];
	for (int i = 0; i < N; i++)
		found[i] = -1;
	for (uint32_t id = 0; id < t->n_vocab; id++) {
		for (int i = 0; i < N; i++) {
			if (found[i] < 0 && text_is(t->texts[id], texts[i]))
				found[i] = (int32_t)id;
		}
	}
	/* In gpt-oss <|end|> ends a message, after which the model goes on. */
	if (found[RETURN] >= 0 && found[CALL] >= 0)
		found[END] = -1;
	for (int i = 0; i < N; i++) {
		if (found[i] >= 0)
			t->eog[found[i]] = true;
	}
}

int tokenizer_load_special_ids(struct tokenizer *t, const struct gguf *gguf, struct error *err)
{
	static const struct {
		const char *key;
		bool eog;
	} keys[] = {
		{"tokenizer.ggml.bos_token_id", false},
		{"tokenizer.ggml.eos_token_id", true},
		{"tokenizer.ggml.eot_token_id", true},
		{"tokenizer.ggml.eom_token_id", true},
		{"tokenizer.ggml.unknown_token_id", false},
		{"tokenizer.ggml.seperator_token_id", false},
		{"tokenizer.ggml.padding_token_id", false},
		{"tokenizer.ggml.cls_token_id", false},
		{"tokenizer.ggml.mask_token_id", false},
		{"tokenizer.ggml.fim_pre_token_id", false},
		{"tokenizer.ggml.fim_suf_token_id", false},
		{"tokenizer.ggml.fim_mid_token_id", false},
		{"tokenizer.ggml.fim_pad_token_id", false},
		{"tokenizer.ggml.fim_rep_token_id", false},
		{"tokenizer.ggml.fim_sep_token_id", false},
	};
	int32_t bos = -1;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		uint64_t id;
		int rc = gguf_get_u64(gguf, keys[i].key, 0, t->n_vocab - 1, &id, err);
		if (rc == -ENOENT)
			continue;
		if (rc)
			return rc;
		if (keys[i].eog)
			t->eog[id] = true;
		if (i == 0)
			bos = (int32_t)id;
	}
	bool add = pretokenizer_adds_bos(t->pretokenizer);
	int rc = gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", &add, err);
	if (rc && rc != -ENOENT)
		return rc;
	t->bos = add ? bos : -1;
	find_eog_by_text(t);
	return 0;
}
