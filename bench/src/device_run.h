/* The cells of `outrider-bench device`: each machine with each model and workload, each way to run it
 * with each share of the experts. */
#pragma once

#include "bench/src/cache_replay.h"
#include "bench/src/device_shape.h"

#include <jansson.h>
#include <stdio.h>

enum { DEVICE_SHARES = 16, DEVICE_WAYS = 32, DEVICE_LIST = 16 };

/* A way to run a model: the policy of the cache, and who computes what is missing. */
struct device_way {
	const struct cache_policy_ops *policy;
	enum balance_rule rule;
	bool blocking; /* as in replay_device */
};

struct device_plan {
	struct device_machine machines[DEVICE_LIST]; /* with what the options replaced */
	struct device_model models[DEVICE_LIST];
	struct device_workload workloads[DEVICE_LIST];
	struct device_way ways[DEVICE_WAYS]; /* the first: LRU, blocking */
	uint32_t n_machines, n_models, n_workloads, n_ways;
	uint32_t shares[DEVICE_SHARES], n_shares; /* percent of the experts in device memory */
};

struct device_cell {
	bool ran; /* false: fewer slots than a layer needs at once */
	struct replay_totals totals; /* of decoding, without the first half of the passes */
	double tokens_per_s;
};

struct device_case {
	const struct device_machine *machine;
	const struct device_model *model;
	const struct device_workload *workload;
	struct balance_costs costs;
	double resident_tokens_per_s; /* all experts in device memory */
	double cpu_tokens_per_s; /* the CPU computes all experts, and nothing goes over the link */
	double emitted; /* tokens of a pass */
	struct device_condition condition;
	struct device_cell cells[DEVICE_WAYS][DEVICE_SHARES];
};

/* Device memory that a share needs, with everything else that lies there. */
double device_need_gib(const struct device_case *of, uint32_t share);

int device_run(const struct device_plan *plan, const struct device_machine *machine,
	const struct device_model *model, const struct device_workload *workload,
	struct device_case *out, struct error *err);

/* device_report.c. k0: the case of the same machine and model at K = 0, or NULL. */
void device_text(const struct device_plan *plan, const struct device_case *of,
	const struct device_case *k0, FILE *to);
json_t *device_json(const struct device_plan *plan, const struct device_case *of);
void device_text_head(FILE *to);
void device_text_peers(FILE *to);
const char *device_routing_name(enum device_routing routing);
