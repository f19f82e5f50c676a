#include "shared/base/clock.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/bus_private.h"
#include "shared/ipc/daemon_private.h"
#include "shared/ipc/link.h"
#include "shared/ipc/listener.h"
#include "shared/ipc/peers.h"
#include "tests/until.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "tests/ipc/registrant.h"

enum { EVENTS_MAX = 64 };

/* What a daemon was told of its peers, in order. */
struct event {
	char name[LIMIT_NAME];
	enum peer_standing standing;
	enum peer_stage stage;
	uint64_t generation;
};

/* A daemon in a thread of its own. */
struct rig {
	struct daemon *daemon;
	struct broker *broker;
	struct link *link;
	struct region region;
	pthread_t thread;
	pthread_mutex_t mutex;
	struct event events[EVENTS_MAX];
	size_t n;
	_Atomic int regions, lost, joined, left;
	_Atomic bool cut, alternate; /* to do, in the loop */
	_Atomic uint64_t needs;
	_Atomic uint64_t weights; /* that the peer told last, */
	_Atomic int stage; /* and its stage */
	_Atomic uint64_t turns, connections, held; /* of its server, by its loop */
	_Atomic uint32_t n_own;
};

static char dir[64];
static const struct peer_layout layouts[] = {{"sessions", 5}, {"draft", 4}, {"experts", 11}};
static const struct peer_self verifier_self = {
	.arithmetic = 3, .model = 77, .layouts = layouts, .n_layouts = 3};

static int setup(void **state)
{
	char command[128];

	(void)state;
	unsetenv("NOTIFY_SOCKET");
	snprintf(dir, sizeof dir, "/tmp/outrider-test-%d", (int)getpid());
	snprintf(command, sizeof command, "rm -rf %s", dir);
	return system(command) != 0 || mkdir(dir, 0700) < 0 ? -1 : 0;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof command, "rm -rf %s", dir);
	return system(command);
}

static void on_change(void *arg, const struct peer *peer)
{
	struct rig *rig = arg;
	struct event event = {.standing = peer->standing,
		.stage = peer->card.state.stage,
		.generation = peer->card.generation};

	memcpy(event.name, peer->card.name, sizeof event.name);
	pthread_mutex_lock(&rig->mutex);
	rig->weights = peer->card.settings.needs.weights;
	rig->stage = (int)event.stage;
	if (rig->n < EVENTS_MAX)
		rig->events[rig->n++] = event;
	pthread_mutex_unlock(&rig->mutex);
}

static size_t n_events(struct rig *rig)
{
	pthread_mutex_lock(&rig->mutex);
	size_t n = rig->n;
	pthread_mutex_unlock(&rig->mutex);
	return n;
}

static void on_joined(void *arg, const char *peer, int pid, uint64_t generation)
{
	(void)peer;
	(void)pid;
	(void)generation;
	((struct rig *)arg)->joined++;
}

static void on_left(void *arg, const char *peer)
{
	(void)peer;
	((struct rig *)arg)->left++;
}

static int on_regions(
	void *arg, const char *peer, const char *const *names, const int *fds, size_t n)
{
	(void)peer;
	(void)names;
	(void)fds;
	(void)n;
	((struct rig *)arg)->regions++;
	return 0;
}

static void on_lost(void *arg, const char *peer)
{
	(void)peer;
	((struct rig *)arg)->lost++;
}

/* In the loop: what only breaks from inside. */
static void turn(void *arg)
{
	struct rig *rig = arg;
	const struct bus_server *server = rig->daemon->admin_server;

	rig->turns++;
	if (rig->alternate)
		for (int i = 0; i < 2000; i++) {
			char text[401];

			memset(text, 'a' + i % 26, 400);
			text[400] = '\0';
			daemon_set_state(rig->daemon, "degraded: %s", text);
			registry_announce(rig->daemon);
		}
	for (uint32_t i = 0; rig->cut && i < server->n_slots; i++)
		if (server->slots[i] && server->slots[i]->own)
			shutdown(server->slots[i]->fd, SHUT_RDWR);
	rig->cut = false;
	if (rig->needs != 0) {
		const struct peer_settings settings = {
			.has_needs = 1, .needs = {.kv = rig->needs, .there = UINT64_MAX}};

		registry_tell(rig->daemon, PEER_DRAFTER, &settings);
		rig->needs = 0;
	}
	rig->connections = server->serial;
	rig->held = server->held;
	rig->n_own = server->n_own;
}

static void *run(void *arg)
{
	daemon_run(((struct rig *)arg)->daemon);
	return NULL;
}

static void start(struct rig *rig, const char *name, const struct peer_self *self)
{
	const struct daemon_options options = {.name = name, .runtime_dir = dir};
	const struct broker_events events = {.joined = on_joined, .left = on_left, .arg = rig};
	const struct link_events link_events = {.regions = on_regions, .lost = on_lost, .arg = rig};
	struct error err = {""};

	memset(rig, 0, sizeof *rig);
	pthread_mutex_init(&rig->mutex, NULL);
	assert_int_equal(daemon_create(&options, &rig->daemon, &err), 0);
	registry_describe(rig->daemon, self);
	registry_on_change(rig->daemon, on_change, rig);
	assert_int_equal(broker_open(rig->daemon, &events, &rig->broker, &err), 0);
	assert_int_equal(daemon_admin_open(rig->daemon, NULL, NULL, &err), 0);
	if (strcmp(name, PEER_DRAFTER) == 0)
		assert_int_equal(
			link_open(rig->daemon, PEER_VERIFIER, &link_events, &rig->link, &err), 0);
	assert_true(daemon_add_timer(rig->daemon, 2000000, turn, rig) > 0);
	daemon_ready(rig->daemon);
	assert_int_equal(pthread_create(&rig->thread, NULL, run, rig), 0);
}

static void stop(struct rig *rig)
{
	daemon_stop(rig->daemon, 0);
	pthread_join(rig->thread, NULL);
	link_close(&rig->link);
	broker_close(&rig->broker);
	daemon_destroy(&rig->daemon);
	pthread_mutex_destroy(&rig->mutex);
}

static void expect(struct rig *rig, size_t i, enum peer_standing standing, enum peer_stage stage,
	uint64_t generation)
{
	UNTIL(n_events(rig) > i);
	pthread_mutex_lock(&rig->mutex);
	struct event event = rig->events[i];
	pthread_mutex_unlock(&rig->mutex);
	assert_int_equal(event.standing, standing);
	assert_int_equal(event.stage, stage);
	assert_int_equal(event.generation, generation);
	assert_string_equal(event.name, PEER_DRAFTER);
}

static void send_change(struct registrant *r, int stage, const char *text)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__PeerChange change = OUTRIDER__PEER_CHANGE__INIT;
	Outrider__PeerState state = OUTRIDER__PEER_STATE__INIT;

	state.stage = (Outrider__PeerStage)stage;
	state.text = (char *)text;
	change.state = &state;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_PEER_CHANGE;
	envelope.peer_change = &change;
	assert_int_equal(bus_send(r->socket, &envelope), 0);
}

static void each_gets_the_others_card(void **state)
{
	struct peer_card card = registrant_card(PEER_DRAFTER, 9), got;
	struct registrant r;
	struct error err = {""};
	struct rig rig;

	(void)state;
	start(&rig, PEER_VERIFIER, &verifier_self);
	registrant_open(&r, dir, PEER_VERIFIER);
	Outrider__Envelope *answer = registrant_register(&r, &card);
	assert_int_equal(answer->body_case, OUTRIDER__ENVELOPE__BODY_PEER_REGISTERED);
	assert_int_equal(peer_card_read(answer->peer_registered->card, &got, &err), 0);
	bus_free(&answer);
	assert_string_equal(got.name, PEER_VERIFIER);
	assert_string_equal(got.version, OUTRIDER_VERSION);
	assert_int_equal(got.pid, getpid());
	assert_int_equal(got.generation, daemon_generation(rig.daemon));
	assert_int_equal(got.arithmetic, 3);
	assert_int_equal(got.model, 77);
	assert_int_equal(got.n_layouts, 3);
	assert_string_equal(got.layouts[2].region, "experts");
	assert_int_equal(got.layouts[2].layout, 11);
	assert_int_equal(got.state.stage, PEER_READY);
	expect(&rig, 0, PEER_REGISTERED, PEER_READY, 9);
	/* It never came to the broker, so its registration ends with its connection. */
	registrant_close(&r);
	expect(&rig, 1, PEER_GONE, PEER_READY, 9);
	stop(&rig);
}

/* A card is refused, and the answer has these words. */
static void refused(const struct peer_card *card, const char *const words[4])
{
	struct registrant r;

	registrant_open(&r, dir, PEER_VERIFIER);
	Outrider__Envelope *answer = registrant_register(&r, card);
	registrant_close(&r);
	assert_int_equal(answer->body_case, OUTRIDER__ENVELOPE__BODY_FAILURE);
	assert_int_equal(answer->request_id, 7);
	for (int i = 0; i < 4 && words[i]; i++)
		if (!strstr(answer->failure->message, words[i]))
			fail_msg("\"%s\" lacks \"%s\"", answer->failure->message, words[i]);
	bus_free(&answer);
}

static void set_layout(struct peer_card *card, size_t i, const char *region, uint32_t layout)
{
	snprintf(card->layouts[i].region, LIMIT_NAME, "%s", region);
	card->layouts[i].layout = layout;
	card->n_layouts = i + 1;
}

static void what_does_not_fit_is_refused_by_name(void **state)
{
	struct peer_card card, good = registrant_card(PEER_DRAFTER, 9);
	struct registrant r;
	struct rig rig;

	(void)state;
	start(&rig, PEER_VERIFIER, &verifier_self);
	strcpy(good.version, "9.8");
	card = good;
	card.protocol = PEER_PROTOCOL + 1;
	refused(&card, (const char *[4]){"drafter 9.8", "version 2", "verifier " OUTRIDER_VERSION,
			       "version 1"});
	card = good;
	set_layout(&card, 0, "policy", 1);
	set_layout(&card, 1, "sessions", 4);
	refused(&card, (const char *[4]){"region sessions", "layout 4 in drafter 9.8",
			       "layout 5 in verifier " OUTRIDER_VERSION});
	card = good;
	card.arithmetic = 2;
	refused(&card, (const char *[4]){"drafter 9.8", "arithmetic 2",
			       "verifier " OUTRIDER_VERSION, "arithmetic 3"});
	card = good;
	strcpy(card.name, "intruder");
	refused(&card, (const char *[4]){"intruder may not connect to verifier"});
	strcpy(card.name, PEER_POLICY);
	refused(&card, (const char *[4]){"policy may not connect to verifier"});
	strcpy(card.name, PEER_VERIFIER);
	refused(&card, (const char *[4]){"verifier may not connect to verifier"});
	assert_int_equal(n_events(&rig), 1);
	/* The refused are known by name, until a good one comes: a region of a third process is none of theirs. */
	card = good;
	card.arithmetic = 3;
	set_layout(&card, 0, "draft", 4);
	set_layout(&card, 1, "experts", 12);
	registrant_start(&r, dir, PEER_VERIFIER, &card);
	expect(&rig, 1, PEER_REGISTERED, PEER_READY, 9);
	registrant_close(&r);
	stop(&rig);
}

static void rubbish_is_refused_whole(void **state)
{
	struct peer_card card, good = registrant_card(PEER_DRAFTER, 9);
	struct registrant r;
	struct rig rig;

	(void)state;
	start(&rig, PEER_VERIFIER, &verifier_self);
	card = good;
	card.generation = 0;
	refused(&card, (const char *[4]){"generation 0"});
	card = good;
	card.state.stage = 0;
	refused(&card, (const char *[4]){"stage 0"});
	card.state.stage = 99;
	refused(&card, (const char *[4]){"stage 99", "1 to 6"});
	card = good;
	strcpy(card.state.text, "line\nof a log");
	refused(&card, (const char *[4]){"control character at byte 4"});
	card = good;
	set_layout(&card, 0, "draft", 4);
	set_layout(&card, 1, "draft", 4);
	refused(&card, (const char *[4]){"\"draft\" twice"});
	card = good;
	strcpy(card.name, "d\x1b[31m");
	refused(&card, (const char *[4]){"control character"});
	assert_int_equal(n_events(&rig), 0);

	/* Changes of nobody's, changes that say nothing, and answers to nothing are passed over. */
	registrant_open(&r, dir, PEER_VERIFIER);
	send_change(&r, PEER_READY, "");
	Outrider__Envelope *answer = registrant_register(&r, &good);
	assert_int_equal(answer->body_case, OUTRIDER__ENVELOPE__BODY_PEER_REGISTERED);
	bus_free(&answer);
	send_change(&r, 0, "");
	send_change(&r, 7, "");
	send_change(&r, PEER_READY, "\x7f");
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;
	Outrider__PeerRegistered registered = OUTRIDER__PEER_REGISTERED__INIT;
	Outrider__PeerRegister empty = OUTRIDER__PEER_REGISTER__INIT;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	envelope.failure = &failure;
	assert_int_equal(bus_send(r.socket, &envelope), 0);
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_PEER_REGISTERED;
	envelope.peer_registered = &registered;
	assert_int_equal(bus_send(r.socket, &envelope), 0);
	envelope.request_id = 8;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_PEER_REGISTER;
	envelope.peer_register = &empty;
	assert_int_equal(bus_send(r.socket, &envelope), 0);
	answer = registrant_receive(&r);
	assert_int_equal(answer->request_id, 8);
	assert_int_equal(answer->body_case, OUTRIDER__ENVELOPE__BODY_FAILURE);
	assert_non_null(strstr(answer->failure->message, "without a card"));
	bus_free(&answer);
	assert_int_equal(n_events(&rig), 1);
	registrant_close(&r);
	stop(&rig);
}

static void changes_arrive_in_order_either_way(void **state)
{
	struct peer_card card = registrant_card(PEER_DRAFTER, 9);
	struct registrant r;
	struct rig rig;
	size_t n = 1;

	(void)state;
	start(&rig, PEER_VERIFIER, &verifier_self);
	registrant_start(&r, dir, PEER_VERIFIER, &card);
	send_change(&r, PEER_DEGRADED, "no verifier");
	send_change(&r, PEER_DEGRADED, "no verifier"); /* nothing new */
	for (int stage = PEER_DRAINING; stage <= PEER_ENDED; stage++)
		send_change(&r, stage, "");
	for (int stage = PEER_DEGRADED; stage <= PEER_ENDED; stage++)
		expect(&rig, n++, PEER_REGISTERED, (enum peer_stage)stage, 9);

	daemon_set_state(rig.daemon, "degraded: no drafter");
	Outrider__Envelope *change = registrant_receive(&r);
	assert_int_equal(change->body_case, OUTRIDER__ENVELOPE__BODY_PEER_CHANGE);
	assert_int_equal(change->peer_change->state->stage, PEER_DEGRADED);
	assert_string_equal(change->peer_change->state->text, "no drafter");
	bus_free(&change);
	daemon_stop(rig.daemon, 0);
	change = registrant_receive(&r);
	assert_int_equal(change->peer_change->state->stage, PEER_STOPPING);
	bus_free(&change);
	registrant_close(&r);
	stop(&rig);
}

static void settings_are_told_with_the_card_and_when_they_change(void **state)
{
	struct peer_card card = registrant_card(PEER_DRAFTER, 9);
	struct registrant r;
	struct rig rig;

	(void)state;
	start(&rig, PEER_VERIFIER, &verifier_self);
	rig.needs = 77;
	UNTIL(rig.needs == 0);
	registrant_open(&r, dir, PEER_VERIFIER);
	card.settings = (struct peer_settings){.has_needs = 1, .needs = {.weights = 5}};
	Outrider__Envelope *answer = registrant_register(&r, &card);
	assert_int_equal(answer->peer_registered->card->settings->needs->kv, 77);
	assert_true(answer->peer_registered->card->settings->needs->there == UINT64_MAX);
	bus_free(&answer);
	expect(&rig, 0, PEER_REGISTERED, PEER_READY, 9);
	assert_int_equal(rig.weights, 5);
	/* The same again is no message; the next one is the answer to what was sent after it. */
	rig.needs = 77;
	UNTIL(rig.needs == 0);
	rig.needs = 78;
	Outrider__Envelope *change = registrant_receive(&r);
	assert_int_equal(change->body_case, OUTRIDER__ENVELOPE__BODY_PEER_CHANGE);
	assert_null(change->peer_change->state);
	assert_int_equal(change->peer_change->settings->needs->kv, 78);
	bus_free(&change);
	/* Either way; the state stays as it was. */
	struct peer_settings_message message;
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__PeerChange body = OUTRIDER__PEER_CHANGE__INIT;
	card.settings.needs.weights = 6;
	peer_settings_write(&card.settings, &message);
	body.settings = &message.settings;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_PEER_CHANGE;
	envelope.peer_change = &body;
	assert_int_equal(bus_send(r.socket, &envelope), 0);
	expect(&rig, 1, PEER_REGISTERED, PEER_READY, 9);
	assert_int_equal(rig.weights, 6);
	registrant_close(&r);
	stop(&rig);
}

static void a_share_is_read_as_it_was_written_unless_its_text_is_bad(void **state)
{
	struct peer_settings settings = {.share = {.asked = 5, .granted = 1}}, read;
	struct peer_settings_message message;
	char longer[LIMIT_PEER_TEXT + 1];

	(void)state;
	snprintf(settings.share.refusal, sizeof settings.share.refusal, "16 MiB are left");
	peer_settings_write(&settings, &message);
	peer_settings_read(&message.settings, &read);
	assert_memory_equal(&read, &settings, sizeof read);
	memset(longer, 'x', sizeof longer - 1);
	longer[sizeof longer - 1] = '\0';
	char *const bad[] = {longer, "two\nlines"};
	for (size_t i = 0; i < 2; i++) {
		message.share.refusal = bad[i];
		peer_settings_read(&message.settings, &read);
		assert_int_equal(read.share.asked, 0);
	}
	settings.share.asked = 0;
	peer_settings_write(&settings, &message);
	assert_null(message.settings.share);
}

static void a_later_start_takes_the_place_of_an_earlier_one(void **state)
{
	struct peer_card first = registrant_card(PEER_DRAFTER, 9),
			 second = registrant_card(PEER_DRAFTER, 10);
	struct registrant r, s;
	struct rig rig;

	(void)state;
	start(&rig, PEER_VERIFIER, &verifier_self);
	registrant_start(&r, dir, PEER_VERIFIER, &first);
	/* The same process by another connection is no news. */
	registrant_start(&s, dir, PEER_VERIFIER, &first);
	registrant_close(&r);
	registrant_start(&r, dir, PEER_VERIFIER, &second);
	expect(&rig, 0, PEER_REGISTERED, PEER_READY, 9);
	expect(&rig, 1, PEER_GONE, PEER_READY, 9);
	expect(&rig, 2, PEER_REGISTERED, PEER_READY, 10);
	refused(&first, (const char *[4]){"generation 9", "generation 10"});
	assert_int_equal(n_events(&rig), 3);
	/* One process has one name. */
	strcpy(second.name, PEER_CACHE);
	Outrider__Envelope *answer = registrant_register(&r, &second);
	assert_int_equal(answer->body_case, OUTRIDER__ENVELOPE__BODY_FAILURE);
	bus_free(&answer);
	registrant_close(&s);
	registrant_close(&r);
	stop(&rig);
}

static void a_flood_holds_nobody_up(void **state)
{
	struct peer_card card = registrant_card(PEER_DRAFTER, 9);
	struct registrant r, s;
	struct rig rig;

	(void)state;
	start(&rig, PEER_VERIFIER, &verifier_self);
	registrant_start(&r, dir, PEER_VERIFIER, &card);
	uint64_t before = rig.turns;
	for (int i = 0; i < 500; i++)
		send_change(&r, i % 2 ? PEER_READY : PEER_DEGRADED, "again and again");
	UNTIL(rig.turns > before + 2);
	/* And who does not read: two thousand states of 400 bytes each are more than may wait. */
	rig.alternate = true;
	UNTIL(rig.n_own == 0);
	rig.alternate = false;
	assert_true(rig.held <= LIMIT_HELD_BYTES);
	/* It registers again. */
	registrant_start(&s, dir, PEER_VERIFIER, &card);
	UNTIL(rig.n_own == 1);
	registrant_close(&s);
	registrant_close(&r);
	stop(&rig);
}

static void a_broken_connection_is_no_lost_peer(void **state)
{
	static struct rig verifier, drafter;

	(void)state;
	/* Before there is anybody to register with. */
	start(&drafter, PEER_DRAFTER, &(const struct peer_self){.n_layouts = 0});
	usleep(50000);
	start(&verifier, PEER_VERIFIER, &verifier_self);
	UNTIL(drafter.regions == 1 && verifier.joined == 1);
	assert_int_equal(n_events(&drafter), 1);
	for (int i = 0; i < 3; i++) {
		uint64_t serial = verifier.connections;

		(i == 1 ? &drafter : &verifier)->cut = true;
		UNTIL(verifier.connections > serial && verifier.n_own == 1);
	}
	assert_true(link_alive(drafter.link));
	assert_int_equal(drafter.lost, 0);
	assert_int_equal(verifier.left, 0);
	assert_int_equal(drafter.regions, 1);
	/* By the last connection, too. */
	daemon_set_state(drafter.daemon, "degraded: tired");
	UNTIL(verifier.stage == PEER_DEGRADED);
	uint64_t generation = daemon_generation(drafter.daemon);
	stop(&drafter);
	UNTIL(verifier.left == 1);
	/* Its last words came before its end. */
	size_t n = n_events(&verifier);
	assert_true(n >= 3);
	expect(&verifier, n - 1, PEER_GONE, PEER_ENDED, generation);
	stop(&verifier);
}

/* A verifier made of two sockets, which takes its time with the answer. */
static void a_change_while_it_registers_is_told(void **state)
{
	struct peer_card card = registrant_card(PEER_VERIFIER, 5);
	struct peer_card_message message;
	Outrider__Envelope *got = NULL, answer = OUTRIDER__ENVELOPE__INIT;
	Outrider__PeerRegistered body = OUTRIDER__PEER_REGISTERED__INIT;
	static struct rig drafter;
	struct bus_server *server;
	struct bus_address from;
	struct error err = {""};
	char endpoint[160], path[160];
	int fd;

	(void)state;
	peers_admin_endpoint(dir, PEER_VERIFIER, endpoint, sizeof endpoint);
	peers_socket_path(dir, PEER_VERIFIER, path, sizeof path);
	assert_int_equal(listener_open(path, SOCK_SEQPACKET, 1, &fd, &err), 0);
	assert_int_equal(bus_server(endpoint, BUS_ADMINS, &server, &err), 0);
	start(&drafter, PEER_DRAFTER, &(const struct peer_self){.n_layouts = 0});
	UNTIL(got || bus_receive_from(server, &from, &got, &err) == 0);
	assert_int_equal(got->body_case, OUTRIDER__ENVELOPE__BODY_PEER_REGISTER);
	assert_int_equal(got->peer_register->card->state->stage, PEER_READY);
	answer.request_id = got->request_id;
	bus_free(&got);
	daemon_set_state(drafter.daemon, "degraded: tired");
	uint64_t turns = drafter.turns;
	UNTIL(drafter.turns > turns + 2);
	peer_card_write(&card, &message);
	body.card = &message.card;
	answer.body_case = OUTRIDER__ENVELOPE__BODY_PEER_REGISTERED;
	answer.peer_registered = &body;
	assert_int_equal(bus_send_to(server, &from, &answer), 0);
	UNTIL(got || bus_receive_from(server, &from, &got, &err) == 0);
	assert_int_equal(got->body_case, OUTRIDER__ENVELOPE__BODY_PEER_CHANGE);
	assert_string_equal(got->peer_change->state->text, "tired");
	bus_free(&got);
	stop(&drafter);
	bus_server_close(&server);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_gets_the_others_card, setup, teardown),
		cmocka_unit_test_setup_teardown(
			what_does_not_fit_is_refused_by_name, setup, teardown),
		cmocka_unit_test_setup_teardown(rubbish_is_refused_whole, setup, teardown),
		cmocka_unit_test_setup_teardown(
			changes_arrive_in_order_either_way, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_later_start_takes_the_place_of_an_earlier_one, setup, teardown),
		cmocka_unit_test(a_share_is_read_as_it_was_written_unless_its_text_is_bad),
		cmocka_unit_test_setup_teardown(
			settings_are_told_with_the_card_and_when_they_change, setup, teardown),
		cmocka_unit_test_setup_teardown(a_flood_holds_nobody_up, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_broken_connection_is_no_lost_peer, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_change_while_it_registers_is_told, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
