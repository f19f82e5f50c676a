#include "shared/base/uids.h"

#include <string.h>

enum { MASK = UIDS_PLACES - 1 };

/* Clients choose uids, mostly at random. A client that chooses them badly only makes its own
 * lookups slower. */
static uint32_t home_of(uint64_t uid)
{
	return (uint32_t)((uid * 0x9E3779B97F4A7C15u) >> 32) & MASK;
}

/* The place where the uid is, or where it would be put. */
static uint32_t place_of(const struct uids *uids, uint64_t uid)
{
	uint32_t i = home_of(uid);

	while (uids->places[i].uid != 0 && uids->places[i].uid != uid)
		i = (i + 1) & MASK;
	return i;
}

void uids_put(struct uids *uids, uint64_t uid, uint32_t index)
{
	assert(uid != 0);
	uids->places[place_of(uids, uid)] = (struct uids_place){uid, index};
}

int uids_find(const struct uids *uids, uint64_t uid)
{
	const struct uids_place *place = &uids->places[place_of(uids, uid)];

	return uid != 0 && place->uid == uid ? (int)place->index : -1;
}

void uids_remove(struct uids *uids, uint64_t uid)
{
	uint32_t hole = place_of(uids, uid);

	if (uid == 0 || uids->places[hole].uid != uid)
		return;
	/* Entries that follow move up, unless they would then lie before their home. */
	for (uint32_t i = (hole + 1) & MASK; uids->places[i].uid != 0; i = (i + 1) & MASK) {
		uint32_t home = home_of(uids->places[i].uid);

		if (((i - home) & MASK) < ((i - hole) & MASK))
			continue;
		uids->places[hole] = uids->places[i];
		hole = i;
	}
	memset(&uids->places[hole], 0, sizeof(uids->places[hole]));
}
