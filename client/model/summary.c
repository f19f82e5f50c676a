#include "client/model/summary.h"

#include "shared/model/arch/pack.h"

#include <stdio.h>
#include <string.h>

static bool contains(struct gguf_string name, const char *part)
{
	return memmem(name.data, name.bytes, part, strlen(part)) != NULL;
}

/* A tensor of one expert: blk.N.ffn_gate.E.weight. */
static bool is_single(struct gguf_string name)
{
	static const char *const kinds[] = {
		".ffn_gate.", ".ffn_up.", ".ffn_down.", ".ffn_gate_up."};
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		const char *at = memmem(name.data, name.bytes, kinds[i], strlen(kinds[i]));
		const char *digit = at ? at + strlen(kinds[i]) : NULL;
		if (digit && digit < name.data + name.bytes && *digit >= '0' && *digit <= '9')
			return true;
	}
	return false;
}

static bool is_of_experts(struct gguf_string name)
{
	return contains(name, "_exps.") || is_single(name);
}

/* A tensor for all experts of a layer, or for one expert, with biases or with scales of products.
 */
static bool is_expert_vector(const struct gguf_tensor *tensor)
{
	return is_of_experts(tensor->name) &&
	       (contains(tensor->name, ".bias") || contains(tensor->name, ".scale") ||
		       contains(tensor->name, ".input_scale"));
}

bool summary_is_expert(const struct gguf_tensor *tensor)
{
	return is_of_experts(tensor->name) && !is_expert_vector(tensor);
}

static uint64_t count_of(const struct gguf *gguf, const char *suffix)
{
	char key[160];
	struct gguf_string arch;
	uint64_t value = 0;
	if (pack_architecture(gguf, &arch, NULL) != 0)
		return 0;
	snprintf(key, sizeof(key), "%s.%s", gguf_name_text(arch).text, suffix);
	return gguf_get_u64(gguf, key, 0, UINT32_MAX, &value, NULL) == 0 ? value : 0;
}

void summary_make(const struct gguf *gguf, struct summary *out)
{
	*out = (struct summary){.n_experts = count_of(gguf, "expert_count"),
		.n_used = count_of(gguf, "expert_used_count")};
	const struct gguf_tensor *embedding = gguf_tensor_find(gguf, "token_embd.weight");
	bool tied = !gguf_tensor_find(gguf, "output.weight");
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
		out->bytes += t->bytes;
		if (t->type < SUMMARY_TYPES) {
			out->types[t->type].n++;
			out->types[t->type].bytes += t->bytes;
		}
		if (summary_is_expert(t)) {
			out->expert_bytes += t->bytes;
			if (contains(t->name, "ffn_down_exps.weight") ||
				contains(t->name, "ffn_down.0.weight") ||
				contains(t->name, "ffn_exps.packed"))
				out->n_moe_layers++;
			continue;
		}
		out->resident_bytes += t->bytes;
		if (is_expert_vector(t) && out->n_experts)
			out->token_resident_bytes += t->bytes / out->n_experts * out->n_used;
		else
			out->token_resident_bytes +=
				t == embedding && !tied ? t->bytes / t->ne[1] : t->bytes;
	}
	/* bytes / n * k, because the product may overflow. */
	if (out->n_experts)
		out->token_expert_bytes = out->expert_bytes / out->n_experts * out->n_used;
}
