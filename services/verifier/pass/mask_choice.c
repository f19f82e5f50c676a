#include "services/verifier/pass/mask_choice.h"

#include <string.h>

static float worth(const struct mask_choice *c, uint32_t anchor, uint32_t j)
{
	float behind = anchor + 1 < c->n_anchors ? c->reached[anchor + 1] : 0;
	float ends = c->reached[anchor] - behind;

	return ends * (c->token > 0 ? c->next[j] * c->token - c->row : c->next[j]);
}

uint32_t mask_choose(const struct mask_choice *choice, uint8_t *masks)
{
	float price = choice->token > 0 ? choice->row : 0;
	uint32_t n = 0;

	memset(masks, 0, choice->n_anchors);
	for (; n < choice->room; n++) {
		uint32_t best = choice->n_anchors;
		float most = 0;

		/* Behind one anchor their worth falls, so the next of each is all that counts. */
		for (uint32_t i = 0; i < choice->n_anchors; i++) {
			float w = masks[i] < choice->most[i] ? worth(choice, i, masks[i]) : -1;

			if (w >= price && (best == choice->n_anchors || w > most)) {
				best = i;
				most = w;
			}
		}
		if (best == choice->n_anchors)
			break;
		masks[best]++;
	}
	return n;
}
