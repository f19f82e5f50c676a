/*
 * The packets between link.c, broker.c and broker_recover.c: one SOCK_SEQPACKET message each. They
 * are fixed structs, because both ends are built from one tree and a version field refuses any
 * other. Descriptors travel with an answer (SCM_RIGHTS) and give the receiver the access that
 * peers.h grants it: writing or reading.
 *
 * A new kind of hello needs no new version if its sender can live with a refusal: an older broker
 * answers "hello of unknown kind" and goes on.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define HELLO_VERSION 1

enum hello_kind {
	HELLO_JOIN = 1, /* from a peer: give me your regions, and tell me of new ones */
	HELLO_RECOVER, /* from the owner's successor: give me the region that you keep for me */
	HELLO_FORGET, /* from the same: stop keeping it; answered with no region */
	/* from a process that may join but does not: give me this one region, if you offer it */
	HELLO_LOOK,
	/* from a peer that has joined: give me your regions once more */
	HELLO_AGAIN,
};

struct hello {
	uint32_t magic, version;
	uint32_t kind;
	int32_t pid;
	uint64_t generation;
	char name[LIMIT_NAME]; /* the sender's */
	char region[LIMIT_NAME]; /* the region to recover, forget or look at */
};

enum hello_answer_kind {
	HELLO_REGIONS = 1, /* n descriptors travel with it; sent again when the set changes */
	HELLO_REFUSED, /* with the reason; the connection ends */
};

struct hello_answer {
	uint32_t magic, version;
	uint32_t kind, n;
	uint64_t generation;
	char name[LIMIT_NAME]; /* the sender's */
	char regions[LIMIT_REGIONS][LIMIT_NAME];
	char reason[160];
};

/* Fill in the fields that every packet has. */
void hello_init(struct hello *hello, enum hello_kind kind, const char *name, uint64_t generation);
void hello_answer_init(struct hello_answer *answer, enum hello_answer_kind kind, const char *name,
	uint64_t generation);

/* Sends a whole packet, without waiting; -EAGAIN when there is no room. fds: n_fds descriptors to
 * send with it. */
int hello_send(int socket, const void *packet, size_t bytes, const int *fds, size_t n_fds);

/* Receive one packet of exactly that kind, without waiting. 0; -EAGAIN: nothing came; -ECONNRESET:
 * the other end is gone; -EPROTO with the reason. All strings in *out are terminated. fds: room for
 * LIMIT_REGIONS descriptors; those received are the caller's. The descriptors of a bad packet are
 * closed. -EMFILE: this process has no room for the descriptors that came, and got none. */
int hello_receive(int socket, struct hello *out, struct error *err);
int hello_answer_receive(int socket, struct hello_answer *out, int *fds, struct error *err);

/* Checks that the other end runs as our user or as root. */
int hello_check_user(int socket, struct error *err);
/* Pid of the process at the other end, from the kernel; 0 when the kernel does not tell. */
uint32_t hello_pid(int socket);
/* Connects to a broker's socket without waiting; -ENOENT, -ECONNREFUSED, -EAGAIN. */
int hello_connect(const char *path, int *socket);
