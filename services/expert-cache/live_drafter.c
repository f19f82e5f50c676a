#include "services/expert-cache/live_drafter.h"

#include "services/expert-cache/live_device.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/ipc/peers.h"
#include "shared/ipc/registry.h"

#include <errno.h>
#include <stdio.h>

/* A successor is there sooner. */
#define KEPT_NS 3000000000ull

static void answer(struct service *service, bool granted, const char *why)
{
	struct drafter_part *d = &service->drafter;
	struct peer_settings settings = {.share = {.asked = d->asked, .granted = granted}};
	snprintf(settings.share.refusal, sizeof(settings.share.refusal), "%s", why);
	registry_tell(service->daemon, PEER_DRAFTER, &settings);
	d->answered = true;
	if (service->backend == NULL)
		return;
	if (granted)
		log_notice("the drafter may take %s of the device's memory", UNITS_SIZE(d->asked));
	else
		log_notice("the drafter gets no memory of the device, of which it needs %s: %s",
			UNITS_SIZE(d->asked), why);
}

void live_drafter_asks(struct service *service, const struct peer_needs *needs)
{
	struct drafter_part *d = &service->drafter;
	if (d->asked != needs->device)
		*d = (struct drafter_part){.asked = needs->device};
	d->there = needs->device_there < needs->device ? needs->device_there : needs->device;
	d->left_ns = 0;
	/* With a dense model the cache has nothing there, and does not look again. */
	if (service->budget == 0 && d->asked > 0 && !d->answered)
		answer(service, true, "");
}

void live_drafter_left(struct service *service)
{
	struct drafter_part *d = &service->drafter;
	if (d->asked == 0)
		return;
	d->left_ns = clock_ns();
	d->there = 0;
	d->answered = false;
}

/* Whether it may have what it asks for. -ENOMEM: no, and why. */
static int check(const struct service *service, struct error *err)
{
	const struct drafter_part *d = &service->drafter;
	struct device_share share;
	if (service->backend == NULL)
		return 0;
	live_device_share(service, d->asked, &share);
	return device_share_drafter(&share, live_device_least(service), d->there > 0,
		service->config.device_budget, err);
}

/* Counts its part, and lets the experts give way. */
static int grant(struct service *service, struct error *err)
{
	struct drafter_part *d = &service->drafter;
	struct device_share share;
	d->granted = true;
	if (service->backend == NULL)
		return 0;
	live_device_follow(service);
	live_device_share(service, d->asked, &share);
	if (live_device_bytes(service) <= share.whole)
		return 0;
	d->tried = d->asked;
	return error_set(err, ENOMEM, "%s of experts are there and have not given way",
		UNITS_SIZE(live_device_bytes(service)));
}

void live_drafter_follow(struct service *service)
{
	struct drafter_part *d = &service->drafter;
	struct error why = {.text = ""};
	if (d->left_ns != 0 && clock_ns() - d->left_ns > KEPT_NS) {
		log_notice("the drafter has not come back: its %s of the device's memory are free",
			UNITS_SIZE(d->asked));
		*d = (struct drafter_part){0};
		/* Or another one would be told of it when it registers. */
		const struct peer_settings none = {0};
		registry_tell(service->daemon, PEER_DRAFTER, &none);
	}
	if (d->asked == 0 || d->left_ns != 0 || (service->backend != NULL && !service->needs.said))
		return;
	int status = check(service, &why);
	if (status == 0 && d->tried == d->asked)
		return;
	if (d->answered && d->granted == (status == 0))
		return;
	if (status == 0)
		status = grant(service, &why);
	d->granted = status == 0;
	answer(service, status == 0, why.text);
}

void live_drafter_tell(struct service *service)
{
	uint64_t bytes = live_drafter_bytes(service);
	if (service->drafter_told == bytes)
		return;
	service->drafter_told = bytes;
	const struct peer_settings settings = {.has_needs = 1, .needs = {.device = bytes}};
	registry_tell(service->daemon, PEER_VERIFIER, &settings);
}
