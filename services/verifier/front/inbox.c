#include "services/verifier/front/inbox.h"

#include "shared/base/clock.h"

#include <stdlib.h>
#include <string.h>

bool inbox_same_client(const struct bus_address *a, const struct bus_address *b)
{
	uint32_t uid, pid_a = 0, pid_b = 0;

	/* Process 0 is one of another container. */
	if (bus_peer(a, &uid, &pid_a) && bus_peer(b, &uid, &pid_b) && pid_a != 0 && pid_b != 0)
		return pid_a == pid_b;
	return bus_same(a, b);
}

/* A client that has nothing here joins the current round, another the one after its last. */
static uint64_t round_of(const struct inbox *inbox, const struct bus_address *client)
{
	uint64_t round = inbox->round;

	for (const struct inbox_entry *e = inbox->first; e != NULL; e = e->next)
		if (e->round >= round && inbox_same_client(&e->client, client))
			round = e->round + 1;
	return round;
}

/* As bytes: unpacked, a message may be many times as large. */
static bool pack(struct inbox_entry *entry, const Outrider__Generate *generate)
{
	Outrider__Generate known = *generate;

	known.base.n_unknown_fields = 0;
	entry->packed_bytes = entry->bytes = outrider__generate__get_packed_size(&known);
	entry->packed = malloc(entry->bytes);
	if (entry->packed == NULL)
		return false;
	outrider__generate__pack(&known, entry->packed);
	return true;
}

struct inbox_entry *inbox_add(struct inbox *inbox, const struct bus_address *client, uint64_t uid,
	const Outrider__Generate *generate)
{
	struct inbox_entry *entry = calloc(1, sizeof(*entry)), **link = &inbox->first;

	if (entry == NULL || (generate != NULL && !pack(entry, generate))) {
		free(entry);
		return NULL;
	}
	entry->client = *client;
	entry->uid = uid;
	entry->returns = entry->read = generate == NULL;
	entry->since_ns = clock_ns();
	entry->round = round_of(inbox, client);
	while (*link != NULL)
		link = &(*link)->next;
	*link = entry;
	inbox->n++;
	inbox->bytes += entry->bytes;
	return entry;
}

int inbox_read(struct inbox *inbox, struct inbox_entry *entry, const struct request_limits *limits,
	struct error *err)
{
	Outrider__Generate *generate =
		outrider__generate__unpack(NULL, entry->packed_bytes, entry->packed);

	if (generate == NULL)
		return error_set(
			err, ENOMEM, "no memory for a request of %zu bytes", entry->packed_bytes);
	int rc = request_read(
		generate, limits, entry->since_ns, &entry->request, &entry->input, err);
	outrider__generate__free_unpacked(generate, NULL);
	free(entry->packed);
	entry->packed = NULL;
	entry->read = true;
	inbox->bytes -= entry->bytes;
	entry->bytes = (entry->input.n_prompt + entry->request.n_replay) * sizeof(int32_t);
	inbox->bytes += entry->bytes;
	return rc;
}

void inbox_remove(struct inbox *inbox, struct inbox_entry *entry)
{
	struct inbox_entry **link = &inbox->first;

	while (*link != entry)
		link = &(*link)->next;
	*link = entry->next;
	inbox->n--;
	inbox->bytes -= entry->bytes;
	free(entry->packed);
	request_input_free(&entry->input);
	free(entry);
}

void inbox_clear(struct inbox *inbox)
{
	while (inbox->first != NULL)
		inbox_remove(inbox, inbox->first);
}

struct inbox_entry *inbox_find(const struct inbox *inbox, uint64_t uid)
{
	for (struct inbox_entry *e = inbox->first; e != NULL; e = e->next)
		if (e->uid == uid)
			return e;
	return NULL;
}

struct inbox_entry *inbox_unread(struct inbox *inbox)
{
	struct inbox_entry *next = NULL;

	for (struct inbox_entry *e = inbox->first; e != NULL; e = e->next)
		if (!e->read && (next == NULL || e->round < next->round))
			next = e;
	if (next != NULL)
		inbox->round = next->round;
	return next;
}

uint32_t inbox_count(const struct inbox *inbox, const struct bus_address *client, size_t *bytes)
{
	uint32_t n = 0;

	*bytes = 0;
	for (const struct inbox_entry *e = inbox->first; e != NULL; e = e->next) {
		if (!inbox_same_client(&e->client, client))
			continue;
		n++;
		*bytes += e->bytes;
	}
	return n;
}
