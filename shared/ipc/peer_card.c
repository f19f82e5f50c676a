#include "shared/ipc/peer_card.h"

#include "shared/ipc/peers.h"

#include <string.h>

const char *const peer_stage_names[] = {[PEER_LOADING] = "loading",
	[PEER_READY] = "ready",
	[PEER_DEGRADED] = "degraded",
	[PEER_DRAINING] = "draining",
	[PEER_STOPPING] = "stopping",
	[PEER_ENDED] = "ended"};

static_assert((int)PEER_LOADING == OUTRIDER__PEER_STAGE__PEER_STAGE_LOADING &&
		      (int)PEER_READY == OUTRIDER__PEER_STAGE__PEER_STAGE_READY &&
		      (int)PEER_DEGRADED == OUTRIDER__PEER_STAGE__PEER_STAGE_DEGRADED &&
		      (int)PEER_DRAINING == OUTRIDER__PEER_STAGE__PEER_STAGE_DRAINING &&
		      (int)PEER_STOPPING == OUTRIDER__PEER_STAGE__PEER_STAGE_STOPPING &&
		      (int)PEER_ENDED == OUTRIDER__PEER_STAGE__PEER_STAGE_ENDED,
	"the stages are those of the messages");

/* Copies a text that may go into a log line: it must fit and have no control characters. */
static int take_text(const char *what, const char *from, char *out, size_t bytes, struct error *err)
{
	size_t n = strlen(from);

	if (n >= bytes)
		return error_set(err, EBADMSG, "%s of %zu bytes: at most %zu are allowed", what, n,
			bytes - 1);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)from[i] < 0x20 || from[i] == 0x7f)
			return error_set(
				err, EBADMSG, "%s has a control character at byte %zu", what, i);
	memcpy(out, from, n + 1);
	return 0;
}

int peer_state_read(const Outrider__PeerState *from, struct peer_state *out, struct error *err)
{
	if (!from || from->stage < OUTRIDER__PEER_STAGE__PEER_STAGE_LOADING ||
		from->stage > OUTRIDER__PEER_STAGE__PEER_STAGE_ENDED)
		return error_set(err, EBADMSG, "a state of stage %d, stages are %d to %d",
			from ? (int)from->stage : 0, PEER_LOADING, PEER_ENDED);
	out->stage = (enum peer_stage)from->stage;
	return take_text("a state", from->text, out->text, sizeof out->text, err);
}

void peer_settings_read(const Outrider__PeerSettings *from, struct peer_settings *out)
{
	const Outrider__PeerNeeds *needs = from ? from->needs : NULL;
	const Outrider__PeerTaps *taps = from ? from->taps : NULL;
	const Outrider__PeerShare *share = from ? from->share : NULL;
	struct error ignored;

	memset(out, 0, sizeof *out);
	if (share && take_text("a refusal", share->refusal, out->share.refusal,
			     sizeof out->share.refusal, &ignored) == 0) {
		out->share.asked = share->asked;
		out->share.granted = share->granted != 0;
	}
	if (taps && taps->n_layers <= LIMIT_TAPS) {
		out->taps.n = taps->n_layers;
		out->taps.model = taps->model;
		for (size_t i = 0; i < taps->n_layers; i++)
			out->taps.layer[i] = taps->layers[i];
	}
	if (!needs)
		return;
	out->has_needs = 1;
	out->needs = (struct peer_needs){.weights = needs->weights,
		.kv = needs->kv,
		.rest = needs->rest,
		.there = needs->there,
		.files = needs->files,
		.device = needs->device,
		.device_there = needs->device_there,
		.device_kv = needs->device_kv,
		.device_most = needs->device_most};
}

static int read_layouts(const Outrider__PeerCard *from, struct peer_card *out, struct error *err)
{
	if (from->n_layouts > LIMIT_PEER_LAYOUTS)
		return error_set(err, EBADMSG, "a card with %zu layouts: at most %d are allowed",
			from->n_layouts, LIMIT_PEER_LAYOUTS);
	for (size_t i = 0; i < from->n_layouts; i++) {
		int code = take_text("the name of a region", from->layouts[i]->region,
			out->layouts[i].region, sizeof out->layouts[i].region, err);

		if (code < 0)
			return code;
		for (size_t j = 0; j < i; j++)
			if (strcmp(out->layouts[i].region, out->layouts[j].region) == 0)
				return error_set(err, EBADMSG, "a card with region \"%s\" twice",
					out->layouts[i].region);
		out->layouts[i].layout = from->layouts[i]->layout;
	}
	out->n_layouts = from->n_layouts;
	return 0;
}

int peer_card_read(const Outrider__PeerCard *from, struct peer_card *out, struct error *err)
{
	int code;

	memset(out, 0, sizeof *out);
	if (!from)
		return error_set(err, EBADMSG, "a registration without a card");
	code = take_text("a name", from->name, out->name, sizeof out->name, err);
	if (code == 0)
		code = take_text(
			"a version", from->version, out->version, sizeof out->version, err);
	if (code < 0)
		return code;
	out->protocol = from->protocol;
	if (out->protocol != PEER_PROTOCOL)
		return 0;
	if (from->generation == 0)
		return error_set(err, EBADMSG, "a card of generation 0");
	out->pid = from->pid;
	out->generation = from->generation;
	out->arithmetic = from->arithmetic;
	out->model = from->model;
	peer_settings_read(from->settings, &out->settings);
	code = read_layouts(from, out, err);
	return code < 0 ? code : peer_state_read(from->state, &out->state, err);
}

void peer_state_write(const struct peer_state *state, Outrider__PeerState *out)
{
	outrider__peer_state__init(out);
	out->stage = (Outrider__PeerStage)state->stage;
	out->text = (char *)state->text;
}

void peer_settings_write(const struct peer_settings *settings, struct peer_settings_message *out)
{
	const struct peer_needs *needs = &settings->needs;

	outrider__peer_settings__init(&out->settings);
	if (settings->taps.n > 0) {
		outrider__peer_taps__init(&out->taps);
		memcpy(out->layers, settings->taps.layer, sizeof out->layers);
		out->taps.layers = out->layers;
		out->taps.n_layers = settings->taps.n;
		out->taps.model = settings->taps.model;
		out->settings.taps = &out->taps;
	}
	if (settings->share.asked > 0) {
		outrider__peer_share__init(&out->share);
		out->share.asked = settings->share.asked;
		out->share.granted = settings->share.granted != 0;
		out->share.refusal = (char *)settings->share.refusal;
		out->settings.share = &out->share;
	}
	if (!settings->has_needs)
		return;
	outrider__peer_needs__init(&out->needs);
	out->needs.weights = needs->weights;
	out->needs.kv = needs->kv;
	out->needs.rest = needs->rest;
	out->needs.there = needs->there;
	out->needs.files = needs->files;
	out->needs.device = needs->device;
	out->needs.device_there = needs->device_there;
	out->needs.device_kv = needs->device_kv;
	out->needs.device_most = needs->device_most;
	out->settings.needs = &out->needs;
}

void peer_card_write(const struct peer_card *card, struct peer_card_message *out)
{
	outrider__peer_card__init(&out->card);
	out->card.protocol = card->protocol;
	out->card.name = (char *)card->name;
	out->card.pid = card->pid;
	out->card.generation = card->generation;
	out->card.version = (char *)card->version;
	out->card.arithmetic = card->arithmetic;
	out->card.model = card->model;
	for (size_t i = 0; i < card->n_layouts; i++) {
		outrider__peer_layout__init(&out->layouts[i]);
		out->layouts[i].region = (char *)card->layouts[i].region;
		out->layouts[i].layout = card->layouts[i].layout;
		out->list[i] = &out->layouts[i];
	}
	out->card.n_layouts = card->n_layouts;
	out->card.layouts = out->list;
	peer_state_write(&card->state, &out->state);
	out->card.state = &out->state;
	peer_settings_write(&card->settings, &out->settings);
	out->card.settings = &out->settings.settings;
}

static bool is_owner(const struct peer_card *card, const char *region)
{
	const char *owner = peers_region_owner(region);

	return owner && strcmp(owner, card->name) == 0;
}

static int layouts_fit(
	const struct peer_card *one, const struct peer_card *other, struct error *err)
{
	for (size_t i = 0; i < one->n_layouts; i++) {
		const char *region = one->layouts[i].region;

		/* The layout of a region of a third process is not this pair's concern. */
		if (!is_owner(one, region) && !is_owner(other, region))
			continue;
		for (size_t j = 0; j < other->n_layouts; j++)
			if (strcmp(region, other->layouts[j].region) == 0 &&
				one->layouts[i].layout != other->layouts[j].layout)
				return error_set(err, EPROTO,
					"region %s has layout %u in %s %s and layout %u in %s %s: "
					"restart the older one",
					region, one->layouts[i].layout, one->name, one->version,
					other->layouts[j].layout, other->name, other->version);
	}
	return 0;
}

int peer_cards_fit(const struct peer_card *one, const struct peer_card *other, struct error *err)
{
	if (one->protocol != other->protocol)
		return error_set(err, EPROTO,
			"%s %s speaks version %u of the messages between processes, %s %s version "
			"%u: restart the older one",
			one->name, one->version, one->protocol, other->name, other->version,
			other->protocol);
	if (one->arithmetic && other->arithmetic && one->arithmetic != other->arithmetic)
		return error_set(err, EPROTO,
			"%s %s computes with arithmetic %u, %s %s with arithmetic %u: restart the "
			"older one",
			one->name, one->version, one->arithmetic, other->name, other->version,
			other->arithmetic);
	return layouts_fit(one, other, err);
}
