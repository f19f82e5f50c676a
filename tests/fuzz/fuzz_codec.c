/* Any bytes as a message: what both ends do with one. The service validates requests and knobs; a client follows its
 * stream. What decodes and encodes does so
 * again. */
#include "client/sdk/stream.h"
#include "services/policy-controller/settings.h"
#include "services/verifier/front/request.h"
#include "shared/base/config.h"
#include "shared/ipc/daemon_private.h"
#include "shared/ipc/knobs_private.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct model *model;
static struct tokenizer *tokenizer;
static void *zmq, *sink;

static void set_up(void)
{
	struct error err = {""};
	if (model_load("tests/data/hostile/llama.gguf", &model, &err) ||
		tokenizer_load(model->gguf, &tokenizer, &err)) {
		fprintf(stderr, "%s\n", err.text);
		abort();
	}
	/* Nobody listens: what the client would send is dropped when the queue is full. */
	int mute = 1;
	zmq = zmq_ctx_new();
	sink = zmq_socket(zmq, ZMQ_DEALER);
	zmq_setsockopt(sink, ZMQ_IMMEDIATE, &mute, sizeof(mute));
}

static void validate_request(const Outrider__Generate *generate)
{
	static struct session_request request;
	struct request_input input;
	struct request_limits limits = {.model = model, .tokenizer = tokenizer, .n_context = 256};
	struct error err = {""};
	if (request_read(generate, &limits, 1, &request, &input, &err) < 0) {
		if (!err.text[0])
			abort();
		return;
	}
	if (input.n_prompt == 0 || input.n_prompt >= limits.n_context ||
		input.n_prompt + request.max_tokens > limits.n_context ||
		request.n_stops > LIMIT_STOPS)
		abort();
	for (size_t i = 0; i < input.n_prompt; i++)
		if (input.prompt[i] < 0 || (uint32_t)input.prompt[i] >= model->config.n_vocab)
			abort();
	request_input_free(&input);
}

static int check_settings(const void *config, struct error *err)
{
	return settings_check(config, err);
}

static int apply_settings(void *arg, const void *next, struct error *err)
{
	(void)arg;
	(void)err;
	if (settings_check(next, NULL) < 0)
		abort();
	return 0;
}

/* Whatever is asked, the registry answers, and what is in force is allowed. */
static void ask_knobs(const Outrider__Envelope *request)
{
	static struct settings settings;
	static struct daemon daemon = {.name = "policy", .runtime_dir = "/dev/null"};
	const struct bus_address from = {.connection = 1, .uid = 1, .pid = 3, .known = true};
	const struct daemon_knobs knobs = {.keys = settings_keys,
		.config = &settings,
		.config_bytes = sizeof(settings),
		.check = check_settings,
		.apply = apply_settings,
		.config_path = "/dev/null/policy.conf"};
	struct error err = {""};
	Outrider__Envelope *reply = malloc(sizeof(*reply));
	outrider__envelope__init(reply);
	if (!daemon.knobs) {
		config_defaults(settings_keys, &settings);
		if (daemon_knobs_open(&daemon, &knobs, &err) < 0)
			abort();
	}
	if (knobs_answer(daemon.knobs, &from, request, reply) &&
		reply->body_case == OUTRIDER__ENVELOPE__BODY__NOT_SET)
		abort();
	if (settings_check(&settings, &err) < 0)
		abort();
	bus_free(&reply);
}

static void ignore(void *arg)
{
	(void)arg;
}

static void ignore_reason(void *arg, const char *reason)
{
	(void)arg;
	if (!reason[0])
		abort();
}

/* A verifier whose connection for messages goes to itself: a connection that is there, and that nobody reads. */
static void open_peers(struct daemon *daemon, struct bus_address *from)
{
	static const struct peer_layout layouts[] = {{"sessions", 5}, {"draft", 4}};
	const struct peer_self self = {.arithmetic = 3, .layouts = layouts, .n_layouts = 2};
	char folder[] = "/tmp/outrider-fuzz-XXXXXX", endpoint[64];
	struct error err = {""};
	pthread_mutex_init(&daemon->state_lock, NULL);
	strcpy(daemon->state, "ready");
	if (!mkdtemp(folder))
		abort();
	snprintf(endpoint, sizeof(endpoint), "ipc://%s/ctl", folder);
	if (bus_server(endpoint, BUS_ADMINS, &daemon->admin_server, &err) < 0 ||
		bus_connect(daemon->admin_server, endpoint, from) < 0)
		abort();
	unlink(bus_ipc_path(endpoint));
	rmdir(folder);
	registry_describe(daemon, &self);
	registry_open(daemon);
}

/* Whatever comes as a first message, as an answer and as a change: what is kept of a peer is in its range. */
static void tell_peers(const Outrider__Envelope *envelope)
{
	static struct daemon daemon = {.name = "verifier", .start_ns = 5};
	static struct bus_address from;
	if (!daemon.admin_server)
		open_peers(&daemon, &from);
	for (int asks = 0; asks < 2; asks++) {
		for (size_t i = 0; i < REGISTRY_PEERS; i++) {
			struct registry_entry *entry = &daemon.registry.entries[i];
			*entry = (struct registry_entry){.peer.name = entry->peer.name,
				.caller = {ignore, ignore_reason, ignore, NULL}};
		}
		daemon.registry.entries[0].address = asks ? from : (struct bus_address){0};
		daemon.registry.entries[0].asks = asks;
		(void)registry_take(&daemon, &from, envelope);
		(void)registry_take(&daemon, &from, envelope);
		for (size_t i = 0; i < REGISTRY_PEERS; i++) {
			const struct peer *peer = &daemon.registry.entries[i].peer;
			const struct peer_card *card = &peer->card;
			if (peer->standing != PEER_REGISTERED)
				continue;
			if (strcmp(card->name, peer->name) != 0 || card->generation == 0 ||
				card->protocol != PEER_PROTOCOL ||
				card->n_layouts > LIMIT_PEER_LAYOUTS ||
				card->state.stage < PEER_LOADING ||
				card->state.stage > PEER_ENDED ||
				strlen(card->state.text) >= LIMIT_PEER_TEXT)
				abort();
		}
		if (!daemon.registry.entries[0].address.connection && asks)
			bus_server_close(&daemon.admin_server); /* the answer was refused */
		if (!daemon.admin_server)
			return;
	}
}

/* A client's stream that waits for its answer gets the message, twice: the second is a repeat. */
static void follow(Outrider__Envelope **envelope)
{
	static struct outrider client;
	struct outrider_stream stream = {.client = &client, .window = 16, .credit = 16};
	client.socket = sink;
	client.line = NULL;
	client.line_end = &client.line;
	stream.last = &stream.first;
	stream.uid = stream_uid_of(*envelope);
	stream_handle(&stream, envelope);
	if (*envelope)
		stream_handle(&stream, envelope);
	stream_tick(&stream);
	for (struct stream_item *item = stream.first; item;) {
		struct stream_item *next = item->next;
		bus_free(&item->envelope);
		free(item);
		item = next;
	}
}

static void encode_again(const Outrider__Envelope *envelope)
{
	size_t bytes = outrider__envelope__get_packed_size(envelope);
	uint8_t *packed = malloc(bytes ? bytes : 1);
	Outrider__Envelope *again = NULL;
	if (outrider__envelope__pack(envelope, packed) != bytes)
		abort();
	/* Fields that are not known are kept as they came, and a tag among them may be no tag: then it is refused. */
	struct error err = {""};
	if (bus_decode(packed, bytes, &again, &err) == 0) {
		if (outrider__envelope__get_packed_size(again) != bytes ||
			again->body_case != envelope->body_case)
			abort();
		bus_free(&again);
	}
	free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	Outrider__Envelope *envelope;
	struct error err = {""};
	if (!model)
		set_up();
	if (bus_decode(data, bytes, &envelope, &err) < 0) {
		if (!err.text[0])
			abort();
		return 0;
	}
	encode_again(envelope);
	if (envelope->body_case == OUTRIDER__ENVELOPE__BODY_GENERATE)
		validate_request(envelope->generate);
	ask_knobs(envelope);
	tell_peers(envelope);
	follow(&envelope);
	bus_free(&envelope);
	return 0;
}
