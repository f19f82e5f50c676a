#include "client/model/synth_shapes.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* From the models' published configurations. Pre-tokenizers only affect the text, so for a model
 * with SentencePiece a common one that is near is named. */
const struct synth_shape synth_shapes[] = {
	{.name = "qwen3-30b-a3b",
		.arch = "qwen3moe",
		.title = "Qwen3 30B-A3B shape",
		.pre = "qwen2",
		.layers = 48,
		.context = 40960,
		.embd = 2048,
		.heads = 32,
		.kv_heads = 4,
		.head_dim = 128,
		.ff = 6144,
		.vocab = 151936,
		.rope_base = 1e6,
		.eps = 1e-6,
		.experts = 128,
		.used = 8,
		.expert_ff = 768},
	{.name = "mixtral-8x7b",
		.arch = "llama",
		.title = "Mixtral 8x7B shape",
		.pre = "gpt-2",
		.layers = 32,
		.context = 32768,
		.embd = 4096,
		.heads = 32,
		.kv_heads = 8,
		.head_dim = 128,
		.ff = 14336,
		.vocab = 32000,
		.rope_base = 1e6,
		.eps = 1e-5,
		.experts = 8,
		.used = 2,
		.expert_ff = 14336,
		.n_rot = 128},
	{.name = "olmoe-1b-7b",
		.arch = "olmoe",
		.title = "OLMoE 1B-7B shape",
		.pre = "olmo",
		.layers = 16,
		.context = 4096,
		.embd = 2048,
		.heads = 16,
		.kv_heads = 16,
		.head_dim = 128,
		.ff = 1024,
		.vocab = 50304,
		.rope_base = 1e4,
		.eps = 1e-5,
		.experts = 64,
		.used = 8,
		.expert_ff = 1024},
	{.name = "qwen3-0.6b",
		.arch = "qwen3",
		.title = "Qwen3 0.6B shape",
		.pre = "qwen2",
		.layers = 28,
		.context = 40960,
		.embd = 1024,
		.heads = 16,
		.kv_heads = 8,
		.head_dim = 128,
		.ff = 3072,
		.vocab = 151936,
		.rope_base = 1e6,
		.eps = 1e-6,
		.tied = true},
	{.name = "gpt-oss-20b",
		.arch = "gpt-oss",
		.title = "GPT-OSS 20B shape",
		.pre = "gpt-4o",
		.layers = 24,
		.context = 131072,
		.embd = 2880,
		.heads = 64,
		.kv_heads = 8,
		.head_dim = 64,
		.ff = 2880,
		.vocab = 201088,
		.rope_base = 150000,
		.eps = 1e-5,
		.experts = 32,
		.used = 4,
		.expert_ff = 2880},
	{.name = "deepseek-v2-lite",
		.arch = "deepseek2",
		.title = "DeepSeek V2 Lite shape",
		.pre = "deepseek-llm",
		.layers = 27,
		.context = 163840,
		.embd = 2048,
		.heads = 16,
		.kv_heads = 1,
		.ff = 10944,
		.vocab = 102400,
		.rope_base = 1e4,
		.eps = 1e-6,
		.experts = 64,
		.used = 6,
		.expert_ff = 1408,
		.shared_ff = 2816,
		.dense_layers = 1,
		.n_rot = 64},
	{.name = "phi-3.5-moe",
		.arch = "phimoe",
		.title = "Phi-3.5-MoE shape",
		.pre = "gpt-2",
		.layers = 32,
		.context = 131072,
		.embd = 4096,
		.heads = 32,
		.kv_heads = 8,
		.head_dim = 128,
		.ff = 6400,
		.vocab = 32064,
		.rope_base = 1e4,
		.eps = 1e-5,
		.experts = 16,
		.used = 2,
		.expert_ff = 6400,
		.n_rot = 128},
	{.name = "glm-4.5-air",
		.arch = "glm4moe",
		.title = "GLM-4.5-Air shape, without its MTP layer",
		.pre = "glm4",
		.layers = 46,
		.context = 131072,
		.embd = 4096,
		.heads = 96,
		.kv_heads = 8,
		.head_dim = 128,
		.ff = 10944,
		.vocab = 151552,
		.rope_base = 1e6,
		.eps = 1e-5,
		.experts = 128,
		.used = 8,
		.expert_ff = 1408,
		.shared_ff = 1408,
		.dense_layers = 1,
		.n_rot = 64},
	{.name = "qwen1.5-moe",
		.arch = "qwen2moe",
		.title = "Qwen1.5-MoE A2.7B shape",
		.pre = "qwen2",
		.layers = 24,
		.context = 8192,
		.embd = 2048,
		.heads = 16,
		.kv_heads = 16,
		.head_dim = 128,
		.ff = 5632,
		.vocab = 151936,
		.rope_base = 1e6,
		.eps = 1e-6,
		.experts = 60,
		.used = 4,
		.expert_ff = 1408,
		.shared_ff = 5632},
	{.name = NULL},
};

/* DeepSeek V2's latent attention: the rank of the latent; a head's dimensions without and with
 * position; and those of its value. */
enum { LATENT = 512, NOPE = 128, ROPE = 64, VALUE = 128 };

const struct synth_shape *synth_shape_find(const char *name)
{
	for (const struct synth_shape *s = synth_shapes; s->name; s++)
		if (strcmp(s->name, name) == 0)
			return s;
	return NULL;
}

static bool is(const struct synth_shape *s, const char *arch)
{
	return strcmp(s->arch, arch) == 0;
}

/* A tensor {a, b, c}; b and c 0: fewer dimensions. */
static void add(struct synth_tensors *t, enum synth_fill fill, uint64_t a, uint64_t b, uint64_t c,
	const char *format, ...) __attribute__((format(printf, 6, 7)));

static void add(struct synth_tensors *t, enum synth_fill fill, uint64_t a, uint64_t b, uint64_t c,
	const char *format, ...)
{
	if (t->n == t->capacity) {
		size_t capacity = t->capacity ? 2 * t->capacity : 256;
		struct synth_tensor *list = realloc(t->list, capacity * sizeof(*list));
		if (!list) {
			t->failed = true;
			return;
		}
		t->list = list;
		t->capacity = capacity;
	}
	struct synth_tensor *out = &t->list[t->n++];
	*out = (struct synth_tensor){.fill = fill,
		.n_dims = c   ? 3
			  : b ? 2
			      : 1,
		.ne = {a, b, c},
		.rows = (b ? b : 1) * (c ? c : 1)};
	out->bytes = a * out->rows * 4;
	va_list args;
	va_start(args, format);
	vsnprintf(out->name, sizeof(out->name), format,
		args); // NOLINT(clang-analyzer-valist.Uninitialized)
	va_end(args);
}

static void add_latent_attention(const struct synth_shape *s, struct synth_tensors *t, uint32_t i)
{
	add(t, FILL_MATRIX, s->embd, s->heads * (NOPE + ROPE), 0, "blk.%u.attn_q.weight", i);
	add(t, FILL_MATRIX, s->embd, LATENT + ROPE, 0, "blk.%u.attn_kv_a_mqa.weight", i);
	add(t, FILL_NORM, LATENT, 0, 0, "blk.%u.attn_kv_a_norm.weight", i);
	add(t, FILL_MATRIX, NOPE, LATENT, s->heads, "blk.%u.attn_k_b.weight", i);
	add(t, FILL_MATRIX, LATENT, VALUE, s->heads, "blk.%u.attn_v_b.weight", i);
	add(t, FILL_MATRIX, s->heads * VALUE, s->embd, 0, "blk.%u.attn_output.weight", i);
}

static void add_attention(const struct synth_shape *s, struct synth_tensors *t, uint32_t i)
{
	const uint32_t d = s->embd, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
	const bool phi = is(s, "phimoe"), oss = is(s, "gpt-oss");
	add(t, FILL_MATRIX, d, q, 0, "blk.%u.attn_q.weight", i);
	add(t, FILL_MATRIX, d, kv, 0, "blk.%u.attn_k.weight", i);
	add(t, FILL_MATRIX, d, kv, 0, "blk.%u.attn_v.weight", i);
	add(t, FILL_MATRIX, q, d, 0, "blk.%u.attn_output.weight", i);
	if (is(s, "qwen3") || is(s, "qwen3moe")) {
		add(t, FILL_NORM, s->head_dim, 0, 0, "blk.%u.attn_q_norm.weight", i);
		add(t, FILL_NORM, s->head_dim, 0, 0, "blk.%u.attn_k_norm.weight", i);
	}
	if (is(s, "olmoe")) {
		add(t, FILL_NORM, q, 0, 0, "blk.%u.attn_q_norm.weight", i);
		add(t, FILL_NORM, kv, 0, 0, "blk.%u.attn_k_norm.weight", i);
	}
	if (phi || oss || is(s, "qwen2moe") || is(s, "glm4moe")) {
		add(t, FILL_BIAS, q, 0, 0, "blk.%u.attn_q.bias", i);
		add(t, FILL_BIAS, kv, 0, 0, "blk.%u.attn_k.bias", i);
		add(t, FILL_BIAS, kv, 0, 0, "blk.%u.attn_v.bias", i);
	}
	if (phi || oss)
		add(t, FILL_BIAS, d, 0, 0, "blk.%u.attn_output.bias", i);
	if (oss)
		add(t, FILL_BIAS, s->heads, 0, 0, "blk.%u.attn_sinks.weight", i);
}

static void add_gated(struct synth_tensors *t, uint32_t i, const char *suffix, uint32_t d,
	uint32_t f, uint32_t n_experts)
{
	add(t, FILL_MATRIX, d, f, n_experts, "blk.%u.ffn_gate%s.weight", i, suffix);
	add(t, FILL_MATRIX, d, f, n_experts, "blk.%u.ffn_up%s.weight", i, suffix);
	add(t, FILL_MATRIX, f, d, n_experts, "blk.%u.ffn_down%s.weight", i, suffix);
}

static void add_feed_forward(const struct synth_shape *s, struct synth_tensors *t, uint32_t i)
{
	const uint32_t d = s->embd, e = s->experts, f = s->expert_ff;
	if (!e || i < s->dense_layers) {
		add_gated(t, i, "", d, s->ff, 0);
		return;
	}
	add(t, FILL_ROUTER, d, e, 0, "blk.%u.ffn_gate_inp.weight", i);
	if (is(s, "glm4moe"))
		add(t, FILL_BIAS, e, 0, 0, "blk.%u.exp_probs_b.bias", i);
	add_gated(t, i, "_exps", d, f, e);
	if (s->shared_ff)
		add_gated(t, i, "_shexp", d, s->shared_ff, 0);
	if (is(s, "qwen2moe"))
		add(t, FILL_BIAS, d, 0, 0, "blk.%u.ffn_gate_inp_shexp.weight", i);
	if (is(s, "gpt-oss")) {
		add(t, FILL_BIAS, e, 0, 0, "blk.%u.ffn_gate_inp.bias", i);
		add(t, FILL_BIAS, f, e, 0, "blk.%u.ffn_gate_exps.bias", i);
		add(t, FILL_BIAS, f, e, 0, "blk.%u.ffn_up_exps.bias", i);
		add(t, FILL_BIAS, d, e, 0, "blk.%u.ffn_down_exps.bias", i);
	}
}

void synth_shape_tensors(const struct synth_shape *s, struct synth_tensors *t)
{
	const bool phi = is(s, "phimoe");
	const char *ffn_norm =
		is(s, "gpt-oss") || is(s, "glm4moe") ? "post_attention_norm" : "ffn_norm";
	*t = (struct synth_tensors){0};
	add(t, FILL_EMBEDDING, s->embd, s->vocab, 0, "token_embd.weight");
	add(t, FILL_NORM, s->embd, 0, 0, "output_norm.weight");
	if (phi) {
		add(t, FILL_BIAS, s->embd, 0, 0, "output_norm.bias");
		add(t, FILL_BIAS, s->vocab, 0, 0, "output.bias");
		add(t, FILL_ROPE, s->n_rot / 2, 0, 0, "rope_factors_long.weight");
		add(t, FILL_ROPE, s->n_rot / 2, 0, 0, "rope_factors_short.weight");
	}
	if (!s->tied)
		add(t, FILL_MATRIX, s->embd, s->vocab, 0, "output.weight");
	for (uint32_t i = 0; i < s->layers; i++) {
		add(t, FILL_NORM, s->embd, 0, 0, "blk.%u.attn_norm.weight", i);
		if (phi)
			add(t, FILL_BIAS, s->embd, 0, 0, "blk.%u.attn_norm.bias", i);
		if (is(s, "deepseek2"))
			add_latent_attention(s, t, i);
		else
			add_attention(s, t, i);
		add(t, FILL_NORM, s->embd, 0, 0, "blk.%u.%s.weight", i, ffn_norm);
		if (phi)
			add(t, FILL_BIAS, s->embd, 0, 0, "blk.%u.ffn_norm.bias", i);
		add_feed_forward(s, t, i);
	}
}

static const char *key(const struct synth_shape *s, const char *suffix, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s.%s", s->arch, suffix);
	return out;
}

static void put(
	const struct synth_shape *s, struct gguf_write *w, const char *suffix, uint32_t value)
{
	char name[96];
	gguf_write_key_u32(w, key(s, suffix, name, sizeof(name)), value);
}

static void put_number(
	const struct synth_shape *s, struct gguf_write *w, const char *suffix, double value)
{
	char name[96];
	gguf_write_key_f32(w, key(s, suffix, name, sizeof(name)), (float)value);
}

static void put_yarn(
	const struct synth_shape *s, struct gguf_write *w, double factor, uint32_t original)
{
	char name[96];
	gguf_write_key_string(w, key(s, "rope.scaling.type", name, sizeof(name)), "yarn");
	put_number(s, w, "rope.scaling.factor", factor);
	put(s, w, "rope.scaling.original_context_length", original);
	put_number(s, w, "rope.scaling.yarn_beta_fast", 32);
	put_number(s, w, "rope.scaling.yarn_beta_slow", 1);
}

static void put_latent(const struct synth_shape *s, struct gguf_write *w)
{
	put(s, w, "attention.kv_lora_rank", LATENT);
	put(s, w, "attention.key_length", LATENT + ROPE);
	put(s, w, "attention.value_length", LATENT);
	put(s, w, "attention.key_length_mla", NOPE + ROPE);
	put(s, w, "attention.value_length_mla", VALUE);
	put_yarn(s, w, 40, 4096);
	put_number(s, w, "rope.scaling.yarn_log_multiplier", 0.0707);
}

/* Architectures whose keys say how they route. */
static void put_routing(const struct synth_shape *s, struct gguf_write *w, uint32_t gating)
{
	char name[96];
	put(s, w, "leading_dense_block_count", s->dense_layers);
	put(s, w, "expert_shared_count", s->shared_ff / s->expert_ff);
	put(s, w, "expert_gating_func", gating);
	put(s, w, "expert_group_count", 1);
	put(s, w, "expert_group_used_count", 1);
	put_number(s, w, "expert_weights_scale", 1);
	gguf_write_key_bool(w, key(s, "expert_weights_norm", name, sizeof(name)), gating == 2);
}

static void put_experts(const struct synth_shape *s, struct gguf_write *w)
{
	put(s, w, "expert_count", s->experts);
	put(s, w, "expert_used_count", s->used);
	/* For the others it is feed_forward_length. */
	if (!is(s, "llama") && !is(s, "olmoe") && !is(s, "phimoe"))
		put(s, w, "expert_feed_forward_length", s->expert_ff);
	if (is(s, "qwen2moe"))
		put(s, w, "expert_shared_feed_forward_length", s->shared_ff);
	if (s->dense_layers)
		put_routing(s, w, is(s, "glm4moe") ? 2 : 1);
}

void synth_shape_keys(const struct synth_shape *s, struct gguf_write *w)
{
	put(s, w, "context_length", s->context);
	put(s, w, "embedding_length", s->embd);
	put(s, w, "block_count", s->layers);
	put(s, w, "feed_forward_length", s->ff);
	put(s, w, "attention.head_count", s->heads);
	put(s, w, "attention.head_count_kv", s->kv_heads);
	put_number(s, w, "attention.layer_norm_rms_epsilon", s->eps);
	put_number(s, w, "rope.freq_base", s->rope_base);
	put(s, w, "vocab_size", s->vocab);
	if (s->experts)
		put_experts(s, w);
	if (s->n_rot)
		put(s, w, "rope.dimension_count", s->n_rot);
	if (is(s, "deepseek2")) {
		put_latent(s, w);
	} else if (!is(s, "llama") && !is(s, "olmoe") && !is(s, "qwen2moe") && !is(s, "phimoe")) {
		put(s, w, "attention.key_length", s->head_dim);
		put(s, w, "attention.value_length", s->head_dim);
	}
	if (is(s, "gpt-oss")) {
		put(s, w, "attention.sliding_window", 128);
		put_yarn(s, w, 32, 4096);
	}
	if (is(s, "phimoe")) {
		put(s, w, "attention.sliding_window", s->context);
		put(s, w, "rope.scaling.original_context_length", 4096);
		put_number(s, w, "rope.scaling.attn_factor", 1.19023807);
	}
}
