#include "client/model/synth_vocabulary.h"

#include <stdio.h>
#include <string.h>

enum { CONTROLS = 3, BYTES = 256, STARTS = 27 /* letters and the space */ };

static const char *const controls[CONTROLS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

static const char chat_template[] =
	"{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% "
	"endfor %}"
	"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* The character that byte-level BPE uses for a byte: the byte itself if it is printable, otherwise
 * the next one from U+0100 on. In UTF-8. */
static void byte_character(int byte, char out[4])
{
	int code = 256, c;
	for (int b = 0; b < byte; b++)
		code += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
	c = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174 ? byte
										       : code;
	if (c < 0x80)
		snprintf(out, 4, "%c", c);
	else
		snprintf(out, 4, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
}

/* Word i (from 0) in the order of length: there are 27 * 26 of length 2, 27 * 26 * 26 of length 3,
 * and so on. A word is its stem and one more letter; the stem is a start (length 1) or an earlier
 * word. */
struct word {
	char stem[40], letter[2];
};

static void make_word(uint32_t i, struct word *out)
{
	uint32_t n = STARTS * 26, letters = 1, start;
	char text[16], first[4];
	while (i >= n) {
		i -= n;
		n *= 26;
		letters++;
	}
	for (uint32_t l = letters; l > 0; l--, i /= 26)
		text[l - 1] = (char)('a' + i % 26);
	text[letters] = '\0';
	start = i;
	byte_character(start < 26 ? 'a' + (int)start : ' ', first);
	out->letter[0] = text[letters - 1];
	out->letter[1] = '\0';
	text[letters - 1] = '\0';
	snprintf(out->stem, sizeof(out->stem), "%s%s", first, text);
}

static void token_strings(struct gguf_write *w, uint32_t n_words)
{
	char text[64];
	for (int b = 0; b < BYTES; b++) {
		byte_character(b, text);
		gguf_write_string(w, text);
	}
	for (uint32_t i = 0; i < n_words; i++) {
		struct word word;
		make_word(i, &word);
		snprintf(text, sizeof(text), "%s%s", word.stem, word.letter);
		gguf_write_string(w, text);
	}
	for (int i = 0; i < CONTROLS; i++)
		gguf_write_string(w, controls[i]);
}

void synth_vocabulary(struct gguf_write *w, uint32_t n, const char *pre)
{
	uint32_t n_words = n - BYTES - CONTROLS;
	gguf_write_key_string(w, "tokenizer.ggml.model", "gpt2");
	gguf_write_key_string(w, "tokenizer.ggml.pre", pre);
	gguf_write_key_array(w, "tokenizer.ggml.tokens", GGUF_STRING, n);
	token_strings(w, n_words);
	gguf_write_key_array(w, "tokenizer.ggml.token_type", GGUF_I32, n);
	for (uint32_t i = 0; i < n; i++)
		gguf_write_u32(w, i < n - CONTROLS ? 1 : 3);
	gguf_write_key_array(w, "tokenizer.ggml.merges", GGUF_STRING, n_words);
	for (uint32_t i = 0; i < n_words; i++) {
		struct word word;
		char text[64];
		make_word(i, &word);
		snprintf(text, sizeof(text), "%s %s", word.stem, word.letter);
		gguf_write_string(w, text);
	}
	gguf_write_key_u32(w, "tokenizer.ggml.bos_token_id", n - 3);
	gguf_write_key_u32(w, "tokenizer.ggml.eos_token_id", n - 1);
	gguf_write_key_u32(w, "tokenizer.ggml.padding_token_id", n - 3);
	gguf_write_key_bool(w, "tokenizer.ggml.add_bos_token", false);
	gguf_write_key_string(w, "tokenizer.chat_template", chat_template);
}
