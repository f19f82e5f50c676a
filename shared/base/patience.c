#include "shared/base/patience.h"

#include "shared/base/clock.h"

#define MS UINT64_C(1000000)

/* Later than requested by at least this much. */
#define STILL_NS (1000 * MS)

bool patience_stood_still(int step_ms, uint64_t took_ns)
{
	return took_ns > (uint64_t)step_ms * MS + STILL_NS;
}

void patience_init(struct patience *patience, int limit_ms)
{
	uint64_t limit_ns = limit_ms < 0 ? 0 : (uint64_t)limit_ms * MS;

	*patience = (struct patience){limit_ns, limit_ns, clock_ns()};
}

int patience_step_ms(struct patience *patience)
{
	uint64_t now_ns = clock_ns(), took_ns = now_ns - patience->at_ns, left_ms;

	patience->at_ns = now_ns;
	if (patience_stood_still(PATIENCE_STEP_MS, took_ns))
		patience->left_ns = patience->limit_ns;
	else
		patience->left_ns -= took_ns < patience->left_ns ? took_ns : patience->left_ns;
	left_ms = (patience->left_ns + MS - 1) / MS;
	return left_ms < PATIENCE_STEP_MS ? (int)left_ms : PATIENCE_STEP_MS;
}
