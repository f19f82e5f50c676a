/*
 * Which tokens of a pass carry masks, and how many (draft method mtp-lora). A pass has anchors: the
 * newest token, and the drafts behind it. Only the masks behind the last accepted anchor bring the
 * next draft, so the masks of an anchor are worth the more the likelier the draft ends there. Mask j
 * behind anchor i makes the next draft a token longer:
 *
 *   worth(i, j) = P(the draft ends at i) * (P(draft j of the next pass is accepted) * token - row)
 *
 * with the policy's price of a token and of a row, the experts that a row adds included: the drafted
 * token has to be verified too. A mask is taken where that exceeds the price of its own row. Without
 * prices all are taken, as far as there is room; then the likeliest first. Pure. Engine thread.
 */
#pragma once

#include "shared/base/limits.h"

#include <stdint.h>

enum { MASK_ANCHORS = LIMIT_DRAFT_DEPTH + 1 };

struct mask_choice {
	uint32_t n_anchors; /* 1..MASK_ANCHORS */
	uint32_t room; /* masks in all */
	float token, row; /* prices; token 0: there are none */
	const float
		*reached; /* [n_anchors] the chance that the anchor is accepted; reached[0] = 1 */
	const uint8_t *most; /* [n_anchors] masks that it may have, up to LIMIT_MTP_DRAFT */
	const float *
		next; /* [LIMIT_MTP_DRAFT] the chance that draft j of a pass is accepted, falling */
};

/* Sets masks[i], the number of masks behind anchor i. Returns how many there are in all. */
uint32_t mask_choose(const struct mask_choice *choice, uint8_t *masks);
