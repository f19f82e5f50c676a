/* Any bytes as text, in every pre-tokenizer: ids are in the vocabulary and their pieces are the text again. The first
 * byte chooses the vocabulary and whether special tokens are parsed. */
#include "shared/model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const files[] = {"tiny-deepseek-v3", "tiny-gpt-2", "tiny-gpt-4o",
	"tiny-llama-bpe", "tiny-qwen2", "tiny-smollm"};

enum { N_FILES = sizeof(files) / sizeof(files[0]) };

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (!tokenizers[0])
		load_all();
	if (!bytes)
		return 0;
	const struct tokenizer *t = tokenizers[(data[0] >> 1) % N_FILES];
	const char *text = (const char *)data + 1;
	size_t n_text = bytes - 1, n = 0, capacity = 0, at = 0;
	struct error err = {""};
	int32_t *ids = NULL;
	if (tokenizer_encode(t, text, n_text, data[0] & 1, &ids, &n, &capacity, &err))
		abort();
	for (size_t i = 0; i < n; i++) {
		struct gguf_string piece = tokenizer_piece(t, ids[i], data[0] & 1);
		if (piece.bytes > n_text - at || memcmp(piece.data, text + at, piece.bytes) != 0)
			abort();
		at += piece.bytes;
	}
	if (at != n_text || tokenizer_utf8_complete(text, n_text) > n_text)
		abort();
	free(ids);
	return 0;
}
