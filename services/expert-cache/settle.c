#include "services/expert-cache/settle.h"

#include "shared/base/log.h"

#include <assert.h>

int settle(const struct service *service, const char *text, uint64_t had, struct settled *out,
	struct error *err)
{
	const struct slots_geometry *geometry = &service->geometry;
	const struct room_needs *needs = &service->needs;
	room_find(&out->limit, needs, had, &out->room);
	int status = budget_slots(text, geometry, out->room.bytes, &out->budget, err);
	/* Auto has left room for what the verifier holds, or takes the least. An estimate refuses nobody. */
	uint64_t held = needs->said && !budget_is_auto(text) ? room_needs_held(needs) : 0;
	return status == 0 ? budget_check_memory(&out->budget, &out->limit, had, held,
				     budget_automatic(geometry, out->room.bytes), err)
			   : status;
}

void settle_beside(const struct service *service, struct settled *out)
{
	struct error err;
	room_find(&out->limit, &service->needs, store_bytes(&service->store), &out->room);
	int status = budget_slots(
		service->config.budget, &service->geometry, out->room.bytes, &out->budget, &err);
	assert(status == 0);
	(void)status;
}

uint32_t settle_again(
	const struct service *service, const struct settled *settled, uint32_t n_slots)
{
	const struct slots_geometry *geometry = &service->geometry;
	const struct memory_limit all = {.bytes = settled->limit.bytes, .available = UINT64_MAX};
	uint32_t before = service->store.slots.header->automatic;
	struct room room;
	room_find(&all, &service->needs, 0, &room);
	bool sound = before >= slots_min(geometry) && before <= geometry->n_total &&
		     before * geometry->slot_bytes <= budget_automatic(geometry, room.bytes);
	return sound ? before : n_slots;
}

void settle_say(const struct service *service, const char *text, const struct settled *settled)
{
	char notice[512];
	budget_notice(text, &settled->budget, &service->geometry, &settled->room,
		settled->limit.where, notice, sizeof(notice));
	if (notice[0] != '\0')
		log_notice("%s", notice);
}
