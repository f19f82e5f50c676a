/*
 * Who computes a layer's experts when some of them are not in device memory: the device, for which
 * they come over the link, or the CPU, which computes them in the host's memory meanwhile. Who it is
 * cannot change a byte of the output (kernels/numerics.md: one definition for both), only the time.
 *
 * Two rules beside "off", where the device computes everything:
 *
 *   greedy  The CPU takes missing experts, those that the fewest tokens chose first. An expert costs
 *           the link the same for one token as for ten, but the CPU does not. It takes one more for
 *           as long as it ends no later than the device would end if it kept that one.
 *   spac    MoE-SpAc (arXiv 2603.09983, section 3.3, appendix C): a threshold tau of the experts'
 *           utilities (s). Missing experts from tau on are streamed, those below it are left to the
 *           CPU.
 *
 * Pure: no clock, no I/O, no memory of its own; any thread may call it. Costs are measured by the
 * caller, in nanoseconds. A cost that is negative or not a number counts as 0: it was not measured
 * yet, and will be once it was tried. Infinite: impossible.
 */
#pragma once

#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* Utilities are below this: a K_u of the paper is 4. */
enum { BALANCE_UTILITIES = 16 };

enum balance_rule { BALANCE_OFF, BALANCE_GREEDY, BALANCE_SPAC, BALANCE_RULES };
extern const char *const balance_rule_names[]; /* "off", "greedy", "spac", NULL */

/* Where an expert's weights are. */
enum balance_place {
	BALANCE_IN_SLOT, /* in device memory */
	BALANCE_COMING, /* on its way there */
	BALANCE_IN_HOST, /* in the host's arena */
	BALANCE_ON_DISK, /* must be read to the arena before anybody can use it */
};

/* Who computes it. */
enum balance_who {
	BALANCE_RESIDENT, /* the device, in the slot that it has or will have */
	BALANCE_STREAMED, /* the device, after a transfer that is yet to begin */
	BALANCE_CPU, /* the CPU, in the host's arena */
};

struct balance_expert {
	uint32_t expert; /* the caller's number of it */
	uint32_t tokens; /* how many tokens of the pass chose it, at least 1: f of MoE-SpAc */
	uint32_t utility; /* s of MoE-SpAc; greedy does not read it */
	enum balance_place place;
	double arrives_ns; /* BALANCE_COMING: from now */
	enum balance_who who; /* the result */
};

/* An expert with n tokens takes *_expert_ns, in which its weights are read, or n * *_token_ns, in
 * which they are multiplied, whichever is longer. */
struct balance_costs {
	double cpu_expert_ns, cpu_token_ns;
	double gpu_expert_ns, gpu_token_ns;
	double link_ns; /* one expert over the link, one after the other */
	double disk_ns; /* one expert from the disk, one after the other */
};

double balance_cpu_ns(const struct balance_costs *costs, uint32_t tokens);
double balance_gpu_ns(const struct balance_costs *costs, uint32_t tokens);

struct balance_layer {
	/* At most LIMIT_EXPERTS, each once. Transfers and reads go in this order, what is in the
	 * host before what is on the disk. */
	struct balance_expert *experts;
	uint32_t n;
	uint32_t slots; /* the most that may be streamed: memory left, in experts */
	double link_busy_ns, cpu_busy_ns; /* until the link, the CPU can begin */
	double window_ns; /* spac: gamma t_draft / L_target, drafting time per layer */
	uint32_t bound; /* spac: K_u, at least 1 */
};

/* Sets who computes each expert. Returns tau of spac, 0 for the other rules. greedy and spac stream no
 * more than `slots` experts; "off" streams all that are missing, if need be in several waves. */
uint32_t balance(
	enum balance_rule rule, struct balance_layer *layer, const struct balance_costs *costs);

/* How long a layer takes with the experts as they are set: each resource works at one thing at a
 * time, and a transfer or a computation begins as soon as what it needs is there. */
struct balance_times {
	double cpu_ns, gpu_ns, link_ns, disk_ns; /* at work */
	double cpu_end_ns, device_end_ns; /* when each ends, from now; 0: it has nothing to do */
	double end_ns; /* the later of them */
};
struct balance_times balance_times(
	const struct balance_layer *layer, const struct balance_costs *costs);

/* ---- MoE-SpAc's choice of tau, for whoever knows other times. ---- */

/* What a threshold would mean for one layer and step. */
struct balance_split {
	double cpu_ns; /* T_cpu(tau), equation 7 */
	double gpu_ns; /* T_gpu(tau), equation 8 */
	double streamed; /* n(tau) */
	double slots; /* VRAM left / W_e: experts that there is room for */
};

/* Equations 9 to 12 over split[1..bound]. Returns tau; `bound` when nothing is feasible (appendix
 * C.2). */
uint32_t balance_threshold(
	const struct balance_split *split, uint32_t bound, double link_ns, double window_ns);
