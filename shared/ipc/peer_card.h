/*
 * A card: how a process describes itself to its peers. It is sent with the registration; its state
 * is sent again whenever it changes. Cards from outside are checked whole, and peer_cards_fit
 * decides from two cards whether their processes can work together. No state; any thread.
 */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* Raised when an old process would misread a new one's messages. A new field does not raise it. */
#define PEER_PROTOCOL 1

/* The values of PeerStage in proto/peer.proto. */
enum peer_stage {
	PEER_LOADING = 1,
	PEER_READY,
	PEER_DEGRADED,
	PEER_DRAINING,
	PEER_STOPPING,
	PEER_ENDED,
};
extern const char *const peer_stage_names[]; /* "loading", ..., indexed by stage */

struct peer_state {
	enum peer_stage stage;
	char text[LIMIT_PEER_TEXT]; /* what is missing, or why; may be empty */
};

/* The fields of PeerNeeds in proto/peer.proto. */
struct peer_needs {
	uint64_t weights, kv, rest, there, files, device, device_there, device_kv, device_most;
};

/* PeerTaps; n 0: none. */
struct peer_taps {
	uint64_t n, model;
	uint32_t layer[LIMIT_TAPS];
	uint32_t pad;
};

/* PeerShare; asked 0: none. */
struct peer_share {
	uint64_t asked, granted;
	char refusal[LIMIT_PEER_TEXT];
};

/* The settings that a process tells one of its peers. */
struct peer_settings {
	uint64_t has_needs; /* 0: no needs were sent */
	struct peer_needs needs; /* unchecked numbers */
	struct peer_taps taps; /* unchecked numbers, at most LIMIT_TAPS of them */
	struct peer_share share; /* an unchecked number; its text may go into a log line */
};

struct peer_layout {
	const char *region;
	uint32_t layout;
};

/* What a service adds to its card besides its name. Borrowed for as long as the daemon lives. */
struct peer_self {
	uint32_t arithmetic; /* version of its arithmetic; 0: it computes nothing with the model */
	uint64_t model; /* fingerprint of the model's file; 0: it has no model */
	const struct peer_layout *layouts; /* of the regions that it creates or attaches */
	size_t n_layouts; /* at most LIMIT_PEER_LAYOUTS */
};

struct peer_card {
	uint32_t protocol;
	char name[LIMIT_NAME], version[LIMIT_NAME];
	uint32_t pid; /* as the process claims; the kernel may know another */
	uint64_t generation;
	uint32_t arithmetic;
	uint64_t model;
	struct {
		char region[LIMIT_NAME];
		uint32_t layout;
	} layouts[LIMIT_PEER_LAYOUTS];
	size_t n_layouts;
	struct peer_state state;
	struct peer_settings settings;
};

/* Reads and checks a whole card from a message; -EBADMSG with the reason. A card of another
 * protocol is checked only for name and version, so that both can be named in a message. */
int peer_card_read(const Outrider__PeerCard *from, struct peer_card *out, struct error *err);
int peer_state_read(const Outrider__PeerState *from, struct peer_state *out, struct error *err);
/* from may be NULL: no settings were sent. */
void peer_settings_read(const Outrider__PeerSettings *from, struct peer_settings *out);

/* A card, or a part of one, in the form of a message, which borrows the card's texts. */
struct peer_settings_message {
	Outrider__PeerSettings settings;
	Outrider__PeerNeeds needs;
	Outrider__PeerTaps taps;
	Outrider__PeerShare share;
	uint32_t layers[LIMIT_TAPS];
};
struct peer_card_message {
	Outrider__PeerCard card;
	Outrider__PeerState state;
	struct peer_settings_message settings;
	Outrider__PeerLayout layouts[LIMIT_PEER_LAYOUTS];
	Outrider__PeerLayout *list[LIMIT_PEER_LAYOUTS];
};
void peer_card_write(const struct peer_card *card, struct peer_card_message *out);
void peer_state_write(const struct peer_state *state, Outrider__PeerState *out);
void peer_settings_write(const struct peer_settings *settings, struct peer_settings_message *out);

/* Checks that two processes can work together: the same protocol, the same arithmetic if both
 * compute, and the same layout of every region that one of them owns and both know. -EPROTO names
 * what differs and both versions. */
int peer_cards_fit(const struct peer_card *one, const struct peer_card *other, struct error *err);
