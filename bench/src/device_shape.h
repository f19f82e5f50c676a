/*
 * The machines and models of `outrider-bench device`, what a pass costs there, and traces of such
 * models. Rates are peaks, and a layer reads each byte that it needs once, so the result is the least
 * time that there can be. Ratios of such times are better founded than the times.
 */
#pragma once

#include "bench/src/cache_trace.h"
#include "shared/spec/balance.h"

struct device_machine {
	const char *name, *what;
	double hbm_gb_s; /* reading device memory, 10^9 bytes a second */
	double gpu_tops; /* int8, dense, 10^12 operations a second */
	double link_gb_s; /* to the device, 10^9 bytes a second */
	double memory_gib; /* of the device */
	double cpu_gb_s, cpu_gops; /* the host: reading memory, int8 products */
	double link_us; /* from the last byte of a transfer to the kernel that waits for it */
	double layer_us; /* starting a layer's kernels */
};

/* A transformer with experts in every layer. */
struct device_model {
	const char *name, *types;
	uint32_t layers, experts, used;
	double embd, ff, q, kv, vocab; /* widths: hidden, of an expert, of all queries, of keys */
	double expert_bits, dense_bits, head_bits; /* of a weight */
	double draft_mb; /* the weights that drafting one token reads, 10^6 bytes */
};

extern const struct device_machine device_machines[];
extern const struct device_model device_models[];
extern const uint32_t device_n_machines, device_n_models;

/* NULL: not found. */
const struct device_machine *device_machine_find(const char *name);
const struct device_model *device_model_find(const char *name);

/* All in bytes. */
double device_model_expert_bytes(const struct device_model *model);
double device_dense_bytes(const struct device_model *model); /* of a layer, without experts */
double device_head_bytes(const struct device_model *model); /* the output matrix */
double device_kv_bytes(
	const struct device_model *model, uint32_t context); /* of a layer, 16 bits */

struct balance_costs device_costs(
	const struct device_machine *machine, const struct device_model *model);

enum device_routing { ROUTING_UNIFORM, ROUTING_ZIPF, ROUTING_PHASES, ROUTING_RECORDED };

struct device_workload {
	enum device_routing routing;
	uint32_t k, passes, accept_percent, context;
	uint64_t seed;
	/* Or NULL. Its drafts are accepted as they were when it was recorded; ROUTING_RECORDED: it
	 * has the model's shape, and its experts are used too. */
	const struct cache_trace *recorded;
};

/* A trace of the model on the machine: who is chosen, what is accepted, how long everything takes
 * but the experts. The caller frees it. -EINVAL: the recorded trace has another shape. */
int device_trace(const struct device_machine *machine, const struct device_model *model,
	const struct device_workload *workload, struct cache_trace *out, struct error *err);

/* The condition of MoE-SpAc under which drafts pay where experts decide (appendix A.1, equations 16
 * and 17). */
struct device_condition {
	double a_over_b; /* distinct experts of a pass with drafts, over those of one token */
	double omega; /* tokens of a pass */
	/* gamma T_D / (b Z): the drafts, over loading and computing one token's experts */
	double draft;
};
struct device_condition device_condition(const struct device_machine *machine,
	const struct device_model *model, const struct cache_trace *trace);
