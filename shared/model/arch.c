#include "shared/model/model.h"

#include <string.h>

/* What makes each architecture itself (GGUF_NOTES section 2: Hugging Face's modelling code). A further one is a row,
 * and where it has a part that none of these has, a field and its use in forward. */
static const struct arch archs[] = {
	{
		/* Llama 1 to 3 and Mistral; with expert_count it is Mixtral. */
		.name = "llama",
		.norm_topk = true,
		.biases_allowed = true,
		.moe_allowed = true,
	},
	{
		.name = "qwen3",
		.rope_neox = true,
		.qk_norm = true,
	},
	{
		.name = "qwen3moe",
		.rope_neox = true,
		.qk_norm = true,
		.norm_topk = true,
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
