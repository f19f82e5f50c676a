/*
 * The size of the KV cache, changed while sessions run. On a device its memory is a part of what the
 * service may take there: what it grows by, the expert-cache has to give up first. So a change that
 * has no room yet waits: the expert-cache is told what the verifier takes then, and the change is made
 * when its slots have become fewer. A pass that takes long is not waited for either. The loop's thread.
 */
#pragma once

#include "services/verifier/front/front.h"

struct device_header;

/* Refuses settings whose KV cache can never fit: -EINVAL, -ENOMEM. */
int kv_change_check(
	const struct front *front, const struct verifier_config *next, struct error *err);
/* Puts these settings in force: at once, or when there is room and the pass that runs has ended. Errors as
 * kv_change_check, and as engine_resize_kv; -EBUSY: another change is under way. */
int kv_change_apply(struct front *front, const struct verifier_config *next, struct error *err);
/* From time to time: makes a change that waits. */
void kv_change_tick(struct front *front);
/* The region of the expert-cache's slots on the device; NULL: there are none. */
void kv_change_beside(struct front *front, const struct device_header *slots);
