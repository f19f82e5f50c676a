#include "shared/ipc/daemon_private.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/ipc/peers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LAST_MESSAGES = 16 /* read from a process that has ended; it sends two */ };

static struct registry_entry *find(const struct daemon *daemon, const char *name)
{
	const struct registry *registry = &daemon->registry;

	for (size_t i = 0; i < REGISTRY_PEERS; i++)
		if (registry->entries[i].peer.name &&
			strcmp(registry->entries[i].peer.name, name) == 0)
			return (struct registry_entry *)&registry->entries[i];
	return NULL;
}

static struct registry_entry *find_connection(
	struct daemon *daemon, const struct bus_address *address)
{
	struct registry *registry = &daemon->registry;

	for (size_t i = 0; i < REGISTRY_PEERS; i++)
		if (bus_same(&registry->entries[i].address, address))
			return &registry->entries[i];
	return NULL;
}

const struct peer *registry_peer(const struct daemon *daemon, const char *name)
{
	const struct registry_entry *entry = find(daemon, name);

	return entry ? &entry->peer : NULL;
}

void registry_describe(struct daemon *daemon, const struct peer_self *self)
{
	daemon->registry.self = *self;
}

void registry_on_change(
	struct daemon *daemon, void (*changed)(void *arg, const struct peer *peer), void *arg)
{
	daemon->registry.changed = changed;
	daemon->registry.changed_arg = arg;
}

static void tell(struct daemon *daemon, struct registry_entry *entry)
{
	if (daemon->registry.changed)
		daemon->registry.changed(daemon->registry.changed_arg, &entry->peer);
}

static void set_standing(
	struct daemon *daemon, struct registry_entry *entry, enum peer_standing standing)
{
	if (entry->peer.standing == standing)
		return;
	entry->peer.standing = standing;
	entry->peer.since_ns = clock_ns();
	tell(daemon, entry);
}

/* ---- What this process tells its peers. ---- */

/* Splits the state line: "degraded: no drafter" is a stage and a text. */
static void state_now(struct daemon *daemon, struct peer_state *out)
{
	char state[STATE_BYTES];
	const char *text;

	memset(out, 0, sizeof *out);
	pthread_mutex_lock(&daemon->state_lock);
	memcpy(state, daemon->state, sizeof state);
	pthread_mutex_unlock(&daemon->state_lock);
	out->stage = atomic_load(&daemon->ready) ? PEER_READY : PEER_LOADING;
	for (int stage = PEER_LOADING; stage <= PEER_ENDED; stage++) {
		size_t n = strlen(peer_stage_names[stage]);

		if (strncmp(state, peer_stage_names[stage], n) == 0 &&
			(state[n] == '\0' || state[n] == ':'))
			out->stage = (enum peer_stage)stage;
	}
	text = strchr(state, ':');
	text = text ? text + 1 + strspn(text + 1, " ") : "";
	static_assert((int)STATE_BYTES <= (int)LIMIT_PEER_TEXT, "a state goes into a message");
	snprintf(out->text, sizeof out->text, "%s", text);
	error_tame(out->text);
}

static void card_now(struct daemon *daemon, struct peer_card *out)
{
	const struct peer_self *self = &daemon->registry.self;

	memset(out, 0, sizeof *out);
	out->protocol = PEER_PROTOCOL;
	memcpy(out->name, daemon->name, sizeof out->name);
	snprintf(out->version, sizeof out->version, "%s", OUTRIDER_VERSION);
	out->pid = (uint32_t)getpid();
	out->generation = daemon->start_ns;
	out->arithmetic = self->arithmetic;
	out->model = self->model;
	assert(self->n_layouts <= LIMIT_PEER_LAYOUTS);
	for (size_t i = 0; i < self->n_layouts; i++) {
		snprintf(out->layouts[i].region, LIMIT_NAME, "%s", self->layouts[i].region);
		out->layouts[i].layout = self->layouts[i].layout;
	}
	out->n_layouts = self->n_layouts;
	state_now(daemon, &out->state);
}

/* Makes the card for this peer. */
static void card_for(struct daemon *daemon, struct registry_entry *entry, struct peer_card *out)
{
	entry->told = atomic_load(&daemon->state_serial);
	entry->settings_told = true;
	card_now(daemon, out);
	out->settings = entry->settings;
}

static void hang_up(struct daemon *daemon, struct registry_entry *entry)
{
	bus_hang_up(daemon->admin_server, &entry->address);
	entry->address = (struct bus_address){0};
}

/* True when messages can be sent to the peer. */
static bool is_connected(const struct registry_entry *entry)
{
	return entry->address.connection != 0 && !entry->asks &&
	       entry->peer.standing == PEER_REGISTERED;
}

/* Sends a change. state and settings: NULL where unchanged. A peer that does not read, or is gone,
 * registers again. */
static void send_change(struct daemon *daemon, struct registry_entry *entry,
	const struct peer_state *state, const struct peer_settings *settings)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__PeerChange change = OUTRIDER__PEER_CHANGE__INIT;
	struct peer_settings_message settings_body;
	Outrider__PeerState state_body;

	if (state) {
		peer_state_write(state, &state_body);
		change.state = &state_body;
	}
	if (settings) {
		peer_settings_write(settings, &settings_body);
		change.settings = &settings_body.settings;
	}
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_PEER_CHANGE;
	envelope.peer_change = &change;
	/* The bus reports the end when it next looks at the connection. */
	if (bus_send_to(daemon->admin_server, &entry->address, &envelope) == -EAGAIN) {
		log_notice("%s does not read what %s tells it: they register again",
			entry->peer.name, daemon->name);
		hang_up(daemon, entry);
		if (entry->calls)
			entry->caller.broken(entry->caller.arg);
	}
}

void registry_announce(struct daemon *daemon)
{
	uint32_t serial = atomic_load(&daemon->state_serial);

	for (size_t i = 0; i < REGISTRY_PEERS; i++) {
		struct registry_entry *entry = &daemon->registry.entries[i];
		bool other_state = entry->told != serial, other_settings = !entry->settings_told;
		struct peer_state state;

		/* A peer that has not answered our card yet is told when it does. */
		if (!is_connected(entry) || (!other_state && !other_settings))
			continue;
		entry->told = serial;
		entry->settings_told = true;
		state_now(daemon, &state);
		send_change(daemon, entry, other_state ? &state : NULL,
			other_settings ? &entry->settings : NULL);
	}
}

void registry_tell(struct daemon *daemon, const char *name, const struct peer_settings *settings)
{
	struct registry_entry *entry = find(daemon, name);

	if (!entry || memcmp(&entry->settings, settings, sizeof *settings) == 0)
		return;
	entry->settings = *settings;
	entry->settings_told = false;
}

/* ---- What the peers tell this process. ---- */

static void say_registered(const struct daemon *daemon, const struct peer *peer)
{
	log_info("%s (process %u, version %s) and %s (process %d) have registered with each other",
		peer->name, peer->pid, peer->card.version, daemon->name, (int)getpid());
}

static void accept_card(struct daemon *daemon, struct registry_entry *entry,
	const struct bus_address *from, const struct peer_card *card)
{
	bool same = entry->peer.standing == PEER_REGISTERED &&
		    entry->peer.card.generation == card->generation;
	bool other_state =
		!same || memcmp(&entry->peer.card.state, &card->state, sizeof card->state) != 0;
	bool other_settings =
		memcmp(&entry->peer.card.settings, &card->settings, sizeof card->settings) != 0;

	/* A successor that registers before the end of its predecessor was seen. */
	if (entry->peer.standing == PEER_REGISTERED && !same)
		set_standing(daemon, entry, PEER_GONE);
	entry->joined = entry->joined && same;
	entry->address = *from;
	entry->peer.card = *card;
	entry->peer.pid = from->known && from->pid != 0 ? from->pid : card->pid;
	entry->peer.refusal[0] = '\0';
	entry->peer.standing = PEER_REGISTERED;
	if (other_state)
		entry->peer.since_ns = clock_ns();
	if (!same)
		say_registered(daemon, &entry->peer);
	if (other_state || other_settings)
		tell(daemon, entry);
}

static void mark_refused(struct daemon *daemon, struct registry_entry *entry, const char *reason)
{
	/* A refused process of the same name, perhaps a successor, changes nothing for the peer
	 * that is registered. */
	if (entry->peer.standing == PEER_REGISTERED)
		return;
	snprintf(entry->peer.refusal, sizeof entry->peer.refusal, "%s", reason);
	set_standing(daemon, entry, PEER_REFUSED);
}

/* Decides whether to accept a card from this connection; the error is for its sender. */
static int judge(struct daemon *daemon, const struct bus_address *from,
	const struct peer_card *card, struct error *err)
{
	const struct registry_entry *entry = find(daemon, card->name);
	struct peer_card own;

	if (!entry)
		return error_set(err, EPERM, "\"%s\" is no peer of %s", card->name, daemon->name);
	if (from->known && from->uid != geteuid() && from->uid != 0)
		return error_set(err, EPERM, "process %u belongs to user %u, not to %u", from->pid,
			from->uid, geteuid());
	card_now(daemon, &own);
	int code = peer_cards_fit(card, &own, err);
	if (code < 0)
		return code;
	if (entry->peer.standing == PEER_REGISTERED &&
		card->generation < entry->peer.card.generation)
		return error_set(err, EPERM,
			"%s of generation %llu came after one of generation %llu (process %u)",
			card->name, (unsigned long long)card->generation,
			(unsigned long long)entry->peer.card.generation, entry->peer.pid);
	return 0;
}

static void answer_registered(
	struct daemon *daemon, struct registry_entry *entry, uint64_t request_id)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__PeerRegistered registered = OUTRIDER__PEER_REGISTERED__INIT;
	struct peer_card_message message;
	struct peer_card own;

	card_for(daemon, entry, &own);
	peer_card_write(&own, &message);
	registered.card = &message.card;
	envelope.request_id = request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_PEER_REGISTERED;
	envelope.peer_registered = &registered;
	/* If the peer is gone, the bus reports it. */
	(void)bus_send_to(daemon->admin_server, &entry->address, &envelope);
}

static void on_register(struct daemon *daemon, const struct bus_address *from, uint64_t request_id,
	const Outrider__PeerRegister *body)
{
	struct registry_entry *entry;
	struct error err = {""};
	struct peer_card card;
	int code = peer_card_read(body->card, &card, &err);

	if (code == 0 && !peers_may_connect(card.name, daemon->name))
		code = error_set(
			&err, EPERM, "%.31s may not connect to %s", card.name, daemon->name);
	if (code == 0)
		code = judge(daemon, from, &card, &err);
	entry = find(daemon, card.name);
	const struct registry_entry *holder = find_connection(daemon, from);
	if (code == 0 && holder && holder != entry)
		code = error_set(&err, EPERM, "a second name on one connection: %s", card.name);
	if (code == 0 && !bus_claim(daemon->admin_server, from))
		code = error_set(&err, ENOSPC, "%s has too many peers", daemon->name);
	if (code < 0) {
		log_limited(
			LOG_LEVEL_NOTICE, "%s refuses a registration: %s", daemon->name, err.text);
		daemon_answer_failure(daemon, from, request_id, -code, err.text);
		if (entry && code == -EPROTO)
			mark_refused(daemon, entry, err.text);
		return;
	}
	if (!bus_same(&entry->address, from))
		hang_up(daemon, entry);
	accept_card(daemon, entry, from, &card);
	answer_registered(daemon, entry, request_id);
}

/* The answer of a peer that this process connected to. */
static void on_registered(struct daemon *daemon, struct registry_entry *entry,
	const struct bus_address *from, const Outrider__PeerRegistered *body)
{
	struct error err = {""};
	struct peer_card card;
	int code = peer_card_read(body->card, &card, &err);

	if (code == 0 && strcmp(card.name, entry->peer.name) != 0)
		code = error_set(
			&err, EPROTO, "%s answers in place of %s", card.name, entry->peer.name);
	if (code == 0)
		code = judge(daemon, from, &card, &err);
	if (code < 0) {
		hang_up(daemon, entry);
		mark_refused(daemon, entry, err.text);
		entry->caller.refused(entry->caller.arg, err.text);
		return;
	}
	accept_card(daemon, entry, from, &card);
	entry->caller.registered(entry->caller.arg);
}

static void on_refused(
	struct daemon *daemon, struct registry_entry *entry, const Outrider__Failure *failure)
{
	struct error err;

	snprintf(err.text, sizeof err.text, "%s refuses %s: %s", entry->peer.name, daemon->name,
		failure->code == EOPNOTSUPP
			? "it is of a version in which processes do not register: restart it"
			: failure->message);
	error_tame(err.text);
	hang_up(daemon, entry);
	if (entry->peer.standing == PEER_REGISTERED)
		entry->peer.standing = PEER_GONE;
	mark_refused(daemon, entry, err.text);
	entry->caller.refused(entry->caller.arg, err.text);
}

/* Takes over a state that differs from the last one. */
static void take_state(
	struct daemon *daemon, struct registry_entry *entry, const struct peer_state *state)
{
	entry->peer.card.state = *state;
	entry->peer.since_ns = clock_ns();
	log_info("%s tells %s that it is %s%s%s", entry->peer.name, daemon->name,
		peer_stage_names[state->stage], state->text[0] ? ": " : "", state->text);
}

static void on_change(struct daemon *daemon, struct registry_entry *entry,
	const struct bus_address *from, const Outrider__PeerChange *body)
{
	struct error err = {""};
	struct peer_card *card;
	struct peer_settings settings;
	struct peer_state state;

	if (!entry || entry->peer.standing != PEER_REGISTERED) {
		log_limited(LOG_LEVEL_NOTICE, "process %u tells its state without being registered",
			from->pid);
		return;
	}
	card = &entry->peer.card;
	settings = card->settings;
	state = card->state;
	if (body->state || !body->settings) {
		memset(&state, 0, sizeof state);
		if (peer_state_read(body->state, &state, &err) < 0) {
			log_limited(LOG_LEVEL_NOTICE, "%s: %s", entry->peer.name, err.text);
			return;
		}
	}
	if (body->settings)
		peer_settings_read(body->settings, &settings);
	bool other_state = memcmp(&state, &card->state, sizeof state) != 0;
	bool other_settings = memcmp(&settings, &card->settings, sizeof settings) != 0;

	card->settings = settings;
	if (other_state)
		take_state(daemon, entry, &state);
	if (other_state || other_settings)
		tell(daemon, entry);
}

bool registry_take(
	struct daemon *daemon, const struct bus_address *from, const Outrider__Envelope *envelope)
{
	if (envelope->body_case == OUTRIDER__ENVELOPE__BODY_PEER_REGISTER) {
		on_register(daemon, from, envelope->request_id, envelope->peer_register);
		return true;
	}
	struct registry_entry *entry = find_connection(daemon, from);
	bool asked = entry && entry->asks;

	switch (envelope->body_case) {
	case OUTRIDER__ENVELOPE__BODY_PEER_CHANGE:
		on_change(daemon, entry, from, envelope->peer_change);
		return true;
	case OUTRIDER__ENVELOPE__BODY_PEER_REGISTERED:
		if (asked) {
			entry->asks = false;
			on_registered(daemon, entry, from, envelope->peer_registered);
		}
		return true;
	case OUTRIDER__ENVELOPE__BODY_FAILURE:
		if (asked) {
			entry->asks = false;
			on_refused(daemon, entry, envelope->failure);
		}
		return true;
	default:
		return false;
	}
}

/* ---- Connections. ---- */

static void on_opened(void *arg, const struct bus_address *who)
{
	struct daemon *daemon = arg;
	struct registry_entry *entry = find_connection(daemon, who);
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__PeerRegister body = OUTRIDER__PEER_REGISTER__INIT;
	struct peer_card_message message;
	struct peer_card own;

	if (!entry)
		return;
	card_for(daemon, entry, &own);
	peer_card_write(&own, &message);
	body.card = &message.card;
	envelope.request_id = 1; /* the only request of a connection */
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_PEER_REGISTER;
	envelope.peer_register = &body;
	entry->asks = true;
	(void)bus_send_to(daemon->admin_server, who, &envelope);
}

static void on_gone(void *arg, const struct bus_address *who)
{
	struct daemon *daemon = arg;
	struct registry_entry *entry = find_connection(daemon, who);

	if (!entry)
		return;
	entry->address = (struct bus_address){0};
	entry->asks = false;
	/* A peer that is also connected to the broker may come back; the broker reports its end. */
	if (entry->peer.standing == PEER_REGISTERED && !entry->joined && !entry->calls)
		set_standing(daemon, entry, PEER_GONE);
	if (entry->calls)
		entry->caller.broken(entry->caller.arg);
}

void registry_open(struct daemon *daemon)
{
	size_t n = 0;

	for (size_t i = 0; peers_all[i]; i++)
		if (strcmp(peers_all[i], daemon->name) != 0 && n < REGISTRY_PEERS)
			daemon->registry.entries[n++].peer.name = peers_all[i];
	bus_on_opened(daemon->admin_server, on_opened, daemon);
	bus_on_gone(daemon->admin_server, on_gone, daemon);
}

int registry_call(struct daemon *daemon, const char *name, const struct registry_caller *caller)
{
	struct registry_entry *entry = find(daemon, name);
	char endpoint[160];

	if (!entry || !daemon->admin_server)
		return -EINVAL;
	peers_admin_endpoint(daemon->runtime_dir, name, endpoint, sizeof endpoint);
	hang_up(daemon, entry);
	entry->caller = *caller;
	entry->calls = true;
	entry->asks = false;
	return bus_connect(daemon->admin_server, endpoint, &entry->address);
}

/* Takes the messages that a process sent before its end: the kernel still has them, whichever
 * connection closed first. */
static void take_last(struct daemon *daemon, struct registry_entry *entry)
{
	for (int i = 0; i < LAST_MESSAGES && entry->address.connection != 0; i++) {
		const struct bus_address from = entry->address;
		Outrider__Envelope *envelope;
		struct error err;

		if (bus_receive_one(daemon->admin_server, &from, &envelope, &err) < 0)
			return;
		if (envelope->body_case == OUTRIDER__ENVELOPE__BODY_PEER_CHANGE)
			on_change(daemon, entry, &from, envelope->peer_change);
		bus_free(&envelope);
	}
}

void registry_part(struct daemon *daemon, const char *name, uint64_t generation, bool ends)
{
	const struct peer_state ended = {.stage = PEER_ENDED};
	struct registry_entry *entry = find(daemon, name);

	/* Another generation: this is the late end of a predecessor whose successor has registered.
	 */
	if (!entry || (generation != 0 && entry->peer.card.generation != generation))
		return;
	if (ends && is_connected(entry))
		send_change(daemon, entry, &ended, NULL);
	else
		take_last(daemon, entry);
	hang_up(daemon, entry);
	entry->joined = entry->calls = entry->asks = false;
	if (entry->peer.standing == PEER_REGISTERED)
		set_standing(daemon, entry, PEER_GONE);
}

int registry_join(struct daemon *daemon, const char *name, uint32_t pid, uint64_t generation,
	struct error *err)
{
	struct registry_entry *entry = find(daemon, name);

	if (!entry || entry->peer.standing != PEER_REGISTERED ||
		entry->peer.card.generation != generation ||
		(pid != 0 && entry->address.known && entry->peer.pid != pid))
		return error_set(err, EPERM, "%s has not registered with %s %s", name, daemon->name,
			OUTRIDER_VERSION);
	entry->joined = true;
	return 0;
}
