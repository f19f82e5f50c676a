/*
 * The setting `device`: where a draft model, or an EAGLE-3 head, is computed. It begins on the CPU.
 * When its target is known, the loop thread asks the expert-cache for memory of the device, which it
 * shares out (proto/peer.proto, PeerShare), and brings the answer; the draft thread then moves the
 * model between two rounds. Without memory, or when the device is lost, the CPU drafts. The target's
 * own layers (layer-skip, mtp) stay on the CPU: the device would need their weights twice.
 *
 * The setting `arithmetic`: with auto, the device's own library (backend_ops.fast) multiplies the tokens
 * that a session is behind by, with F16 and BF16 weights, where there are many of them. What it drafts
 * then has other bits than the CPU's. No session whose answer depends on its drafts is read so: with
 * maximal coupling, or an expert budget, its tokens are computed exactly.
 */
#pragma once

#include "services/drafter/worker.h"

/* Makes the back end that the setting asks for, before the draft thread starts. Without a usable one
 * the CPU drafts, and the log says why. */
void worker_device_open(struct worker *w);
/* Before the draft thread starts too: gives the device up again if another service uses it. */
void worker_device_claim(struct worker *w, const char *runtime_dir);
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
