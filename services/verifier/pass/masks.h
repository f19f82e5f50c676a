/*
 * Drafts without a drafter (draft method mtp-lora): a pass carries masks behind the tokens of a
 * session, as branches of their own, and the masks behind the last token that stands give the next
 * draft (shared/model/arch/adapter.h). Their keys and values are dropped. Engine thread; the counts
 * may be read by others.
 */
#pragma once

#include "shared/base/limits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct engine_session;
struct pass;
struct pass_part;
struct policy_session;

/* Over all sessions, by position of a draft. */
struct masks_counts {
	_Atomic uint64_t rows; /* with masks */
	_Atomic uint64_t drafted[LIMIT_MTP_DRAFT], accepted[LIMIT_MTP_DRAFT];
};

/* Whether the session drafts this way. */
bool masks_used(const struct engine *engine, const struct engine_session *s);
/* In the step "draft", with part->want chosen: takes what the last pass has drafted for it. */
void masks_take_draft(struct engine *engine, struct pass_part *part);
/* Between the steps "share" and "build": chooses the masks of each part (mask_choice.h). */
void pass_masks(struct engine *engine, struct pass *pass);
/* In the step "build", when the rows of all parts are there: takes cells and adds the rows of the
 * part's masks, or none if there are no cells to spare. */
void masks_add_rows(struct engine *engine, struct pass *pass, struct pass_part *part);
/* Behind the step "commit": reads the next drafts of all parts. */
void pass_masks_draft(struct engine *engine, struct pass *pass);
