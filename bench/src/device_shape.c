#include "bench/src/device_shape.h"

#include "bench/src/cache.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* The host as bench/results/kernels.txt measured ours, two cores of a Zen 4 server: Q4_0, 35.5 GB/s
 * with one token, 707 GOP/s with 64. */
#define CPU_GB_S 35
#define CPU_GOPS 700
/* Design figures: a flag that a copy engine writes and a kernel waits for; nine kernels of a layer at
 * about 1 us each. Neither was measured on a device. */
#define FLAG_US 5
#define LAYER_US 9

const struct device_machine device_machines[] = {
	/* NVIDIA H100 Tensor Core GPU data sheet, SXM: 80 GB HBM3, 3.35 TB/s, 1979 TOPS INT8 (the
	 * dense half of 3958), PCIe Gen5 128 GB/s both ways together; after 128b/130b 63.0 each. */
	{"h100", "H100, PCIe gen5 x16", 3350, 1979, 63.0, 80, CPU_GB_S, CPU_GOPS, FLAG_US,
		LAYER_US},
	/* NVIDIA Ada GPU architecture white paper, GeForce RTX 4090: 24 GB GDDR6X, 1008 GB/s, 660.6
	 * TOPS INT8. PCI Express 4.0: 16 GT/s a lane, 128b/130b. */
	{"4090", "RTX 4090, PCIe gen4 x16", 1008, 660.6, 31.5, 24, CPU_GB_S, CPU_GOPS, FLAG_US,
		LAYER_US},
	{"4090-x4", "RTX 4090, PCIe gen4 x4", 1008, 660.6, 7.88, 24, CPU_GB_S, CPU_GOPS, FLAG_US,
		LAYER_US},
	/* NVIDIA Ampere GA102 GPU architecture white paper (as the GA106 of the RTX 3060 12 GB): 360
	 * GB/s (192 bits at 15 Gbit/s), 101.9 TOPS INT8 dense. */
	{"3060", "RTX 3060 12 GB, PCIe gen4 x16", 360, 101.9, 31.5, 12, CPU_GB_S, CPU_GOPS, FLAG_US,
		LAYER_US},
};

/* Shapes from the models' config.json; bits of a weight from GGUF's blocks: Q4_0 4.5, Q8_0 8.5,
 * Q6_K 6.5625, MXFP4 4.25. Drafts: Qwen3-0.6B in Q4_0; the demo's own draft model. */
const struct device_model device_models[] = {
	{"qwen3-30b-a3b", "Q4_0", 48, 128, 8, 2048, 768, 4096, 512, 151936, 4.5, 4.5, 6.5625, 338},
	{"mixtral-8x7b", "Q4_0", 32, 8, 2, 4096, 14336, 4096, 1024, 32000, 4.5, 4.5, 6.5625, 338},
	{"olmoe-1b-7b", "Q4_0", 16, 64, 8, 2048, 1024, 2048, 2048, 50304, 4.5, 4.5, 6.5625, 338},
	{"gpt-oss-120b", "MXFP4", 36, 128, 4, 2880, 2880, 4096, 512, 201088, 4.25, 8.5, 8.5, 338},
	{"demo", "Q8_0", 6, 32, 4, 256, 96, 256, 128, 4096, 8.5, 8.5, 8.5, 4.6},
};

const uint32_t device_n_machines = sizeof(device_machines) / sizeof(*device_machines);
const uint32_t device_n_models = sizeof(device_models) / sizeof(*device_models);

const struct device_machine *device_machine_find(const char *name)
{
	for (uint32_t i = 0; i < device_n_machines; i++)
		if (strcmp(device_machines[i].name, name) == 0)
			return &device_machines[i];
	return NULL;
}

const struct device_model *device_model_find(const char *name)
{
	for (uint32_t i = 0; i < device_n_models; i++)
		if (strcmp(device_models[i].name, name) == 0)
			return &device_models[i];
	return NULL;
}

double device_model_expert_bytes(const struct device_model *model)
{
	return ceil(3 * model->embd * model->ff * model->expert_bits / 8);
}

double device_dense_bytes(const struct device_model *model)
{
	/* Queries, output, keys and values; the router in float32. */
	return (2 * model->q + 2 * model->kv) * model->embd * model->dense_bits / 8 +
	       4 * model->embd * model->experts;
}

double device_head_bytes(const struct device_model *model)
{
	return model->vocab * model->embd * model->head_bits / 8;
}

double device_kv_bytes(const struct device_model *model, uint32_t context)
{
	return 2 * 2 * model->kv * context;
}

/* 1 GB/s is a byte a nanosecond, 1 TOPS a thousand operations. */
struct balance_costs device_costs(
	const struct device_machine *machine, const struct device_model *model)
{
	double bytes = device_model_expert_bytes(model), operations = 6 * model->embd * model->ff;
	return (struct balance_costs){.cpu_expert_ns = bytes / machine->cpu_gb_s,
		.cpu_token_ns = operations / machine->cpu_gops,
		.gpu_expert_ns = bytes / machine->hbm_gb_s,
		.gpu_token_ns = operations / machine->gpu_tops / 1e3,
		.link_ns = bytes / machine->link_gb_s};
}

/* ---- Traces. ---- */

/* A float or an integer, as nanoseconds of a trace. */
static uint32_t whole_ns(double ns)
{
	return ns < UINT32_MAX ? (uint32_t)llround(ns) : UINT32_MAX;
}

static void set_times(const struct device_machine *machine, const struct device_model *model,
	uint32_t context, struct cache_trace *trace)
{
	double layer_ns =
		1e3 * machine->layer_us +
		(device_dense_bytes(model) + device_kv_bytes(model, context)) / machine->hbm_gb_s;
	double head_ns = device_head_bytes(model) / machine->hbm_gb_s;
	double draft_ns = 1e6 * model->draft_mb / machine->hbm_gb_s;
	struct balance_costs costs = device_costs(machine, model);
	for (uint32_t i = 0; i < trace->n_passes; i++) {
		struct trace_pass *pass = &trace->passes[i];
		double was_ns = (double)pass->draft_ns, is_ns = draft_ns * pass->drafted;
		pass->draft_ns = (uint64_t)llround(is_ns);
		/* A hint comes as late in the drafting as it did. */
		for (uint32_t h = 0; h < pass->n_hints; h++) {
			struct trace_hint *hint = &trace->hints[pass->first_hint + h];
			hint->at_ns = was_ns > 0 ? whole_ns(hint->at_ns * is_ns / was_ns) : 0;
		}
		for (uint32_t l = 0; l < pass->n_layers; l++) {
			struct trace_layer *layer = &trace->layers[pass->first_layer + l];
			layer->before_ns = whole_ns(layer_ns + (l == 0 ? head_ns : 0));
			layer->after_ns = whole_ns(layer->n_uses * costs.gpu_expert_ns);
		}
	}
}

/* How many of a chain's drafted tokens are accepted, and one more. */
static uint32_t emitted(uint64_t *random, uint32_t k, uint32_t accept_percent)
{
	uint32_t n = 1;
	for (; n <= k; n++) {
		*random = *random * 6364136223846793005u + 1442695040888963407u; /* Knuth, MMIX */
		if ((*random >> 33) % 100 >= accept_percent)
			break;
	}
	return n;
}

/* The lengths and the acceptance of the recorded passes, in turn. Prompts are left out. */
static void set_emitted(const struct device_workload *workload, struct cache_trace *trace)
{
	const struct cache_trace *recorded = workload->recorded;
	uint64_t random = workload->seed;
	uint32_t at = 0, n_decoding = 0;
	for (uint32_t i = 0; recorded && i < recorded->n_passes; i++)
		n_decoding += !recorded->passes[i].prefill;
	for (uint32_t i = 0; i < trace->n_passes; i++) {
		if (!recorded || n_decoding == 0) {
			trace->passes[i].emitted =
				emitted(&random, workload->k, workload->accept_percent);
			continue;
		}
		while (recorded->passes[at].prefill)
			at = (at + 1) % recorded->n_passes;
		trace->passes[i].emitted = recorded->passes[at].emitted;
		at = (at + 1) % recorded->n_passes;
	}
}

static int copy_recorded(const struct device_model *model, const struct cache_trace *recorded,
	struct cache_trace *out, struct error *err)
{
	if (recorded->n_layers != model->layers || recorded->n_experts != model->experts ||
		recorded->n_experts_used != model->used)
		return error_set(err, EINVAL,
			"%s has %u layers with %u of %u experts, %s has %u with %u of %u",
			recorded->name, recorded->n_layers, recorded->n_experts_used,
			recorded->n_experts, model->name, model->layers, model->used,
			model->experts);
	return cache_trace_copy(recorded, out, err);
}

static int synthesize(const struct device_model *model, const struct device_workload *workload,
	struct cache_trace *out, struct error *err)
{
	static const enum cache_synth_kind kinds[] = {SYNTH_UNIFORM, SYNTH_ZIPF, SYNTH_PHASES};
	struct cache_synth_options options = {.kind = kinds[workload->routing],
		.n_layers = model->layers,
		.n_experts = model->experts,
		.n_experts_used = model->used,
		.k = workload->k,
		.passes = workload->passes,
		.hint_percent = 60,
		.seed = workload->seed};
	int rc = cache_synth(&options, out, err);
	if (rc == 0)
		set_emitted(workload, out);
	return rc;
}

int device_trace(const struct device_machine *machine, const struct device_model *model,
	const struct device_workload *workload, struct cache_trace *out, struct error *err)
{
	int rc = workload->routing == ROUTING_RECORDED
			 ? copy_recorded(model, workload->recorded, out, err)
			 : synthesize(model, workload, out, err);
	if (rc < 0)
		return rc;
	out->expert_bytes = (uint64_t)device_model_expert_bytes(model);
	set_times(machine, model, workload->context, out);
	return 0;
}

struct device_condition device_condition(const struct device_machine *machine,
	const struct device_model *model, const struct cache_trace *trace)
{
	struct balance_costs costs = device_costs(machine, model);
	double distinct = 0, runs = 0, tokens = 0, passes = 0, drafted = 0;
	for (uint32_t i = 0; i < trace->n_passes; i++) {
		const struct trace_pass *pass = &trace->passes[i];
		if (pass->prefill)
			continue;
		passes++;
		tokens += pass->emitted;
		drafted += pass->drafted;
		runs += pass->n_layers;
		for (uint32_t l = 0; l < pass->n_layers; l++)
			distinct += trace->layers[pass->first_layer + l].n_uses;
	}
	if (passes == 0 || runs == 0)
		return (struct device_condition){0};
	/* b Z: the experts of one token in all layers, each loaded and computed (equation 13). */
	double token_ns =
		(double)model->layers * model->used * (costs.link_ns + costs.gpu_expert_ns);
	return (struct device_condition){.a_over_b = distinct / runs / model->used,
		.omega = tokens / passes,
		.draft = drafted / passes * 1e6 * model->draft_mb / machine->hbm_gb_s / token_ns};
}
