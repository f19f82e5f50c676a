/*
 * Who a process is, as it tells its peers: a card goes with the registration, and its state again whenever that changes. Cards
 * from outside are checked whole, and two cards say whether their processes can work together. No state, any thread.
 */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* Changes when an old process would misread a new one's messages. A field that is added does not change it. */
#define PEER_PROTOCOL 1

/* As PeerStage of proto/peer.proto. */
enum peer_stage {
	PEER_LOADING = 1,
	PEER_READY,
	PEER_DEGRADED,
	PEER_DRAINING,
	PEER_STOPPING,
	PEER_ENDED,
};
extern const char *const peer_stage_names[]; /* "loading", ... by stage */

struct peer_state {
	enum peer_stage stage;
	char text[LIMIT_PEER_TEXT]; /* what is missing, or why; may be empty */
};

/* As PeerNeeds of proto/peer.proto. */
struct peer_needs {
	uint64_t weights, kv, rest, there, files;
};

/* What a process tells one peer of its settings. */
struct peer_settings {
	uint64_t has_needs; /* 0: none are told */
	struct peer_needs needs; /* any numbers */
};

struct peer_layout {
	const char *region;
	uint32_t layout;
};

/* What a service says of itself beside its name. Borrowed for as long as the daemon lives. */
struct peer_self {
	uint32_t arithmetic; /* 0: it computes nothing with the model */
	uint64_t model; /* fingerprint of its file; 0: it has none */
	const struct peer_layout *layouts; /* of the regions that it makes or attaches */
	size_t n_layouts; /* at most LIMIT_PEER_LAYOUTS */
};

struct peer_card {
	uint32_t protocol;
	char name[LIMIT_NAME], version[LIMIT_NAME];
	uint32_t pid; /* as it says; the kernel may know another */
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

/* A message's card, checked whole; -EBADMSG with the reason. A card of another protocol is checked no further than its name and
 * version, so that both can be named. */
int peer_card_read(const Outrider__PeerCard *from, struct peer_card *out, struct error *err);
int peer_state_read(const Outrider__PeerState *from, struct peer_state *out, struct error *err);
/* from may be NULL: nothing is told. */
void peer_settings_read(const Outrider__PeerSettings *from, struct peer_settings *out);

/* A card, or a part of one, as a message's, which borrows its texts. */
struct peer_settings_message {
	Outrider__PeerSettings settings;
	Outrider__PeerNeeds needs;
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

/* Whether both can work together: one protocol, one arithmetic where both compute, and one layout of every region that one of
 * them owns and both know. -EPROTO with what differs, and which version each of them has. */
int peer_cards_fit(const struct peer_card *one, const struct peer_card *other, struct error *err);
