#include "shared/model/text/tokenizer_load.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static uint64_t hash_bytes(uint64_t seed, const char *p, size_t n)
{
	uint64_t h = 0xcbf29ce484222325u ^ seed;
	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
	/* FNV's low bits depend little on the seed. Folding in the product's high half makes them
	 * depend on all of it. */
	unsigned __int128 folded = (unsigned __int128)(h ^ (seed >> 7)) * (seed | 1);
	return (uint64_t)folded ^ (uint64_t)(folded >> 64);
}

static uint64_t hash_pair(uint64_t seed, uint64_t pair)
{
	unsigned __int128 folded = (unsigned __int128)(pair ^ seed) * (seed | 1);
	return (uint64_t)folded ^ (uint64_t)(folded >> 64);
}

size_t tokenizer_word_slot(const struct tokenizer *tokenizer, const char *bytes, size_t n)
{
	size_t mask = tokenizer->n_words - 1;
	for (size_t slot = hash_bytes(tokenizer->seed, bytes, n) & mask;;
		slot = (slot + 1) & mask) {
		int32_t id = tokenizer->words[slot];
		if (id < 0 || (tokenizer->pieces[id].bytes == n &&
				      memcmp(tokenizer->pieces[id].data, bytes, n) == 0))
			return slot;
	}
}

int32_t tokenizer_find_word(const struct tokenizer *tokenizer, const char *bytes, size_t n)
{
	return tokenizer->words[tokenizer_word_slot(tokenizer, bytes, n)];
}

struct merge *tokenizer_merge_slot(const struct tokenizer *tokenizer, int32_t left, int32_t right)
{
	uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	size_t mask = tokenizer->n_merges - 1;
	for (size_t slot = hash_pair(tokenizer->seed, pair) & mask;; slot = (slot + 1) & mask) {
		struct merge *m = &tokenizer->merges[slot];
		if (m->pair == pair || m->pair == MERGE_NONE)
			return m;
	}
}

const struct merge *tokenizer_find_merge(
	const struct tokenizer *tokenizer, int32_t left, int32_t right)
{
	const struct merge *m = tokenizer_merge_slot(tokenizer, left, right);
	return m->pair == MERGE_NONE ? NULL : m;
}

static uint64_t fnv(uint64_t hash, const void *data, size_t n)
{
	const unsigned char *p = data;
	for (size_t i = 0; i < n; i++)
		hash = (hash ^ p[i]) * 0x100000001b3u;
	return hash;
}

/* A token's text for a message. */
static const char *shown(const struct tokenizer *t, uint32_t id, struct gguf_name_text *text)
{
	*text = gguf_name_text(t->texts[id]);
	return text->text;
}

int tokenizer_compare(const struct tokenizer *target, const struct tokenizer *draft,
	uint32_t *shared, struct error *err)
{
	*shared = target->n_vocab < draft->n_vocab ? target->n_vocab : draft->n_vocab;
	for (uint32_t i = 0; i < *shared; i++) {
		struct gguf_string a = target->texts[i], b = draft->texts[i];
		struct gguf_name_text x, y;
		if (a.bytes != b.bytes || memcmp(a.data, b.data, a.bytes) != 0)
			return error_set(err, EINVAL,
				"token %u is \"%.40s\" in the model and \"%.40s\" in the draft", i,
				shown(target, i, &x), shown(draft, i, &y));
	}
	return 0;
}

static uint64_t fingerprint(const struct tokenizer *t, const struct gguf *gguf)
{
	uint64_t hash = 0xcbf29ce484222325u;
	struct gguf_string pre = {"default", 7};
	if (t->spm)
		pre = (struct gguf_string){"llama", 5};
	else
		(void)gguf_get_string(gguf, "tokenizer.ggml.pre", &pre, NULL);
	hash = fnv(hash, pre.data, pre.bytes);
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		/* The length first, so that no two lists of strings give the same bytes. */
		uint64_t n = t->texts[i].bytes;
		hash = fnv(hash, &n, sizeof(n));
		hash = fnv(hash, t->texts[i].data, t->texts[i].bytes);
		hash = fnv(hash, &t->types[i], 1);
	}
	return hash;
}

int tokenizer_load(const struct gguf *gguf, struct tokenizer **out, struct error *err)
{
	*out = NULL;
	struct tokenizer *t = calloc(1, sizeof(*t));
	if (!t)
		return error_set(err, ENOMEM, "no memory for a tokenizer");
	/* Without entropy the hashes are as predictable as in other programs. */
	if (getrandom(&t->seed, sizeof(t->seed), GRND_NONBLOCK) != sizeof(t->seed))
		t->seed = 0x9e3779b97f4a7c15u;
	int rc = tokenizer_load_kind(t, gguf, err);
	if (!rc)
		rc = tokenizer_load_tokens(t, gguf, err);
	if (!rc)
		rc = t->spm ? spm_load_scores(t, gguf, err) : tokenizer_load_merges(t, gguf, err);
	if (!rc)
		rc = tokenizer_load_special_ids(t, gguf, err);
	if (rc) {
		tokenizer_free(&t);
		return rc;
	}
	t->fingerprint = fingerprint(t, gguf);
	*out = t;
	return 0;
}

void tokenizer_free(struct tokenizer **tokenizer)
{
	struct tokenizer *t = *tokenizer;
	if (!t)
		return;
	pretokenizer_free(&t->pretokenizer);
	free(t->text);
	free(t->texts);
	free(t->pieces);
	free(t->types);
	free(t->eog);
	free(t->words);
	free(t->merges);
	free(t->order);
	free(t->strips);
	free(t->specials.ids);
	free(t->symbols.ids);
	free(t);
	*tokenizer = NULL;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *tokenizer)
{
	return tokenizer->n_vocab;
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
	return tokenizer->bos;
}

static bool in_vocab(const struct tokenizer *tokenizer, int32_t id)
{
	return id >= 0 && (uint32_t)id < tokenizer->n_vocab;
}

struct gguf_string tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, bool special)
{
	if (!in_vocab(tokenizer, id))
		return (struct gguf_string){"", 0};
	enum token_type type = tokenizer->types[id];
	bool hidden = type == TOKEN_UNUSED ||
		      (!special && (type == TOKEN_CONTROL || type == TOKEN_UNKNOWN));
	return hidden ? (struct gguf_string){"", 0} : tokenizer->pieces[id];
}

bool tokenizer_adds_space(const struct tokenizer *tokenizer)
{
	return tokenizer->add_space;
}

bool tokenizer_is_eog(const struct tokenizer *tokenizer, int32_t id)
{
	return in_vocab(tokenizer, id) && tokenizer->eog[id];
}

int tokenizer_list_eog(
	const struct tokenizer *tokenizer, uint32_t n_vocab, int32_t **ids, size_t *n)
{
	*ids = NULL;
	*n = 0;
	for (uint32_t id = 0; id < n_vocab; id++) {
		if (!tokenizer_is_eog(tokenizer, (int32_t)id))
			continue;
		int32_t *more = realloc(*ids, (*n + 1) * sizeof(*more));
		if (!more) {
			free(*ids);
			*ids = NULL;
			*n = 0;
			return -ENOMEM;
		}
		*ids = more;
		more[(*n)++] = (int32_t)id;
	}
	return 0;
}

uint64_t tokenizer_fingerprint(const struct tokenizer *tokenizer)
{
	return tokenizer->fingerprint;
}

size_t tokenizer_utf8_complete(const char *text, size_t bytes)
{
	/* Only within the last three bytes can an unfinished sequence begin. */
	for (size_t back = 1; back <= 3 && back <= bytes; back++) {
		unsigned char c = (unsigned char)text[bytes - back];
		if ((c & 0xc0) == 0x80)
			continue;
		size_t length = c < 0xc2 || c > 0xf4 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
		return length > back ? bytes - back : bytes;
	}
	return bytes;
}
