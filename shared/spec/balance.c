#include "shared/spec/balance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const balance_rule_names[] = {"off", "greedy", "spac", NULL};
static_assert(sizeof(balance_rule_names) / sizeof(*balance_rule_names) == BALANCE_RULES + 1,
	"each rule is named");

/* Not measured yet: 0. */
static double known(double ns)
{
	return ns > 0 ? ns : 0;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* n * ns, where nothing of something infinite is nothing. */
static double times(double n, double ns)
{
	return n > 0 ? n * ns : 0;
}

double balance_cpu_ns(const struct balance_costs *costs, uint32_t tokens)
{
	return larger(known(costs->cpu_expert_ns), times(tokens, known(costs->cpu_token_ns)));
}

double balance_gpu_ns(const struct balance_costs *costs, uint32_t tokens)
{
	return larger(known(costs->gpu_expert_ns), times(tokens, known(costs->gpu_token_ns)));
}

static double cpu_time(const struct balance_costs *costs, const struct balance_expert *expert)
{
	return balance_cpu_ns(costs, expert->tokens);
}

static double gpu_time(const struct balance_costs *costs, const struct balance_expert *expert)
{
	return balance_gpu_ns(costs, expert->tokens);
}

static bool missing(const struct balance_expert *expert)
{
	return expert->place == BALANCE_IN_HOST || expert->place == BALANCE_ON_DISK;
}

/* ---- How long it takes. ---- */

struct clocks {
	double cpu, gpu, link, disk; /* when each is free */
	struct balance_times times;
};

/* A missing expert, by whoever computes it. */
static void run_missing(
	struct clocks *at, const struct balance_expert *expert, const struct balance_costs *costs)
{
	double there = 0;
	if (expert->place == BALANCE_ON_DISK) {
		at->disk += known(costs->disk_ns);
		at->times.disk_ns += known(costs->disk_ns);
		there = at->disk;
	}
	if (expert->who == BALANCE_CPU) {
		at->cpu = larger(at->cpu, there) + cpu_time(costs, expert);
		at->times.cpu_ns += cpu_time(costs, expert);
		at->times.cpu_end_ns = at->cpu;
		return;
	}
	at->link = larger(at->link, there) + known(costs->link_ns);
	at->times.link_ns += known(costs->link_ns);
	at->gpu = larger(at->gpu, at->link) + gpu_time(costs, expert);
	at->times.gpu_ns += gpu_time(costs, expert);
}

struct balance_times balance_times(
	const struct balance_layer *layer, const struct balance_costs *costs)
{
	struct clocks at = {.cpu = known(layer->cpu_busy_ns), .link = known(layer->link_busy_ns)};
	for (int place = BALANCE_IN_SLOT; place <= BALANCE_COMING; place++)
		for (uint32_t i = 0; i < layer->n; i++) {
			const struct balance_expert *expert = &layer->experts[i];
			if ((int)expert->place != place)
				continue;
			if (expert->place == BALANCE_COMING)
				at.gpu = larger(at.gpu, known(expert->arrives_ns));
			at.gpu += gpu_time(costs, expert);
			at.times.gpu_ns += gpu_time(costs, expert);
		}
	for (int place = BALANCE_IN_HOST; place <= BALANCE_ON_DISK; place++)
		for (uint32_t i = 0; i < layer->n; i++)
			if ((int)layer->experts[i].place == place)
				run_missing(&at, &layer->experts[i], costs);
	at.times.device_end_ns = at.gpu;
	at.times.end_ns = larger(at.times.cpu_end_ns, at.gpu);
	return at.times;
}

/* ---- Greedy. ---- */

/* By tokens; of as many, the first of the list first, so that equal layers are split equally. */
static int by_tokens(const void *a, const void *b)
{
	const struct balance_expert *const *x = a, *const *y = b;
	if ((*x)->tokens != (*y)->tokens)
		return (*x)->tokens < (*y)->tokens ? -1 : 1;
	return (*x > *y) - (*x < *y);
}

/* The missing experts in the order in which the CPU takes them. Returns how many there are. */
static uint32_t order_missing(
	const struct balance_layer *layer, struct balance_expert *order[LIMIT_EXPERTS])
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < layer->n; i++) {
		layer->experts[i].who = BALANCE_RESIDENT;
		if (missing(&layer->experts[i]))
			order[n++] = &layer->experts[i];
	}
	if (n > 1) /* cppcheck-suppress uninitvar ; the first n are set */
		qsort(order, n, sizeof(struct balance_expert *), by_tokens);
	return n;
}

/* The CPU has the first n_cpu of them, the link the others. */
static void split_at(struct balance_expert *order[LIMIT_EXPERTS], uint32_t n, uint32_t n_cpu)
{
	for (uint32_t i = 0; i < n; i++)
		order[i]->who = i < n_cpu ? BALANCE_CPU : BALANCE_STREAMED;
}

/* True if the CPU, with n_cpu experts, ends no later than the device would if the last of them were
 * the device's. Taking it then makes the layer's end no later. */
static bool worth_taking(const struct balance_layer *layer, const struct balance_costs *costs,
	struct balance_expert *order[LIMIT_EXPERTS], uint32_t n, uint32_t n_cpu)
{
	split_at(order, n, n_cpu);
	double cpu_end_ns = balance_times(layer, costs).cpu_end_ns;
	split_at(order, n, n_cpu - 1);
	return cpu_end_ns <= balance_times(layer, costs).device_end_ns;
}

static void greedy(const struct balance_layer *layer, const struct balance_costs *costs)
{
	struct balance_expert *order[LIMIT_EXPERTS];
	uint32_t n = order_missing(layer, order);
	/* With each expert more, the CPU ends later and the device no later: what is worth taking
	 * is a beginning of the order, whose end is found by halving. */
	uint32_t low = 0, high = n;
	while (low < high) {
		uint32_t middle = high - (high - low) / 2;
		if (worth_taking(layer, costs, order, n, middle))
			low = middle;
		else
			high = middle - 1;
	}
	if (n > layer->slots && low < n - layer->slots)
		low = n - layer->slots;
	split_at(order, n, low);
}

/* ---- MoE-SpAc. ---- */

static bool feasible(const struct balance_split *split, double link_ns, double window_ns)
{
	double total_ns = larger(split->cpu_ns, split->gpu_ns);
	return times(split->streamed, link_ns) <= total_ns + window_ns && /* equation 10 */
	       split->streamed <= split->slots; /* equation 11, both sides divided by W_e */
}

/* Equation 39 looks only at the ends of the feasible range and beside the crossing. With a K_u of 4,
 * looking at every value of the range is as fast, and needs no proof that the range is contiguous.
 */
uint32_t balance_threshold(
	const struct balance_split *split, uint32_t bound, double link_ns, double window_ns)
{
	uint32_t best = bound;
	double least = INFINITY;
	for (uint32_t tau = 1; tau <= bound; tau++) { /* equation 12 */
		if (!feasible(&split[tau], known(link_ns), known(window_ns)))
			continue;
		double difference = fabs(split[tau].cpu_ns - split[tau].gpu_ns); /* equation 9 */
		if (difference < least) {
			least = difference;
			best = tau;
		}
	}
	return best;
}

/* What tau means for a layer whose experts are known: r_c(tau) gamma k is the number of choices
 * that fall on the CPU's experts, r_g(tau) b the number of the device's. An expert that is in device
 * memory, or on its way there, is the device's whatever its utility. */
static struct balance_split split_by(
	const struct balance_layer *layer, const struct balance_costs *costs, uint32_t tau)
{
	struct balance_split split = {.slots = layer->slots};
	for (uint32_t i = 0; i < layer->n; i++) {
		const struct balance_expert *expert = &layer->experts[i];
		if (missing(expert) && expert->utility < tau)
			split.cpu_ns += cpu_time(costs, expert); /* equation 7 */
		else
			split.gpu_ns += gpu_time(costs, expert); /* equation 8 */
		split.streamed += missing(expert) && expert->utility >= tau;
	}
	return split;
}

static uint32_t spac(const struct balance_layer *layer, const struct balance_costs *costs)
{
	struct balance_expert *order[LIMIT_EXPERTS];
	struct balance_split split[BALANCE_UTILITIES];
	uint32_t bound = layer->bound < BALANCE_UTILITIES ? layer->bound : BALANCE_UTILITIES - 1;
	bound += bound == 0;
	for (uint32_t tau = 1; tau <= bound; tau++)
		split[tau] = split_by(layer, costs, tau);
	uint32_t tau = balance_threshold(split, bound, costs->link_ns, layer->window_ns);
	uint32_t n = order_missing(layer, order), n_streamed = 0;
	/* Most tokens first, for when nothing is feasible and not even the hottest have room. */
	while (n-- > 0) {
		bool hot = order[n]->utility >= tau && n_streamed < layer->slots;
		order[n]->who = hot ? BALANCE_STREAMED : BALANCE_CPU;
		n_streamed += hot;
	}
	return tau;
}

uint32_t balance(
	enum balance_rule rule, struct balance_layer *layer, const struct balance_costs *costs)
{
	struct balance_expert *order[LIMIT_EXPERTS];
	if (rule == BALANCE_SPAC)
		return spac(layer, costs);
	if (rule == BALANCE_GREEDY)
		greedy(layer, costs);
	else
		split_at(order, order_missing(layer, order), 0);
	return 0;
}
