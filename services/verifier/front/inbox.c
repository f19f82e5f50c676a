#include "services/verifier/front/inbox.h"

#include "shared/base/clock.h"

#include <stdlib.h>
#include <string.h>

bool inbox_same_client(const struct bus_address *a, const struct bus_address *b)
{
	uint32_t uid, pid_a = 0, pid_b = 0;

	/* Process 0 is one in another container. */
	if (bus_peer(a, &uid, &pid_a) && bus_peer(b, &uid, &pid_b) && pid_a != 0 && pid_b != 0)
		return pid_a == pid_b;
	return bus_same(a, b);
}

static bool is_question(const struct inbox_entry *entry)
{
	return entry->reading != NULL && entry->reading->is_question;
}

/* A client with nothing here joins the current round, another the round after its last. */
static uint64_t round_of(const struct inbox *inbox, const struct bus_address *client)
{
	uint64_t round = inbox->round;

	for (const struct inbox_entry *e = inbox->first; e != NULL; e = e->next)
		if (e->round >= round && inbox_same_client(&e->client, client))
			round = e->round + 1;
	return round;
}

/* Notes the client's number, and how many of its entries are not read yet. */
static void join_sender(struct inbox *inbox, struct inbox_entry *entry)
{
	for (const struct inbox_entry *e = inbox->first; e != NULL; e = e->next) {
		if (!inbox_same_client(&e->client, &entry->client) || is_question(e))
			continue;
		entry->sender = e->sender;
		entry->behind += !e->read;
	}
	if (entry->sender == 0)
		entry->sender = ++inbox->senders;
}

/* The entries behind it need not wait for it any more. */
static void pass_on(struct inbox_entry *entry)
{
	for (struct inbox_entry *e = entry->next; e != NULL; e = e->next)
		if (e->sender == entry->sender)
			e->behind--;
}

/* Appends an entry, which takes the reading; NULL: there is nothing to read. */
static struct inbox_entry *append(struct inbox *inbox, const struct bus_address *client,
	uint64_t uid, struct reading *reading)
{
	struct inbox_entry *entry = calloc(1, sizeof(*entry)), **link = &inbox->first;

	if (entry == NULL) {
		reading_free(&reading);
		return NULL;
	}
	entry->reading = reading;
	if (reading != NULL) {
		reading->entry = entry;
		entry->bytes = reading->packed_bytes;
	}
	entry->client = *client;
	entry->uid = uid;
	entry->begun = entry->read = reading == NULL;
	entry->round = round_of(inbox, client);
	if (reading != NULL && reading->is_question)
		/* A question has a sender of its own, because it need not wait for the client's
		 * requests. */
		entry->sender = ++inbox->senders;
	else
		join_sender(inbox, entry);
	inbox->n_questions += reading != NULL && reading->is_question;
	while (*link != NULL)
		link = &(*link)->next;
	*link = entry;
	inbox->n++;
	inbox->bytes += entry->bytes;
	return entry;
}

struct inbox_entry *inbox_add(struct inbox *inbox, const struct bus_address *client, uint64_t uid,
	const Outrider__Generate *generate)
{
	struct reading *reading = NULL;

	if (generate != NULL && (reading = reading_create(generate, clock_ns())) == NULL)
		return NULL;
	return append(inbox, client, uid, reading);
}

struct inbox_entry *inbox_ask(struct inbox *inbox, const struct bus_address *client,
	const Outrider__TextRequest *question)
{
	struct reading *reading = reading_create_question(question, clock_ns());

	return reading != NULL ? append(inbox, client, 0, reading) : NULL;
}

void inbox_read(struct inbox *inbox, struct inbox_entry *entry)
{
	const struct reading *reading = entry->reading;

	pass_on(entry);
	entry->begun = entry->read = true;
	inbox->bytes -= entry->bytes;
	entry->bytes = (reading->input.n_prompt + reading->request.n_replay) * sizeof(int32_t);
	inbox->bytes += entry->bytes;
}

void inbox_remove(struct inbox *inbox, struct inbox_entry *entry)
{
	struct inbox_entry **link = &inbox->first;

	while (*link != entry)
		link = &(*link)->next;
	*link = entry->next;
	inbox->n--;
	inbox->n_questions -= is_question(entry);
	inbox->bytes -= entry->bytes;
	if (!entry->read)
		pass_on(entry);
	if (entry->begun && !entry->read)
		entry->reading->entry = NULL;
	else
		reading_free(&entry->reading);
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
		if (e->uid == uid && !is_question(e))
			return e;
	return NULL;
}

static enum reader_lane lane_of(const struct inbox_entry *entry)
{
	return entry->reading->packed_bytes <= READER_SHORT_BYTES ? READER_SHORT : READER_LONG;
}

struct inbox_entry *inbox_unread(struct inbox *inbox, enum reader_lane lane)
{
	struct inbox_entry *next = NULL;

	for (struct inbox_entry *e = inbox->first; e != NULL; e = e->next)
		if (!e->begun && e->behind == 0 && lane_of(e) == lane &&
			(next == NULL || e->round < next->round))
			next = e;
	if (next != NULL && next->round > inbox->round)
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
		n += !is_question(e);
		*bytes += e->bytes;
	}
	return n;
}
