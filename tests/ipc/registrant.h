/* A process that registers as the test says it should: a client of libzmq's at an admin endpoint,
 * with a card of any content. */
#pragma once

#include "shared/ipc/bus.h"
#include "shared/ipc/peer_card.h"
#include "shared/ipc/peers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct registrant {
	void *zmq, *socket;
};

/* A card that a process of this build would have. */
static inline struct peer_card registrant_card(const char *name, uint64_t generation)
{
	struct peer_card card = {.protocol = PEER_PROTOCOL,
		.pid = (uint32_t)getpid(),
		.generation = generation,
		.state = {.stage = PEER_READY}};

	snprintf(card.name, sizeof card.name, "%s", name);
	snprintf(card.version, sizeof card.version, "%s", OUTRIDER_VERSION);
	return card;
}

static inline void registrant_open(struct registrant *r, const char *dir, const char *to)
{
	char endpoint[160];
	struct error err;

	peers_admin_endpoint(dir, to, endpoint, sizeof endpoint);
	assert_int_equal(bus_context(&r->zmq, &err), 0);
	assert_int_equal(bus_client(r->zmq, endpoint, &r->socket, &err), 0);
}

static inline void registrant_close(struct registrant *r)
{
	bus_close(&r->socket);
	assert_int_equal(zmq_ctx_term(r->zmq), 0);
}

/* The answer, to be freed with bus_free. */
static inline Outrider__Envelope *registrant_receive(struct registrant *r)
{
	Outrider__Envelope *answer;
	struct error err = {""};
	int code = bus_receive(r->socket, 10000, &answer, &err);

	if (code < 0)
		print_error("no answer to a registration: %s\n", err.text);
	assert_int_equal(code, 0);
	return answer;
}

static inline Outrider__Envelope *registrant_register(
	struct registrant *r, const struct peer_card *card)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__PeerRegister body = OUTRIDER__PEER_REGISTER__INIT;
	struct peer_card_message message;

	peer_card_write(card, &message);
	body.card = &message.card;
	envelope.request_id = 7;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_PEER_REGISTER;
	envelope.peer_register = &body;
	assert_int_equal(bus_send(r->socket, &envelope), 0);
	return registrant_receive(r);
}

/* Registers, and the other side accepts. */
static inline void registrant_start(
	struct registrant *r, const char *dir, const char *to, const struct peer_card *card)
{
	Outrider__Envelope *answer;

	registrant_open(r, dir, to);
	answer = registrant_register(r, card);
	assert_int_equal(answer->request_id, 7);
	assert_int_equal(answer->body_case, OUTRIDER__ENVELOPE__BODY_PEER_REGISTERED);
	assert_string_equal(answer->peer_registered->card->name, to);
	bus_free(&answer);
}
