#include "services/verifier/pass/gate_far.h"

#include <string.h>

/* Bytes of a router that are read in one slice: some 5 us where memory gives 10 GB/s. */
#define SLICE_BYTES (64u << 10)

int gate_far_init(struct gate_far *far, const struct model *model, struct backend *backend,
	const struct matrix *routers, const uint32_t *next, struct error *err)
{
	memset(far, 0, sizeof(*far));
	int rc = moe_router_init(&far->router, model, backend, GATE_FAR_TOKENS, err);
	far->router.matrix = routers;
	far->next = next;
	return rc;
}

void gate_far_exit(struct gate_far *far)
{
	moe_router_exit(&far->router);
	memset(far, 0, sizeof(*far));
}

/* Goes on to nearer layers until one exists. */
static void aim(struct gate_far *far)
{
	for (; far->ahead > 1; far->ahead--) {
		far->layer = far->from;
		for (uint32_t i = 0; i < far->ahead && (i == 0 || far->layer != 0); i++)
			far->layer = far->next[far->layer];
		if (far->layer != 0)
			return;
	}
	far->ahead = 0;
}

void gate_far_start(struct gate_far *far, uint32_t layer, const struct rows *hidden)
{
	gate_far_stop(far);
	if (hidden->n > GATE_FAR_TOKENS)
		return;
	far->hidden = *hidden;
	far->n_tokens = hidden->n;
	far->from = layer;
	far->ahead = GATE_FAR_AHEAD;
	aim(far);
}

void gate_far_stop(struct gate_far *far)
{
	far->ahead = 0;
	far->begun = false;
}

bool gate_far_look(struct gate_far *far, bool all, uint32_t *layer, uint32_t *ahead)
{
	if (all) {
		moe_router_run(&far->router, far->layer, &far->hidden);
	} else {
		if (!far->begun)
			moe_router_begin(&far->router, far->layer, &far->hidden);
		far->begun = true;
		if (!moe_router_some(&far->router, SLICE_BYTES))
			return false;
	}
	*layer = far->layer;
	*ahead = far->ahead--;
	far->begun = false;
	aim(far);
	return true;
}
