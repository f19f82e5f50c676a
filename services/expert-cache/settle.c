#include "services/expert-cache/settle.h"

#include "shared/base/log.h"

#include <assert.h>
#include <fcntl.h>

int settle(const struct service *service, const char *text, uint64_t had, struct settled *out,
	struct error *err)
{
	const struct slots_geometry *geometry = &service->geometry;
	const struct room_needs *needs = &service->needs;
	room_find(&out->limit, needs, had, &out->room);
	int status = budget_slots(text, geometry, out->room.bytes, &out->budget, err);
	/* auto has left room for what the verifier holds, or takes the minimum. An estimate refuses
	 * nothing. */
	uint64_t held = needs->said && !budget_is_auto(text) ? room_needs_held(needs) : 0;
	uint64_t limit_least = room_limit_least(needs, slots_min(geometry) * geometry->slot_bytes);
	return status == 0 ? budget_check_memory(&out->budget, &out->limit, had, held,
				     budget_automatic(geometry, out->room.bytes), limit_least, err)
			   : status;
}

uint64_t settle_there(int recovered_fd)
{
	struct region region;
	struct slots_needs said;
	struct error ignored;
	int fd = recovered_fd >= 0 ? fcntl(recovered_fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (fd < 0 ||
		region_attach(fd, EXPERTS_REGION, EXPERTS_LAYOUT,
			REGION_DATA + sizeof(struct slots_header), false, &region, &ignored) != 0)
		return 0;
	bool known = slots_needs_said(region_payload(&region), &said);
	region_close(&region);
	return known ? said.there : 0;
}

/* The budget in force, which is legal, within out->room. */
static void fit_budget(const struct service *service, struct settled *out)
{
	struct error err;
	int status = budget_slots(
		service->config.budget, &service->geometry, out->room.bytes, &out->budget, &err);
	assert(status == 0);
	(void)status;
}

void settle_beside(const struct service *service, struct settled *out)
{
	room_find(&out->limit, &service->needs, store_bytes(&service->store), &out->room);
	fit_budget(service, out);
}

/* Uses all memory there is, whoever uses it now. */
static void find_whole_room(
	const struct service *service, const struct memory_limit *limit, struct room *out)
{
	const struct memory_limit all = {.bytes = limit->bytes, .available = UINT64_MAX};
	room_find(&all, &service->needs, 0, out);
}

void settle_within(const struct service *service, struct settled *out)
{
	const struct settled *before = &service->settled;
	bool named = !budget_is_auto(service->config.budget);
	bool rose = out->limit.bytes > before->limit.bytes;
	if (named || rose) {
		settle_beside(service, out);
	} else {
		find_whole_room(service, &out->limit, &out->room);
		fit_budget(service, out);
	}
	if (named || rose == (out->budget.n_slots > service->budget))
		return;
	out->room = before->room;
	out->budget = (struct budget){.n_slots = service->budget,
		.bytes = service->budget * service->geometry.slot_bytes,
		.asked_bytes = service->budget * service->geometry.slot_bytes};
}

uint32_t settle_again(const struct service *service)
{
	const struct slots_geometry *geometry = &service->geometry;
	uint32_t before = service->store.slots.header->automatic;
	struct room room;
	find_whole_room(service, &service->settled.limit, &room);
	bool sound = before >= slots_min(geometry) && before <= geometry->n_total &&
		     before * geometry->slot_bytes <= budget_automatic(geometry, room.bytes);
	return sound ? before : service->budget;
}

void settle_say(const struct service *service, const char *text, const struct settled *settled)
{
	char notice[512];
	budget_notice(text, &settled->budget, &service->geometry, &settled->room,
		settled->limit.where, notice, sizeof(notice));
	if (notice[0] != '\0')
		log_notice("%s", notice);
}
