#include "shared/model/arch/model.h"

#include <string.h>

/* The properties of each architecture (GGUF_NOTES section 2: Hugging Face's modelling code). A
 * further architecture is a row, plus a field and its use in the forward pass for any part that no
 * other has. */
static const struct arch archs[] = {
	{
		/* Llama 1 to 3 and Mistral; Mixtral if the file has expert_count. */
		.name = "llama",
		.ffn_norm = "ffn_norm",
		.gating = GATING_SOFTMAX,
		.norm_topk = true,
		.moe_allowed = true,
	},
	{
		.name = "qwen3",
		.rope_neox = true,
		.qk_norm = QK_NORM_HEAD,
		.ffn_norm = "ffn_norm",
	},
	{
		.name = "qwen3moe",
		.rope_neox = true,
		.qk_norm = QK_NORM_HEAD,
		.ffn_norm = "ffn_norm",
		.gating = GATING_SOFTMAX,
		.norm_topk = true,
		.expert_ffn_key = true,
		.moe_required = true,
		.moe_allowed = true,
	},
	{
		.name = "olmoe",
		.rope_neox = true,
		.qk_norm = QK_NORM_VECTOR,
		.ffn_norm = "ffn_norm",
		.gating = GATING_SOFTMAX,
		.moe_required = true,
		.moe_allowed = true,
	},
	{
		/* Qwen1.5-MoE and Qwen2-57B-A14B. */
		.name = "qwen2moe",
		.rope_neox = true,
		.ffn_norm = "ffn_norm",
		.gating = GATING_SOFTMAX,
		.shared = SHARED_WIDTH,
		.expert_ffn_key = true,
		.moe_required = true,
		.moe_allowed = true,
	},
	{
		/* Phi-3.5-MoE. The key called rms_epsilon is LayerNorm's. */
		.name = "phimoe",
		.rope_neox = true,
		.rope_long = true,
		.layer_norm = true,
		.ffn_norm = "ffn_norm",
		.window = WINDOW_ALL,
		.gating = GATING_SPARSEMIXER,
		.moe_required = true,
		.moe_allowed = true,
	},
	{
		/* No key says that YaRN in the released models does not round its correction range.
		 */
		.name = "gpt-oss",
		.rope_neox = true,
		.yarn_exact = true,
		.expert_biases = true,
		.sinks = PART_NEEDED,
		.ffn_norm = "post_attention_norm",
		.window = WINDOW_EVEN,
		.gating = GATING_TOP_SOFTMAX,
		.activation = ACTIVATION_SWIGLU_OAI,
		.expert_ffn_key = true,
		.moe_required = true,
		.moe_allowed = true,
	},
	{
		/* GLM-4.5 (q and k norm in the large one only), 4.5-Air and 4.6. */
		.name = "glm4moe",
		.rope_neox = true,
		.qk_norm = QK_NORM_HEAD,
		.qk_norm_optional = true,
		.ffn_norm = "post_attention_norm",
		.gating = GATING_SIGMOID,
		.routing_keys = true,
		.selection_bias = PART_OPTIONAL,
		.shared = SHARED_COUNT,
		.expert_ffn_key = true,
		.moe_required = true,
		.moe_allowed = true,
	},
	{
		/* DeepSeek-V2, V2-Lite and V3, and models built like them (Kimi-K2, GLM-4.7-Flash).
		 */
		.name = "deepseek2",
		.mixer = MIX_MLA,
		.ffn_norm = "ffn_norm",
		.gating = GATING_SOFTMAX,
		.routing_keys = true,
		.selection_bias = PART_OPTIONAL,
		.shared = SHARED_COUNT,
		.expert_ffn_key = true,
		.moe_required = true,
		.moe_allowed = true,
	},
	{
		/* Qwen3-Next. */
		.name = "qwen3next",
		.delta_nets = true,
		.q_gate = true,
		.rope_neox = true,
		.qk_norm = QK_NORM_HEAD,
		.ffn_norm = "post_attention_norm",
		.gating = GATING_SOFTMAX,
		.norm_topk = true,
		.shared = SHARED_WIDTH,
		.expert_ffn_key = true,
		.moe_required = true,
		.moe_allowed = true,
	},
	{
		/* Qwen3.5 and 3.6 MoE, the text part. Its rope has sections for the axes of a
		 * picture; a text's positions are the same in all of them, which is plain rope. */
		.name = "qwen35moe",
		.delta_nets = true,
		.delta_tiled = true,
		.q_gate = true,
		.rope_neox = true,
		.qk_norm = QK_NORM_HEAD,
		.ffn_norm = "post_attention_norm",
		.gating = GATING_SOFTMAX,
		.norm_topk = true,
		.shared = SHARED_WIDTH,
		.expert_ffn_key = true,
		.moe_required = true,
		.moe_allowed = true,
	},
};

const struct arch *arch_find(const char *name, size_t bytes)
{
	for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
		if (strlen(archs[i].name) == bytes && memcmp(archs[i].name, name, bytes) == 0)
			return &archs[i];
	}
	return NULL;
}

const struct arch *arch_at(size_t i)
{
	return i < sizeof(archs) / sizeof(archs[0]) ? &archs[i] : NULL;
}
