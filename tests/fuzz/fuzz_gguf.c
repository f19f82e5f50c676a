/* Any bytes as a model file: parsed, listed, loaded as a model, its tokenizer and its chat template used; and checked,
 * which goes on past what loading refuses. And as an adapter of a small model. */
#include "shared/model/text/chat.h"
#include "shared/model/gguf/gguf_scan.h"
#include "shared/model/arch/adapter.h"
#include "shared/model/arch/model.h"
#include "shared/model/arch/pack.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void list(const struct gguf *gguf)
{
	char text[80], name[128];
	for (size_t i = 0; i < gguf_n_keys(gguf); i++) {
		struct gguf_string key = gguf_key_at(gguf, i);
		enum gguf_value_type type;
		uint64_t n;
		gguf_value_text(gguf, i, text, sizeof(text));
		if (strlen(text) >= sizeof(text))
			abort();
		if (key.bytes >= sizeof(name) || memchr(key.data, 0, key.bytes))
			continue;
		memcpy(name, key.data, key.bytes);
		name[key.bytes] = '\0';
		if (!gguf_has(gguf, name))
			abort();
		if (gguf_get_array(gguf, name, &type, &n, NULL) == 0 && n) {
			(void)gguf_array_string(gguf, name, n - 1);
			(void)gguf_array_i64(gguf, name, n - 1);
			(void)gguf_array_f64(gguf, name, n - 1);
		}
	}
}

static void touch_tensors(const struct gguf *gguf)
{
	static volatile unsigned char sink;
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
		const unsigned char *p = gguf_tensor_data(gguf, t);
		sink = (unsigned char)(p[0] ^ p[t->bytes - 1]);
	}
	(void)sink;
}

static void use_tokenizer(const struct gguf *gguf)
{
	struct error err = {""};
	struct tokenizer *tokenizer;
	if (tokenizer_load(gguf, &tokenizer, &err))
		return;
	static const char text[] = "The th<|im_end|>in 12 \xc3\xa9 \xff";
	const struct chat_message messages[] = {
		{"system", "x", 1, NULL}, {"user", text, sizeof(text) - 1, NULL}};
	int32_t *ids = NULL;
	size_t n = 0, capacity = 0;
	(void)tokenizer_encode(tokenizer, text, sizeof(text) - 1, true, &ids, &n, &capacity, &err);
	(void)chat_encode(gguf, tokenizer, messages, 2, &ids, &n, &capacity, &err);
	for (size_t i = 0; i < n; i++) {
		if (ids[i] < 0 || (uint32_t)ids[i] >= tokenizer_n_vocab(tokenizer))
			abort();
		(void)tokenizer_piece(tokenizer, ids[i], true);
	}
	free(ids);
	tokenizer_free(&tokenizer);
}

static void count(void *arg, const char *problem)
{
	if (!problem[0])
		abort();
	++*(uint64_t *)arg;
}

/* As `outrider-model check` does: past every problem. */
static void check(const uint8_t *data, size_t bytes)
{
	struct error err = {""};
	struct gguf *gguf;
	struct model *model = NULL;
	uint64_t n = 0;
	if (gguf_open_memory_checked(data, bytes, count, &n, &gguf, &err))
		return;
	touch_tensors(gguf);
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		struct gguf_scan scan;
		(void)gguf_scan_tensor(gguf, gguf_tensor_at(gguf, i), i % 2, &scan);
	}
	use_tokenizer(gguf);
	if (gguf_n_problems(gguf) != n)
		abort();
	if (model_load_gguf(&gguf, &model, &err) == 0 && n)
		abort();
	model_free(&model);
}

/* Every expert lies in the mapping, packed or not; of a packed one every row can be read back. */
static void touch_experts(const struct model *model)
{
	static volatile unsigned char sink;
	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct layer *l = &model->layers[i];
		const struct expert_tensor *parts[] = {&l->gate, &l->up, &l->down};
		for (int p = 0; l->moe && p < 3; p++) {
			const unsigned char *last =
				(const unsigned char *)parts[p]->shape.data +
				(model->config.n_experts - 1) * parts[p]->expert_stride;
			struct gguf_scan scan;
			uint32_t expert = 0;
			int rc;
			sink = last[0] ^ last[parts[p]->expert_bytes - 1];
			if (model->packed)
				(void)pack_scan(model, i, p, false, &scan, &expert, &rc);
		}
	}
	(void)sink;
}

static void touch(const struct low_rank *w, uint32_t n)
{
	static volatile unsigned char sink;
	const struct matrix *const parts[] = {&w->a, &w->b};
	for (int i = 0; w->a.data && i < 2; i++) {
		const unsigned char *p = parts[i]->data;
		sink = p[0] ^ p[(size_t)n * parts[i]->rows * parts[i]->row_bytes - 1];
	}
	(void)sink;
}

/* Every matrix of an adapter lies in the mapping. */
static void load_adapter(const uint8_t *data, size_t bytes)
{
	static struct model target;
	static struct layer layers[2];
	struct error err = {""};
	struct gguf *gguf;
	struct adapter *adapter;
	const uint32_t d = 32, experts = 2;
	target.config = (struct model_config){
		.arch = arch_find("qwen3moe", 8), .n_layers = 2, .n_embd = d, .n_experts = experts};
	target.layers = layers;
	for (int i = 0; i < 2; i++) {
		const struct matrix square = {.rows = d, .cols = d};
		layers[i].q = layers[i].k = layers[i].v = layers[i].o = square;
		layers[i].gate.shape = layers[i].up.shape = layers[i].down.shape = square;
	}
	if (gguf_open_memory(data, bytes, &gguf, &err))
		return;
	if (adapter_load_gguf(&gguf, &target, &adapter, &err) != 0) {
		if (!err.text[0] || adapter)
			abort();
		return;
	}
	for (int i = 0; i < 2; i++) {
		const struct adapter_layer *l = &adapter->layers[i];
		touch(&l->q, 1);
		touch(&l->k, 1);
		touch(&l->v, 1);
		touch(&l->o, 1);
		touch(&l->experts.gate, experts);
		touch(&l->experts.up, experts);
		touch(&l->experts.down, experts);
	}
	adapter_free(&adapter);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	check(data, bytes);
	load_adapter(data, bytes);
	struct error err = {""};
	struct gguf *gguf;
	struct model *model;
	if (gguf_open_memory(data, bytes, &gguf, &err)) {
		if (!err.text[0])
			abort();
		return 0;
	}
	list(gguf);
	touch_tensors(gguf);
	use_tokenizer(gguf);
	if (model_load_gguf(&gguf, &model, &err) == 0)
		touch_experts(model);
	else if (!err.text[0])
		abort();
	model_free(&model);
	return 0;
}
