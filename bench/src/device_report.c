#include "bench/src/device_run.h"

#include <string.h>

const char *device_routing_name(enum device_routing routing)
{
	static const char *const names[] = {"uniform", "zipf", "phases", "recorded"};
	return names[routing];
}

static double percent(double part, double whole)
{
	return whole > 0 ? 100 * part / whole : 0;
}

void device_text_head(FILE *to)
{
	fputs("Simulated: no figure here was measured on a GPU. Bandwidths are published peaks, "
	      "the "
	      "CPU's are measured, so no real\n"
	      "machine is faster. Read the ratios. Decoding, tokens/s, over the share of the "
	      "experts "
	      "that device memory holds; all are in\n"
	      "the host's memory. The cache begins full; the first half of the passes is not "
	      "counted.\n"
	      "blocking lru: the way of other programs: a layer waits until its missing experts "
	      "have been copied, nothing is copied\n"
	      "ahead, and the CPU computes no expert.\n"
	      "off: the device computes everything. greedy: the CPU takes missing experts, those "
	      "of "
	      "the fewest tokens first, for as long\n"
	      "as it ends no later than the device. spac: it takes those below MoE-SpAc's "
	      "threshold.\n",
		to);
}

void device_text_peers(FILE *to)
{
	fputs("\nTheirs, reported by others and not simulated (tokens/s, without an expert cache "
	      "-> with one):\n"
	      "  llama.cpp's cache, Qwen3.8-Flash-Next Q4_0 (94 GiB), 77 to 89 % hits: RTX 5090 "
	      "30.8 -> 67.8, RTX 4090 25.0 -> 40.7;\n"
	      "  the same on a PCIe x4 link: 35 -> 1 to 8; with 15 % of the experts 8.0 -> 3.6\n"
	      "  llama.cpp fork, RTX 3060 12 GB, Qwen3.6-35B-A3B Q4_K_M: 42.3 -> 51.3\n"
	      "  llama.cpp fork, RTX 4070 Ti 12 GB, Qwen3-30B-A3B Q4_K_M, 99.5 % hits: 33.7 -> "
	      "64.5\n"
	      "  imp, Qwen3-30B-A3B Q4_K_M: resident 311, LRU 25.0 at 88.7 % hits, without a cache "
	      "6.6\n",
		to);
}

static void text_case(const struct device_case *of, FILE *to)
{
	const struct device_workload *workload = of->workload;
	const struct device_condition *c = &of->condition;
	fprintf(to, "\n== %s; %s %s, %s routing, K %u", of->machine->what, of->model->name,
		of->model->types, device_routing_name(workload->routing), workload->k);
	fprintf(to, workload->k > 0 ? ", %.2f tokens a pass (%s)\n" : "\n", of->emitted,
		workload->recorded ? "as recorded" : "drawn");
	fprintf(to,
		"An expert: device %.1f us, link %.1f us, CPU %.1f us (one token). All experts in "
		"device memory: %.1f tokens/s; all on the CPU: %.1f\n",
		of->costs.gpu_expert_ns / 1e3, of->costs.link_ns / 1e3,
		balance_cpu_ns(&of->costs, 1) / 1e3, of->resident_tokens_per_s,
		of->cpu_tokens_per_s);
	if (workload->k > 0)
		fprintf(to,
			"Drafts pay where experts decide (MoE-SpAc, equation 17): a/b %.2f %s "
			"Omega "
			"%.2f; with the drafting (16): %.2f %s %.2f\n",
			c->a_over_b, c->a_over_b < c->omega ? "<" : ">=", c->omega,
			c->a_over_b + c->draft,
			c->a_over_b + c->draft < c->omega ? "<" : ">=", c->omega);
}

static void text_heading(const struct device_plan *plan, const struct device_case *of, FILE *to)
{
	bool larger = false;
	fprintf(to, "%-21s", "");
	for (uint32_t s = 0; s < plan->n_shares; s++) {
		bool fits = device_need_gib(of, plan->shares[s]) <= of->machine->memory_gib;
		larger = larger || !fits;
		fprintf(to, " %6u%%%c", plan->shares[s], fits ? ' ' : '*');
	}
	fputs(larger ? "   * more than its memory\n" : "\n", to);
}

static void text_rates(const struct device_plan *plan, const struct device_cell *cells, FILE *to)
{
	for (uint32_t s = 0; s < plan->n_shares; s++)
		if (cells[s].ran)
			fprintf(to, " %7.1f ", cells[s].tokens_per_s);
		else
			fprintf(to, " %7s ", "-");
	fputc('\n', to);
}

/* One figure of each share's cell, in percent. */
static void text_percents(const struct device_plan *plan, const struct device_cell *cells,
	const char *what, double (*of)(const struct replay_totals *), FILE *to)
{
	fprintf(to, "  %-19s", what);
	for (uint32_t s = 0; s < plan->n_shares; s++)
		if (cells[s].ran)
			fprintf(to, " %7.1f ", of(&cells[s].totals));
		else
			fprintf(to, " %7s ", "-");
	fputc('\n', to);
}

static double hits(const struct replay_totals *t)
{
	return percent((double)t->hits, (double)t->uses);
}

static double by_cpu(const struct replay_totals *t)
{
	return percent((double)t->cpu_uses, (double)(t->misses));
}

static double link_busy(const struct replay_totals *t)
{
	return percent((double)t->link_ns, (double)t->time_ns);
}

static double tau(const struct replay_totals *t)
{
	return t->layers > 0 ? (double)t->tau / (double)t->layers : 0;
}

static void text_details(const struct device_plan *plan, const struct device_case *of, FILE *to)
{
	for (uint32_t w = 0; w < plan->n_ways; w++) {
		const struct device_way *way = &plan->ways[w];
		if (way->blocking) {
			text_percents(plan, of->cells[w], "blocking: hits %", hits, to);
			text_percents(plan, of->cells[w], "blocking: link %", link_busy, to);
		} else if (way->policy == &policy_outrider && way->rule == BALANCE_GREEDY) {
			text_percents(plan, of->cells[w], "outrider: hits %", hits, to);
			text_percents(plan, of->cells[w], "outrider: CPU %", by_cpu, to);
			text_percents(plan, of->cells[w], "outrider: link %", link_busy, to);
		} else if (way->policy == &policy_spac && way->rule == BALANCE_SPAC) {
			text_percents(plan, of->cells[w], "spac: CPU %", by_cpu, to);
			text_percents(plan, of->cells[w], "spac: mean tau", tau, to);
		}
	}
}

/* The greedy hybrid's speed beside blocking LRU's, and beside its own at K = 0. */
static void text_ratios(const struct device_plan *plan, const struct device_case *of,
	const struct device_case *k0, FILE *to)
{
	for (uint32_t w = 0; w < plan->n_ways; w++) {
		if (plan->ways[w].policy != &policy_outrider ||
			plan->ways[w].rule != BALANCE_GREEDY)
			continue;
		for (int i = 0; i < (k0 ? 2 : 1); i++) {
			fprintf(to, "  %-19s", i ? "outrider: to K 0" : "outrider: to LRU");
			for (uint32_t s = 0; s < plan->n_shares; s++) {
				const struct device_cell *base =
					i ? &k0->cells[w][s] : &of->cells[0][s];
				if (base->ran && of->cells[w][s].ran)
					fprintf(to, " %7.2f ",
						of->cells[w][s].tokens_per_s / base->tokens_per_s);
				else
					fprintf(to, " %7s ", "-");
			}
			fputc('\n', to);
		}
	}
}

void device_text(const struct device_plan *plan, const struct device_case *of,
	const struct device_case *k0, FILE *to)
{
	text_case(of, to);
	text_heading(plan, of, to);
	for (uint32_t w = 0; w < plan->n_ways; w++) {
		const struct device_way *way = &plan->ways[w];
		fprintf(to, "%-13s %-7s", way->blocking ? "blocking lru" : way->policy->name,
			way->blocking ? "" : balance_rule_names[way->rule]);
		text_rates(plan, of->cells[w], to);
	}
	fputs("CPU %: the share of the missing experts that the CPU computed; link %: the share of "
	      "the "
	      "time in which the link worked\n",
		to);
	text_details(plan, of, to);
	text_ratios(plan, of, k0, to);
}

static json_t *cell_json(const struct device_cell *cell)
{
	const struct replay_totals *t = &cell->totals;
	return json_pack("{s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "tokens_per_s",
		cell->tokens_per_s, "tokens", (json_int_t)t->tokens, "time_ns",
		(json_int_t)t->time_ns, "uses", (json_int_t)t->uses, "hits", (json_int_t)t->hits,
		"misses", (json_int_t)t->misses, "loads", (json_int_t)t->loads, "cpu_experts",
		(json_int_t)t->cpu_uses, "link_ns", (json_int_t)t->link_ns, "device_ns",
		(json_int_t)t->device_ns, "cpu_ns", (json_int_t)t->cpu_ns, "tau", tau(t));
}

static json_t *ways_json(const struct device_plan *plan, const struct device_case *of)
{
	json_t *rows = json_array();
	for (uint32_t w = 0; w < plan->n_ways; w++)
		for (uint32_t s = 0; s < plan->n_shares; s++) {
			if (!of->cells[w][s].ran)
				continue;
			json_t *row = cell_json(&of->cells[w][s]);
			const struct device_way *way = &plan->ways[w];
			double need = device_need_gib(of, plan->shares[s]);
			json_object_update_new(row,
				json_pack("{s:s,s:s,s:b,s:i,s:f,s:b}", "policy", way->policy->name,
					"hybrid", balance_rule_names[way->rule], "blocking",
					way->blocking, "share_percent", (int)plan->shares[s],
					"device_gib", need, "fits",
					need <= of->machine->memory_gib));
			json_array_append_new(rows, row);
		}
	return rows;
}

json_t *device_json(const struct device_plan *plan, const struct device_case *of)
{
	const struct device_condition *c = &of->condition;
	return json_pack("{s:s,s:s,s:s,s:i,s:b,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:b,s:o}",
		"machine", of->machine->name, "model", of->model->name, "routing",
		device_routing_name(of->workload->routing), "k", (int)of->workload->k, "recorded",
		of->workload->recorded != NULL, "tokens_per_pass", of->emitted, "device_expert_us",
		of->costs.gpu_expert_ns / 1e3, "link_expert_us", of->costs.link_ns / 1e3,
		"cpu_expert_us", balance_cpu_ns(&of->costs, 1) / 1e3, "resident_tokens_per_s",
		of->resident_tokens_per_s, "cpu_tokens_per_s", of->cpu_tokens_per_s, "a_over_b",
		c->a_over_b, "omega", c->omega, "draft", c->draft, "equation_17",
		c->a_over_b < c->omega, "rows", ways_json(plan, of));
}
