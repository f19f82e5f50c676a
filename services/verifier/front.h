/*
 * The client front: sessions as clients see them, on the daemon's loop thread. It reads the session pages while the
 * engine writes them, sends what each client has granted, and never waits for a client. handlers.c is its message
 * switch, admin.c its answers to administrators, links.c its connections to the other processes.
 */
#pragma once

#include "services/verifier/engine.h"
#include "services/verifier/request.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/link.h"

/* One session's client. Index = that of slot and page. */
struct front_session {
	bool used;
	bool attached; /* client is an address that answered last time */
	bool done_sent;
	bool full; /* its socket took the last message not: it reads too slowly, or not at all */
	struct bus_address client;
	uint64_t request_id;
	uint32_t sent; /* output tokens given to the socket */
	uint32_t
		fed; /* output tokens whose text went through the stream; >= sent once it caught up */
	uint32_t credit;
	struct text_stream text;
	char *pending; /* text that has not been sent yet */
	size_t n_pending, capacity;
	uint64_t heard_ns, done_ns;
	uint64_t blocked_ns; /* since when only its client can make it go on; 0: it is not so */
};

struct options;

struct front {
	struct daemon *daemon;
	const struct verifier_config *config;
	const struct model *model;
	const struct tokenizer *tokenizer;
	const struct kernels *kernels;
	struct regions *regions;
	const struct region *packed; /* the weights', its header NULL without one */
	struct engine *engine;
	void *socket;
	struct slot slots[LIMIT_SESSIONS];
	struct front_session sessions[LIMIT_SESSIONS];
	uint64_t alive_seen;
	uint64_t admitted; /* sessions, ever: the newest one's number */

	struct broker *broker;
	struct link *cache_link, *policy_link; /* set before the engine starts; NULL: not wanted */
	uint64_t experts_uid, hints_uid;
	struct region experts_head; /* of the expert-cache's region, for needs; no descriptor */
	struct slots_needs
		needs; /* what the expert-cache was told last; set before the links are made */
	struct region policy_region;
	struct policy_page *policy;
	bool drafter_here;
	bool model_lost; /* and the log says so */
	char state[384];
};

/* Pages a predecessor left: goes on with them where they are sound. After engine_create, before engine_start. */
void front_recover(struct front *front);
void front_close(struct front *front); /* frees what sessions hold; pages stay */

/* Index of a session, or -1. */
int front_find(const struct front *front, uint64_t uid);
/* A free index for a new session, making room by letting go of one that is finished and either delivered or without a
 * client; -EAGAIN with the reason and the numbers when the queue is full. */
int front_place(struct front *front, struct error *err);
/* Fills page and slot, hands them to the engine. */
int front_begin(struct front *front, uint32_t index, uint64_t uid,
	const struct session_request *request, const struct request_input *input,
	const int32_t *replay, struct error *err);
/* From now on the session's tokens go to this client, from output token `have` on. A finished answer whose hashes are lost
 * is the engine's again, which makes those. */
void front_bind(struct front *front, uint32_t index, const struct bus_address *client,
	uint64_t request_id, uint32_t have, uint32_t credit);
void front_credit(struct front *front, uint32_t index, uint32_t credit);

/* Daemon handlers; arg is the front. */
void front_pump(void *arg); /* the engine has something */
void front_tick(void *arg); /* timer: clients that went silent, finished sessions, state */
bool front_alive(void *arg);

/* stream.c: sends one session what it may have. False: the client took no more for now. */
bool stream_session(struct front *front, uint32_t index);
/* Begins the stream again at output token `from`. */
void stream_reset(struct front *front, uint32_t index, uint32_t from);

/* handlers.c: daemon handler of the client socket. */
void handlers_client(void *arg);

/* knobs.c: the settings that change while the process runs. options: what main was started with. After engine_create. */
int knobs_open(struct front *front, struct verifier_config *config, const struct options *options,
	struct error *err);

/* admin.c: daemon_admin handler, and status details. */
int admin_handle(void *arg, const Outrider__Envelope *request, Outrider__Envelope *reply);
void admin_detail(void *arg, struct daemon_details *to);

/* links.c: the processes beside this one. */
int links_open(struct front *front, struct error *err);
void links_close(struct front *front);
bool links_cache_alive(void *arg);
int links_broker_open(struct front *front, struct error *err);
void links_state(struct front *front);
/* Now and then: tells the expert-cache what the verifier's memory has grown to. */
void links_needs(struct front *front);
