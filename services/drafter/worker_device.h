/*
 * The setting `device`: where a draft model or a head is computed. It begins on the CPU. When its
 * target is known, the loop thread asks the expert-cache for memory of the device, which it
 * shares out (proto/peer.proto, PeerShare), and brings the answer; the draft thread then moves the
 * model between two rounds. Without memory, or when the device is lost, the CPU drafts. Layers of the
 * target that are for drafts (mtp) are copied with their experts; where they take the embedding or the output
 * from the target, the device has these twice. Layer-skip stays on the CPU: it would need the whole model twice.
 *
 * The setting `arithmetic`: with auto, the device's own library (backend_ops.fast) multiplies the tokens
 * that a session is behind by, with F16 and BF16 weights, where there are many of them. What it drafts
 * then has other bits than the CPU's. No session whose answer depends on its drafts is read so: with
 * maximal coupling, or an expert budget, its tokens are computed exactly.
 *
 * Where a head depends on the target alone, the device is opened when such a target is there: others
 * take none of its memory.
 */
#pragma once

#include "services/drafter/worker.h"

/* Makes the back end that the setting asks for. Without a usable one the CPU drafts, and the log says why.
 * Before the draft thread starts, if there is a draft model or head then. */
void worker_device_open(struct worker *w);
/* Before the draft thread starts: gives the device up again if another service uses it. runtime_dir is
 * borrowed. */
void worker_device_claim(struct worker *w, const char *runtime_dir);
/* Whether the setting names a device. Any thread. */
bool worker_device_wanted(const struct worker *w);
void worker_device_close(struct worker *w);

/* Call when a draft model or head may have come or gone, with its target: finds what the present one
 * needs of the device. Draft thread. */
void worker_device_meet(struct worker *w);
/* Takes over an answer that the loop thread brought. Draft thread, between rounds. */
void worker_device_settle(struct worker *w);
/* Call after passes: if the device was lost in one, the CPU goes on. Draft thread. */
void worker_device_check(struct worker *w);

/* Brings the answer. granted: the bytes may be taken; else why they may not. asked: the bytes that it
 * answers; an answer to an earlier question is left aside. Loop thread. */
void worker_device_answer(struct worker *w, uint64_t asked, bool granted, const char *why);
/* What there is to ask, and to show. Any thread. */
void worker_device_now(struct worker *w, struct worker_device_state *out);
