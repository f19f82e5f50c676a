#include "services/policy-controller/window.h"

#include <string.h>

void window_reset(struct window *window)
{
	window->n = 0;
}

void window_add(
	struct window *window, uint64_t ns, uint32_t drafted, uint32_t emitted, uint32_t sessions)
{
	uint32_t i = window->n++ % WINDOW_MAX;
	window->ns[i] = ns;
	window->drafted[i] = drafted;
	window->emitted[i] = emitted;
	window->sessions[i] = sessions;
}

uint32_t window_size(const struct window *window)
{
	return window->n < WINDOW_MAX ? window->n : WINDOW_MAX;
}

/* The median of the times of iterations with so many drafted tokens, and how many those are. */
static double median_of(const struct window *window, uint32_t drafted, uint32_t *count)
{
	uint64_t sorted[WINDOW_MAX];
	uint32_t n = 0;
	for (uint32_t i = 0; i < window_size(window); i++) {
		if (window->drafted[i] != drafted)
			continue;
		uint32_t j = n++;
		for (; j > 0 && sorted[j - 1] > window->ns[i]; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = window->ns[i];
	}
	*count = n;
	uint32_t half = n / 2;
	if (n == 0)
		return 0;
	return n % 2 ? (double)sorted[half] : ((double)sorted[half - 1] + (double)sorted[half]) / 2;
}

double window_time_ns(const struct window *window)
{
	double sum = 0;
	for (uint32_t drafted = 0; drafted <= LIMIT_DRAFT; drafted++) {
		uint32_t count;
		double median = median_of(window, drafted, &count);
		sum += median * count;
	}
	return window_size(window) ? sum / window_size(window) : 0;
}

double window_etr(const struct window *window)
{
	uint32_t n = window_size(window);
	uint64_t sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += window->emitted[i];
	return n ? (double)sum / n : 0;
}

uint32_t window_sessions(const struct window *window)
{
	uint32_t n = window_size(window), best = 0, best_count = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t count = 0;
		for (uint32_t j = 0; j < n; j++)
			count += window->sessions[j] == window->sessions[i];
		if (count > best_count) {
			best_count = count;
			best = window->sessions[i];
		}
	}
	return best;
}
