#include "services/verifier/front/shelf.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <stdlib.h>
#include <string.h>

static struct shelved *oldest(const struct shelf *shelf)
{
	struct shelved *kept = shelf->first;

	while (kept != NULL && kept->returning)
		kept = kept->next;
	return kept;
}

/* Its client has not asked for it, and is told that it is dropped. */
static void drop(struct shelf *shelf, struct shelved *kept)
{
	if (shelf->dropped != NULL)
		shelf->dropped(shelf->arg, kept);
	shelf_remove(shelf, kept);
}

static void make_room(struct shelf *shelf, size_t bytes)
{
	struct shelved *kept;

	while ((shelf->n >= LIMIT_SHELF_SESSIONS || shelf->bytes + bytes > LIMIT_SHELF_BYTES) &&
		(kept = oldest(shelf)) != NULL) {
		log_session(LOG_LEVEL_INFO, kept->uid, 0,
			"dropped: it has no place, and more sessions than are kept have none");
		drop(shelf, kept);
	}
}

void shelf_waits_again(struct shelved *kept)
{
	kept->returning = false;
	kept->since_ns = clock_ns();
}

struct shelved *shelf_put(struct shelf *shelf, const struct sessions_header *header,
	const struct session_page *page, struct session_page *shared)
{
	struct shelved *kept = calloc(1, sizeof(*kept)), **link = &shelf->first;

	if (kept != NULL)
		kept->page = journal_keep(header, page, shared, &kept->bytes);
	if (kept == NULL || kept->page == NULL) {
		free(kept);
		return NULL;
	}
	kept->uid = atomic_load_explicit(&page->uid, memory_order_relaxed);
	kept->since_ns = clock_ns();
	make_room(shelf, kept->bytes);
	while (*link != NULL)
		link = &(*link)->next;
	*link = kept;
	shelf->n++;
	shelf->bytes += kept->bytes;
	return kept;
}

struct shelved *shelf_find(const struct shelf *shelf, uint64_t uid)
{
	for (struct shelved *kept = shelf->first; kept != NULL; kept = kept->next)
		if (kept->uid == uid)
			return kept;
	return NULL;
}

void shelf_remove(struct shelf *shelf, struct shelved *kept)
{
	struct shelved **link = &shelf->first;

	while (*link != kept)
		link = &(*link)->next;
	*link = kept->next;
	shelf->n--;
	shelf->bytes -= kept->bytes;
	free(kept->page);
	stop_match_free(&kept->match);
	constraint_free(&kept->constraint);
	free(kept);
}

void shelf_expire(struct shelf *shelf, uint64_t now_ns, uint64_t timeout_ns, uint64_t asleep_ns)
{
	for (struct shelved *kept = shelf->first, *next; kept != NULL; kept = next) {
		next = kept->next;
		uint32_t how = atomic_load_explicit(&kept->page->asleep, memory_order_relaxed);
		if (!kept->returning &&
			now_ns - kept->since_ns > (how == SLEEP_TOLD ? asleep_ns : timeout_ns))
			drop(shelf, kept);
	}
}

void shelf_clear(struct shelf *shelf)
{
	while (shelf->first != NULL)
		shelf_remove(shelf, shelf->first);
}
