/* The device's slots as the service sees them: its setting device_budget, at the start and changed at
 * run time. In the loop's thread. A change makes other regions, and the verifier goes over to them
 * between two passes: the memory of a region is allocated once, and is as large as its slots. Where
 * there is no room for both, the change goes over the fewest slots. */
#pragma once

#include "services/expert-cache/service.h"

/* The slots that a budget means. had: bytes that slots have already. *share: what it was computed
 * from; untouched when there is no device. -ENOMEM: the device can never hold them. *n_slots is 0 where
 * the text is no budget. */
int live_device_slots(const struct service *service, const char *budget, uint64_t had,
	uint32_t *n_slots, struct device_share *share, struct error *err);
/* Before the broker is opened: fetches a predecessor's regions. */
void live_device_recover(struct service *service);
/* Opens service->device, over service->backend: with the regions of a dead predecessor, or with new
 * ones. */
int live_device_open(struct service *service, struct error *err);
/* Makes the slots for another budget, which are not used yet. Where there is no room for them beside
 * those in use, but instead of them, it makes the fewest: live_device_more goes on from there. */
int live_device_make(const struct service *service, const struct cache_config *next,
	struct device **out, struct error *err);
/* Uses these slots from now on; the worker does already. The caller closes the others, which are
 * service->device before. */
void live_device_use(struct service *service, struct device *device);
/* While there are fewer slots than the budget means: makes all, once there is room. config: the one in
 * force, or about to be. */
void live_device_more(struct service *service, const struct cache_config *config);
/* From time to time: live_device_more; and a budget of auto follows what the verifier and the drafter
 * take of the device's memory. */
void live_device_follow(struct service *service);
/* From time to time: a device that this process has lost, or could not open, is there for a new process
 * only. Runs the program anew when the verifier computes on the device, once for each verifier. */
void live_device_again(struct service *service);
/* For live_drafter.c, which asks when there is a back end: how the memory is shared out if the drafter
 * takes so much; the bytes of the slots in use; and those that slots keep, whoever needs memory. */
void live_device_share(const struct service *service, uint64_t drafter, struct device_share *out);
uint64_t live_device_bytes(const struct service *service);
uint64_t live_device_least(const struct service *service);
/* Offers the regions to the peers. */
void live_device_offer(struct service *service);
/* Closes slots that nobody uses. */
void live_device_free(struct device **device);
/* Closes service->device and service->backend. */
void live_device_close(struct service *service);
/* The budget that a successor with the same settings continues with. */
void live_device_stays(struct service *service, const struct cache_config *config);
