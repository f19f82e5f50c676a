/* Any bytes as a vocabulary: whatever loads encodes text to ids that it has, and compares with itself. */
#include "shared/model/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void encode(const struct tokenizer *t, const char *text, size_t bytes, bool special)
{
	struct error err = {""};
	int32_t *ids = NULL;
	size_t n = 0, capacity = 0;
	/* A vocabulary may lack bytes; then it says so. */
	if (tokenizer_encode(t, text, bytes, special, &ids, &n, &capacity, &err) && !err.text[0])
		abort();
	for (size_t i = 0; i < n; i++) {
		if (ids[i] < 0 || (uint32_t)ids[i] >= tokenizer_n_vocab(t))
			abort();
		(void)tokenizer_piece(t, ids[i], false);
		(void)tokenizer_is_eog(t, ids[i]);
	}
	free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const char text[] =
		"abab  Hello \xe2\x96\x81<s>the</s>\n\xff\xf0\x9f\x98\x80 12345<|im_end|> a";
	struct error err = {""};
	struct gguf *gguf;
	struct tokenizer *t;
	uint32_t shared;
	if (gguf_open_memory(data, bytes, &gguf, &err))
		return 0;
	if (tokenizer_load(gguf, &t, &err)) {
		if (!err.text[0])
			abort();
		gguf_close(&gguf);
		return 0;
	}
	gguf_close(&gguf);
	encode(t, text, sizeof(text) - 1, false);
	encode(t, text, sizeof(text) - 1, true);
	/* Its own strings are what it knows best. */
	encode(t, (const char *)data, bytes < 4096 ? bytes : 4096, true);
	if (tokenizer_compare(t, t, &shared, &err) || shared != tokenizer_n_vocab(t))
		abort();
	tokenizer_free(&t);
	return 0;
}
