/* Any bytes as text, in every pre-tokenizer and in SentencePiece: ids are in the vocabulary and their pieces are the text
 * again, or the text in NFC. The first byte chooses the vocabulary and where special tokens are parsed: nowhere, everywhere, or in the first
 * half of the text. */
#include "shared/model/text/normalize.h"
#include "shared/model/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const files[] = {"tiny-deepseek-v3", "tiny-gpt-2", "tiny-gpt-4o",
	"tiny-llama-bpe", "tiny-qwen2", "tiny-smollm", "tiny-spm"};

enum { N_FILES = sizeof(files) / sizeof(files[0]), QWEN2 = 4, SPM = 6, SPECIAL = 1, HALF = 0x80 };

static struct tokenizer *tokenizers[N_FILES];

static void load_all(void)
{
	for (int i = 0; i < N_FILES; i++) {
		char path[128];
		struct error err = {""};
		struct gguf *gguf;
		snprintf(path, sizeof(path), "tests/data/tokenizers/%s.gguf", files[i]);
		if (gguf_open(path, &gguf, &err) || tokenizer_load(gguf, &tokenizers[i], &err)) {
			fprintf(stderr, "%s\n", err.text);
			abort();
		}
		gguf_close(&gguf);
	}
}

/* What SentencePiece's pieces give back: every U+2581 as a space. Returns the length. */
static size_t with_plain_spaces(const char *text, size_t n, char *out)
{
	size_t to = 0;
	for (size_t at = 0; at < n; at++) {
		bool mark = n - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0;
		out[to++] = mark ? ' ' : text[at];
		at += mark ? 2 : 0;
	}
	return to;
}

/* The pieces of the ids are the text, but for spaces that the vocabulary puts before it and behind special tokens. */
static void check(const struct tokenizer *t, const int32_t *ids, size_t n, const char *text,
	size_t bytes, bool spaces)
{
	size_t at = 0;
	for (size_t i = 0; i < n; i++) {
		if (ids[i] < 0 || (uint32_t)ids[i] >= tokenizer_n_vocab(t))
			abort();
		struct gguf_string piece = tokenizer_piece(t, ids[i], true);
		bool same = piece.bytes <= bytes - at &&
			    memcmp(piece.data, text + at, piece.bytes) == 0;
		if (!same && spaces && piece.bytes && piece.data[0] == ' ') {
			piece.data++;
			piece.bytes--;
			same = piece.bytes <= bytes - at &&
			       memcmp(piece.data, text + at, piece.bytes) == 0;
		}
		if (!same)
			abort();
		at += piece.bytes;
	}
	if (at != bytes)
		abort();
}

static void encode(const struct tokenizer *t, unsigned flags, const char *text, size_t bytes,
	int32_t **ids, size_t *n)
{
	struct error err = {""};
	size_t capacity = 0;
	int rc;
	if (flags & HALF) {
		uint8_t *literal = calloc(bytes + 1, 1);
		if (!literal)
			abort();
		memset(literal, 1, bytes / 2);
		rc = tokenizer_encode_rendered(t, text, bytes, literal, ids, n, &capacity, &err);
		free(literal);
	} else {
		rc = tokenizer_encode(t, text, bytes, flags & SPECIAL, ids, n, &capacity, &err);
	}
	if (rc)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (!tokenizers[0])
		load_all();
	if (!bytes)
		return 0;
	unsigned which = ((data[0] & 0x7f) >> 1) % N_FILES;
	const struct tokenizer *t = tokenizers[which];
	const char *text = (const char *)data + 1;
	size_t n_text = bytes - 1, n = 0;
	int32_t *ids = NULL;
	encode(t, data[0], text, n_text, &ids, &n);
	if (which == SPM) {
		char *plain = malloc(bytes);
		if (!plain)
			abort();
		size_t n_plain = with_plain_spaces(text, n_text, plain);
		check(t, ids, n, plain, n_plain, true);
		free(plain);
	} else {
		static struct normalizer normalizer;
		const char *normal = text;
		size_t n_normal = n_text;
		if (which == QWEN2 &&
			normalize(&normalizer, NORMALIZATION_NFC, text, n_text, &normal, &n_normal))
			abort();
		/* What is on both sides of a special token is normalised by itself. */
		if (!memchr(text, '<', n_text) ||
			(n_normal == n_text && memcmp(normal, text, n_text) == 0))
			check(t, ids, n, normal, n_normal, false);
	}
	if (tokenizer_utf8_complete(text, n_text) > n_text)
		abort();
	free(ids);
	return 0;
}
