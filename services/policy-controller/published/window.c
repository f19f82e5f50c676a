#include "services/policy-controller/published/window.h"

#include "shared/base/median.h"

void window_reset(struct window *window)
{
	window->n = 0;
}

void window_add(struct window *window, const struct window_iteration *iteration)
{
	window->kept[window->n++ % WINDOW_MAX] = *iteration;
}

uint32_t window_size(const struct window *window)
{
	return window->n < WINDOW_MAX ? window->n : WINDOW_MAX;
}

const struct window_iteration *window_at(const struct window *window, uint32_t i)
{
	return &window->kept[(window->n - window_size(window) + i) % WINDOW_MAX];
}

/* The median of the values of iterations with this many drafted tokens; *count: their number. */
static double median_of(
	const struct window *window, const double *values, uint32_t drafted, uint32_t *count)
{
	double some[WINDOW_MAX];
	uint32_t n = 0;
	for (uint32_t i = 0; i < window_size(window); i++)
		if (window_at(window, i)->drafted == drafted)
			some[n++] = values[i];
	*count = n;
	return n > 0 ? median(some, n) : 0;
}

double window_mean(const struct window *window, const double *values, bool medians)
{
	double sum = 0;
	for (uint32_t i = 0; !medians && i < window_size(window); i++)
		sum += values[i];
	for (uint32_t drafted = 0; medians && drafted <= LIMIT_DRAFT_DEPTH; drafted++) {
		uint32_t count;
		double middle = median_of(window, values, drafted, &count);
		sum += middle * count;
	}
	return window_size(window) ? sum / window_size(window) : 0;
}

double window_time_ns(const struct window *window, bool medians)
{
	double ns[WINDOW_MAX];
	for (uint32_t i = 0; i < window_size(window); i++)
		ns[i] = (double)window_at(window, i)->ns;
	return window_mean(window, ns, medians);
}

double window_etr(const struct window *window)
{
	uint32_t n = window_size(window);
	uint64_t sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += window_at(window, i)->emitted;
	return n ? (double)sum / n : 0;
}
