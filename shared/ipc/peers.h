/*
 * The process graph, stated once (peers.c): which process connects to which, and which regions each owns. Nothing
 * else connects. A process listens on RUNTIME_DIR/NAME.sock (regions, liveness: broker.h, link.h) and
 * ipc://RUNTIME_DIR/NAME.ctl (administrators, and its peers' messages: registry.h); the verifier also on
 * ipc://RUNTIME_DIR/client (clients).
 *
 *	drafter       -> verifier (sessions, draft, supports), expert-cache (experts), policy (policy)
 *	verifier      -> expert-cache (experts), policy (policy)
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define PEER_VERIFIER "verifier"
#define PEER_DRAFTER "drafter"
#define PEER_CACHE "expert-cache"
#define PEER_POLICY "policy"
/* A client like others: it shares no region, and registers with nobody. */
#define PEER_GATEWAY "gateway"

/* In the environment of the processes that `outrider up` starts, and of no others: all four are in its control group, and share
 * its limits. */
#define PEERS_TOGETHER "OUTRIDER_TOGETHER"

bool peers_may_connect(const char *from, const char *to);
/* The names of the four, ended by NULL. */
extern const char *const peers_all[];
/* Whether name is one of the four. */
bool peers_known(const char *name);
/* Who makes a region, and so may ask for it back from those who keep it; NULL for a name nobody owns. */
const char *peers_region_owner(const char *region);
/* Whether the process, which does not own the region, writes to it all the same: it is given a descriptor for that. All others
 * read, or keep it for the owner's successor, and get one that is O_RDONLY. */
bool peers_region_writer(const char *region, const char *name);

/* --runtime-dir, else OUTRIDER_RUNTIME_DIR, else $RUNTIME_DIRECTORY (systemd), else $XDG_RUNTIME_DIR/outrider, else
 * /run/outrider (root) or /tmp/outrider-UID; made absolute. Creates it (0700) when make; fails by name when it
 * belongs to another user, or others may write to it, or its socket paths would be too long, and with -ENOENT when it is not there and make is
 * false. */
int peers_runtime_dir(const char *flag, bool make, char *out, size_t out_bytes, struct error *err);
/* Paths and endpoints inside it. */
void peers_socket_path(const char *runtime_dir, const char *name, char *out, size_t out_bytes);
void peers_lock_path(const char *runtime_dir, const char *name, char *out, size_t out_bytes);
/* Whether who listens at this path may still be starting, and be silent for that alone: the socket was made less than
 * PEERS_START_S ago. */
enum { PEERS_START_S = 90 }; /* what systemd and `outrider up` give a process until it is ready */
bool peers_starting(const char *socket_path);
void peers_admin_endpoint(const char *runtime_dir, const char *name, char *out, size_t out_bytes);
void peers_client_endpoint(const char *runtime_dir, char *out, size_t out_bytes);
