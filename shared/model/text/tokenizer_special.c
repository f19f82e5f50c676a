/* Tokens with a special purpose: the first, the unknown, and the tokens that end a generation. */
#include "shared/model/arch/pack.h"
#include "shared/model/text/tokenizer_load.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool text_is(struct gguf_string s, const char *text)
{
	return s.bytes == strlen(text) && memcmp(s.data, text, s.bytes) == 0;
}

/* Converters write one end-of-sequence id, but chat models also end turns with other tokens, which
 * are found by their text. */
static void find_eog_by_text(struct tokenizer *t)
{
	static const char *const texts[] = {"<|return|>", "<|call|>", "<|end|>", "<|im_end|>",
		"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>",
		"<\uff5cend\u2581of\u2581sentence\uff5c>"};
	enum { RETURN, CALL, END, N = sizeof(texts) / sizeof(texts[0]) };
	bool found[N] = {false};
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t id = 0; id < t->n_vocab; id++) {
			if (t->texts[id].bytes == 0 || t->texts[id].data[0] != '<')
				continue;
			for (int i = 0; i < N; i++) {
				if (!text_is(t->texts[id], texts[i]))
					continue;
				found[i] = true;
				/* In gpt-oss <|end|> ends a message, after which the model goes on.
				 */
				if (pass == 1 && !(i == END && found[RETURN] && found[CALL]))
					t->eog[id] = true;
			}
		}
	}
}

/* True when text contains a word; upper and lower case are the same. */
static bool mentions(struct gguf_string text, const char *word)
{
	size_t n = strlen(word);
	for (size_t at = 0; at + n <= text.bytes; at++)
		if (strncasecmp(text.data + at, word, n) == 0)
			return true;
	return false;
}

/* In Phi-3's family all special tokens but three include the spaces behind them. GGUF has no key
 * for that, so the model is recognised instead. */
static int find_strips(struct tokenizer *t, const struct gguf *gguf, struct error *err)
{
	struct gguf_string name = {"", 0}, architecture = {"", 0};
	(void)gguf_get_string(gguf, "general.name", &name, NULL);
	(void)pack_architecture(gguf, &architecture, NULL);
	if (!t->spm || (!mentions(name, "phi-3") && !mentions(name, "phi3") &&
			       !text_is(architecture, "phi3") && !text_is(architecture, "phimoe")))
		return 0;
	t->strips = calloc(t->n_vocab, sizeof(*t->strips));
	if (!t->strips)
		return error_set(err, ENOMEM, "no memory for a tokenizer");
	for (uint32_t i = 0; i < t->specials.n; i++) {
		int32_t id = t->specials.ids[i];
		t->strips[id] = !text_is(t->texts[id], "<unk>") && !text_is(t->texts[id], "<s>") &&
				!text_is(t->texts[id], "<|endoftext|>");
	}
	return 0;
}

/* The ids that SentencePiece's trainer assigns by default. */
static void set_spm_defaults(struct tokenizer *t, int32_t *bos)
{
	t->unknown = 0;
	*bos = t->n_vocab > 1 ? 1 : -1;
	if (t->n_vocab > 2 && text_is(t->texts[2], "</s>"))
		t->eog[2] = true;
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
	enum { BOS = 0, UNKNOWN = 4 };
	int32_t bos = -1;
	t->unknown = -1;
	if (t->spm)
		set_spm_defaults(t, &bos);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		uint64_t id;
		int rc = gguf_get_u64(gguf, keys[i].key, 0, t->n_vocab - 1, &id, err);
		if (rc == -ENOENT)
			continue;
		if (rc)
			return rc;
		if (keys[i].eog)
			t->eog[id] = true;
		if (i == BOS)
			bos = (int32_t)id;
		/* Elsewhere the id may be a control token, which text must not become. */
		if (i == UNKNOWN && (t->spm || t->types[id] == TOKEN_UNKNOWN))
			t->unknown = (int32_t)id;
	}
	bool add = t->spm || pretokenizer_adds_bos(t->pretokenizer);
	int rc = gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", &add, err);
	if (rc && rc != -ENOENT)
		return rc;
	t->bos = add ? bos : -1;
	find_eog_by_text(t);
	return find_strips(t, gguf, err);
}
