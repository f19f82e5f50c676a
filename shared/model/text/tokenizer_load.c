#include "shared/model/text/tokenizer_load.h"

#include "shared/base/limits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	/* Special tokens are searched for at every byte of a text, so their length bounds the work
	 * per byte. */
	SPECIAL_BYTES_MAX = 512,
};

static int no_memory(struct error *err)
{
	return error_set(err, ENOMEM, "no memory for a tokenizer");
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte that SentencePiece writes as <0x0A>; -1 for any other text. */
static int byte_of_text(struct gguf_string s)
{
	if (s.bytes != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>')
		return -1;
	int high = hex_digit(s.data[3]), low = hex_digit(s.data[4]);
	return high < 0 || low < 0 ? -1 : 16 * high + low;
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
	t->spm = model.bytes == 5 && memcmp(model.data, "llama", 5) == 0;
	if (t->spm) {
		t->add_space = true;
		rc = gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", &t->add_space, err);
		return rc == -ENOENT ? 0 : rc;
	}
	if (model.bytes != 4 || memcmp(model.data, "gpt2", 4) != 0)
		return error_set(err, ENOTSUP,
			"key tokenizer.ggml.model is \"%s\", which is not supported (supported: "
			"gpt2, which is byte-level BPE, and llama, which is SentencePiece)",
			gguf_name_text(model).text);
	/* "default" is for files that are older than the key. */
	rc = gguf_get_string(gguf, "tokenizer.ggml.pre", &pre, err);
	if (rc && rc != -ENOENT)
		return rc;
	return pretokenizer_create(pre.data, pre.bytes, &t->pretokenizer, err);
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

/* Writes to `at` the bytes for which a BPE token stands. Added tokens are literal text; so is an
 * ordinary token with a character that stands for no byte. Returns the number of bytes. */
static size_t bpe_piece(struct tokenizer *t, uint32_t i, char *at)
{
	bool literal = t->types[i] != TOKEN_NORMAL && t->types[i] != TOKEN_BYTE;
	ptrdiff_t n = literal ? -1 : tokenizer_unmap_bytes(t->texts[i], at);
	t->pieces[i] = n < 0 ? t->texts[i] : (struct gguf_string){at, (size_t)n};
	if (t->types[i] == TOKEN_UNUSED)
		t->pieces[i].bytes = 0;
	return n < 0 ? 0 : (size_t)n;
}

/* The same for SentencePiece; ids from n_trained on were added, and are literal text. */
static ptrdiff_t spm_piece(struct tokenizer *t, uint32_t i, char *at, struct error *err)
{
	struct gguf_string s = t->texts[i];
	t->pieces[i] = s;
	if (t->types[i] == TOKEN_BYTE) {
		int byte = byte_of_text(s);
		if (byte < 0)
			return error_set(err, EINVAL,
				"key " TOKENS_KEY ": token %u is of type byte, but its text %s is "
				"not <0x00> to <0xFF>",
				i, gguf_name_text(s).text);
		*at = (char)byte;
		t->pieces[i] = (struct gguf_string){at, 1};
		return 1;
	}
	if (t->types[i] == TOKEN_CONTROL || t->types[i] == TOKEN_UNKNOWN ||
		(t->types[i] == TOKEN_USER_DEFINED && i >= t->n_trained))
		return 0;
	size_t n = spm_plain_spaces(s.data, s.bytes, at);
	t->pieces[i] = (struct gguf_string){at, n};
	return (ptrdiff_t)n;
}

/* Finds the end of the trained vocabulary, behind which are added tokens. Files without types are
 * older than added tokens. */
static void find_trained(struct tokenizer *t, const struct gguf *gguf)
{
	if (!gguf_has(gguf, "tokenizer.ggml.token_type"))
		for (uint32_t i = 0; i < t->n_vocab; i++)
			if (byte_of_text(gguf_array_string(gguf, TOKENS_KEY, i)) >= 0)
				t->types[i] = TOKEN_BYTE;
	for (uint32_t i = 0; i < t->n_vocab; i++)
		if (t->types[i] == TOKEN_NORMAL || t->types[i] == TOKEN_BYTE)
			t->n_trained = i + 1;
}

/* Copies the texts, so that a tokenizer may outlive the file, and behind each the bytes for which
 * it stands. */
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
	/* At most twice the file's size. */
	t->text = malloc(2 * total + 1);
	if (!t->text)
		return no_memory(err);
	if (t->spm)
		find_trained(t, gguf);
	char *at = t->text;
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		struct gguf_string s = gguf_array_string(gguf, TOKENS_KEY, i);
		memcpy(at, s.data, s.bytes);
		t->texts[i] = (struct gguf_string){at, s.bytes};
		at += s.bytes;
		ptrdiff_t n = t->spm ? spm_piece(t, i, at, err) : (ptrdiff_t)bpe_piece(t, i, at);
		if (n < 0)
			return (int)n;
		at += n;
	}
	return 0;
}

/* The last one of equal pieces counts, as in the references: official files have duplicates. */
static void add_word(struct tokenizer *t, uint32_t id)
{
	struct gguf_string piece = t->pieces[id];
	if (piece.bytes == 0)
		return;
	t->words[tokenizer_word_slot(t, piece.data, piece.bytes)] = (int32_t)id;
	t->longest_word = piece.bytes > t->longest_word ? piece.bytes : t->longest_word;
	if (piece.bytes == 1 && !t->spm)
		t->byte_ids[(unsigned char)piece.data[0]] = (int32_t)id;
}

/* For added tokens through which merges go, in vocabularies that have them twice: they never
 * replace a word. */
static void add_user_defined(struct tokenizer *t, uint32_t id)
{
	struct gguf_string piece = t->pieces[id];
	if (tokenizer_find_word(t, piece.data, piece.bytes) < 0)
		add_word(t, id);
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
		bool byte = t->types[i] == TOKEN_BYTE;
		if (t->spm && byte && t->pieces[i].bytes == 1)
			t->byte_ids[(unsigned char)*t->pieces[i].data] = (int32_t)i;
		else if (t->types[i] == TOKEN_NORMAL || byte ||
			 (t->spm && t->types[i] == TOKEN_UNUSED))
			add_word(t, i);
	}
	for (uint32_t i = 0; !t->spm && i < t->n_vocab; i++)
		if (t->types[i] == TOKEN_USER_DEFINED)
			add_user_defined(t, i);
	return 0;
}

static int index_specials(struct tokenizer *t, struct error *err)
{
	t->specials.strings = t->texts;
	t->symbols.strings = t->pieces;
	t->specials.ids = malloc((size_t)t->n_vocab * sizeof(int32_t));
	t->symbols.ids = malloc((size_t)t->n_vocab * sizeof(int32_t));
	if (!t->specials.ids || !t->symbols.ids)
		return no_memory(err);
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		bool user_defined = t->types[i] == TOKEN_USER_DEFINED;
		if (!user_defined && t->types[i] != TOKEN_UNKNOWN && t->types[i] != TOKEN_CONTROL)
			continue;
		if (t->texts[i].bytes > SPECIAL_BYTES_MAX)
			return error_set(err, EINVAL,
				"key " TOKENS_KEY
				": special token %u has %zu bytes; at most %d are supported",
				i, t->texts[i].bytes, SPECIAL_BYTES_MAX);
		t->specials.ids[t->specials.n++] = (int32_t)i;
		if (t->spm && user_defined && i < t->n_trained)
			t->symbols.ids[t->symbols.n++] = (int32_t)i;
	}
	token_list_sort(&t->specials);
	token_list_sort(&t->symbols);
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
