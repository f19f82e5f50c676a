/*
 * The packets between link.c, broker.c and broker_recover.c, one SOCK_SEQPACKET message each. Fixed structs: both ends
 * are built from one tree, and the version refuses another. Descriptors travel beside an answer (SCM_RIGHTS),
 * and give who asks the right that peers.h says it has: to write, or to read.
 * A kind of hello may be added without a new version, if who asks can do without an answer: a broker from before refuses it
 * ("hello of unknown kind"), and goes on with everything else.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define HELLO_VERSION 1

enum hello_kind {
	HELLO_JOIN = 1, /* a peer: give me your regions, and tell me of new ones */
	HELLO_RECOVER, /* the owner's successor: give me back the region you keep of mine */
	HELLO_FORGET, /* the same: keep it no longer; answered by no region */
	HELLO_LOOK, /* who may join, but does not: give me the one region, if you offer it */
};

struct hello {
	uint32_t magic, version;
	uint32_t kind;
	int32_t pid;
	uint64_t generation;
	char name[LIMIT_NAME]; /* of the sender */
	char region[LIMIT_NAME]; /* to recover, forget or look at */
};

enum hello_answer_kind {
	HELLO_REGIONS = 1, /* n descriptors beside it; sent again when the set changes */
	HELLO_REFUSED, /* with the reason, and the connection ends */
};

struct hello_answer {
	uint32_t magic, version;
	uint32_t kind, n;
	uint64_t generation;
	char name[LIMIT_NAME]; /* of the sender */
	char regions[LIMIT_REGIONS][LIMIT_NAME];
	char reason[160];
};

/* Fill in what every packet has. */
void hello_init(struct hello *hello, enum hello_kind kind, const char *name, uint64_t generation);
void hello_answer_init(struct hello_answer *answer, enum hello_answer_kind kind, const char *name,
	uint64_t generation);

/* Whole packets, without waiting; -EAGAIN when there is no room or nothing came. fds: n_fds descriptors that go beside. */
int hello_send(int socket, const void *packet, size_t bytes, const int *fds, size_t n_fds);

/* Receive one packet of exactly that kind. 0, -EAGAIN, -ECONNRESET when the other end is gone, -EPROTO with the
 * reason. Every string in *out is then terminated. fds: LIMIT_REGIONS places; those received are the caller's. Descriptors
 * of a bad packet are closed. */
int hello_receive(int socket, struct hello *out, struct error *err);
int hello_answer_receive(int socket, struct hello_answer *out, int *fds, struct error *err);

/* The other end runs as our user, or root. */
int hello_check_user(int socket, struct error *err);
/* The process at the other end, as the kernel has it; 0 where it does not say. */
uint32_t hello_pid(int socket);
/* Non-blocking connect to a broker's socket; -ENOENT, -ECONNREFUSED, -EAGAIN. */
int hello_connect(const char *path, int *socket);
