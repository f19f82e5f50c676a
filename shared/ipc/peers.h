/*
 * The process graph, stated once (peers.c): which process connects to which, and which regions each
 * owns. Processes talk along these connections only. In addition, an owner may ask every process
 * for a region that it keeps for the owner (broker_recover).
 *
 * A process listens on RUNTIME_DIR/NAME.sock (regions, liveness: broker.h, link.h) and on
 * ipc://RUNTIME_DIR/NAME.ctl (administrators, and messages of peers: registry.h). The verifier also
 * listens on ipc://RUNTIME_DIR/client (clients). The functions are pure apart from
 * peers_runtime_dir, peers_starting and peers_runs; any thread.
 *
 * The connections, with the regions that each process uses of its peer's. (It gets all regions that
 * the peer offers, and keeps them for the peer's successor.)
 *
 *   drafter  -> verifier (sessions, draft, supports, hidden), expert-cache (experts, hints),
 *               policy (policy)
 *   verifier -> expert-cache (experts, hints, digest, and with
 *               a device experts.dev and experts.mem), policy (policy)
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PEER_VERIFIER "verifier"
#define PEER_DRAFTER "drafter"
#define PEER_CACHE "expert-cache"
#define PEER_POLICY "policy"
/* An ordinary client: it shares no region and registers with no process. */
#define PEER_GATEWAY "gateway"

/* Environment variable of the processes that `outrider up` starts, and of no others: all four are
 * in its control group and share the group's limits. */
#define PEERS_TOGETHER "OUTRIDER_TOGETHER"

bool peers_may_connect(const char *from, const char *to);
/* The names of the four processes, ended by NULL. */
extern const char *const peers_all[];
/* True when name is one of the four. */
bool peers_known(const char *name);
/* The process that makes a region, and so may ask its keepers for it; NULL for an unknown region.
 */
const char *peers_region_owner(const char *region);
/* True when the process does not own the region but writes to it, and so gets a descriptor for
 * writing. All others read it or keep it for the owner's successor, and get an O_RDONLY descriptor.
 */
bool peers_region_writer(const char *region, const char *name);
/* True when the name is not a region's, but that of memory of a device (broker_offer_fd). */
bool peers_region_memory(const char *region);

/* Finds the runtime directory: --runtime-dir, else OUTRIDER_RUNTIME_DIR, else $RUNTIME_DIRECTORY
 * (systemd), else $XDG_RUNTIME_DIR/outrider, else /run/outrider (root) or /tmp/outrider-UID; made
 * absolute. `make` creates it with mode 0700. Fails, with the reason, when the directory belongs to
 * another user, when others may write to it, or when its socket paths would be too long; -ENOENT
 * when it does not exist and make is false. */
int peers_runtime_dir(const char *flag, bool make, char *out, size_t out_bytes, struct error *err);
/* Paths and endpoints inside it. */
void peers_socket_path(const char *runtime_dir, const char *name, char *out, size_t out_bytes);
void peers_lock_path(const char *runtime_dir, const char *name, char *out, size_t out_bytes);
/* Seconds that systemd and `outrider up` give a process to become ready. */
enum { PEERS_START_S = 90 };
/* True when the socket at this path is less than PEERS_START_S old: its process may still be
 * starting, which would explain its silence. */
bool peers_starting(const char *socket_path);
/* True when a process of this name runs there, which may not listen yet: it holds its lock. *pid: 0 where
 * that is not known. */
bool peers_runs(const char *runtime_dir, const char *name, pid_t *pid);
void peers_admin_endpoint(const char *runtime_dir, const char *name, char *out, size_t out_bytes);
void peers_client_endpoint(const char *runtime_dir, char *out, size_t out_bytes);
