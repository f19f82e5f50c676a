/*
 * outrider-verifier: owns the target model, its KV cache and the sessions; decides what is emitted.
 *
 *	clients --(bus)--> front/, handlers.c                        loop thread
 *	                     |   texts <--> front/reader.c           text threads
 *	                     | commands, slots        ^ session pages
 *	                     v                        |
 *	                   pass/: engine.c, pass.c                   engine thread, drives the pool
 *	drafter <--(rings of region "draft")--> pass/drafts.c
 */
#include "kernels/backend.h"
#include "services/verifier/front/front.h"
#include "services/verifier/pass/recall.h"
#include "services/verifier/prefixes/prefix_disk.h"
#include "services/verifier/state/device.h"
#include "services/verifier/state/kv_size.h"
#include "services/verifier/state/kv_memory.h"
#include "services/verifier/state/packed.h"
#include "services/verifier/state/resources.h"
#include "shared/base/descriptors.h"
#include "shared/base/log.h"
#include "shared/base/options.h"
#include "shared/base/plural.h"
#include "shared/base/standard.h"
#include "shared/ipc/peers.h"
#include "shared/model/arch/adapter.h"
#include "shared/model/arch/place.h"
#include "shared/model/gguf/gguf_guard.h"
#include "shared/model/kv/kv_content.h"
#include "shared/spec/profile.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#define TICK_NS 250000000u
#define THREADS_INCLUDED 8u /* included in LIMIT_DESCRIPTORS */
/* A pass over a full prefill chunk of a large model may take this long on a slow machine. */
#define STALL_NS 120000000000u

static const struct options_spec spec = {
	.program = "outrider-verifier",
	.summary =
		"Serves a model: owns its KV cache and the sessions, and decides what is emitted.",
	.config_path = OUTRIDER_SYSCONFDIR "/outrider/verifier.conf",
	.keys = verifier_config_keys,
	.shortcuts = {{"model", "model", "FILE", "GGUF file to serve"}},
};

static int die(int rc, const struct error *err)
{
	log_error("%s", err->text);
	return error_exit_status(rc);
}

struct verifier {
	struct verifier_config config;
	struct options options;
	struct daemon *daemon;
	struct model *model;
	struct tokenizer *tokenizer;
	struct backend *backend;
	struct backend *host; /* the CPU's, beside a device */
	int device_claim; /* device_claim.h; -1: none */
	struct regions regions;
	struct adapter *adapter; /* NULL: there is none */
	uint64_t *uses; /* of budget_profile; NULL: there is none */
	struct region packed; /* header NULL: the weights are in the mapping of the file */
	bool placed; /* model_place */
	bool adapter_placed; /* adapter_place */
	struct front front;
};

static void wake_front(void *arg)
{
	const struct front *front = arg;

	daemon_wakeup(front->daemon);
}

/* The sockets before the model, so that a second verifier learns at once that there is one, before
 * it could touch the first one's regions. */
static int open_sockets(struct verifier *v, struct error *err)
{
	char endpoint[256];

	peers_client_endpoint(daemon_runtime_dir(v->daemon), endpoint, sizeof(endpoint));
	int rc = bus_server(endpoint, BUS_CLIENTS, &v->front.socket, err);
	if (rc == 0)
		rc = daemon_admin_open(v->daemon, admin_handle, &v->front, err);
	return rc;
}

/* Each file of the model has a descriptor, and so has each thread. One file and a few threads are
 * included. */
static int need_descriptors(const struct verifier *v, struct error *err)
{
	uint64_t threads = (uint64_t)v->config.threads;

	return descriptors_need(PEER_VERIFIER,
		gguf_n_parts(v->model->gguf) - 1 +
			(threads > THREADS_INCLUDED ? threads - THREADS_INCLUDED : 0) +
			(v->config.prefix_dir[0] != '\0' ? PREFIX_BUFFERS + 4 : 0),
		err);
}

/* Call after everything that has buffers of the back end is closed. */
static void close_backend(struct verifier *v)
{
	if (v->backend != NULL)
		v->backend->ops->destroy(v->backend);
	if (v->host != NULL)
		v->host->ops->destroy(v->host);
	v->backend = v->host = NULL;
	if (v->device_claim >= 0)
		close(v->device_claim);
	v->device_claim = -1;
	free(v->uses);
	v->uses = NULL;
}

/* Answers do not depend on the adapter: without one that fits the service goes on, and says so. */
static void refuse_adapter(struct verifier *v, const struct error *err)
{
	log_error("the adapter is not used: %s", err->text);
	snprintf(v->front.adapter_refusal, sizeof(v->front.adapter_refusal), "%s", err->text);
	adapter_free(&v->adapter);
}

static void open_adapter(struct verifier *v, uint64_t kv_there)
{
	struct error err;

	if (v->config.adapter[0] == '\0')
		return;
	int rc = adapter_load(v->config.adapter, v->model, &v->adapter, &err);
	if (rc == 0)
		rc = device_check_adapter(
			&v->config, v->model, v->adapter, kv_there, v->backend, &err);
	if (rc == 0)
		log_notice("adapter %s: up to %u drafts from masks behind a token",
			v->config.adapter, v->adapter->draft_length);
	else
		refuse_adapter(v, &err);
}

static void place_adapter(struct verifier *v)
{
	struct error err;

	if (v->adapter == NULL)
		return;
	v->adapter_placed = adapter_place(v->adapter, v->model, v->backend, &err) == 0;
	if (!v->adapter_placed)
		refuse_adapter(v, &err);
}

/* Loads the model, and resolves the settings that depend on it. kv_there: of a device's memory, what a
 * predecessor's KV cache has. */
static int load_model(struct verifier *v, uint64_t kv_there, struct error *err)
{
	int rc = model_load(v->config.model, &v->model, err);

	if (rc == 0)
		rc = tokenizer_load(v->model->gguf, &v->tokenizer, err);
	if (rc == 0 && tokenizer_n_vocab(v->tokenizer) > v->model->config.n_vocab)
		rc = error_set(err, EINVAL,
			"%s: the tokenizer has %u tokens, the model computes %u", v->config.model,
			tokenizer_n_vocab(v->tokenizer), v->model->config.n_vocab);
	if (rc == 0)
		rc = verifier_config_fit(&v->config, v->model, err);
	if (rc == 0 && v->config.budget_profile[0] != '\0')
		rc = profile_read(v->config.budget_profile, v->model->config.n_layers,
			v->model->config.n_experts, &v->uses, err);
	if (rc != 0)
		return rc;
	rc = need_descriptors(v, err);
	if (rc != 0)
		return rc;
	struct device_opened opened;
	rc = device_open(&v->config, v->model, kv_there,
		v->daemon != NULL ? daemon_runtime_dir(v->daemon) : NULL, &opened, err);
	v->backend = opened.backend;
	v->device_claim = opened.claim;
	memcpy(v->front.device_refused, opened.refused, sizeof(opened.refused));
	if (rc == 0)
		rc = device_open_fast(&v->config, v->model, v->backend, err);
	if (rc == 0)
		rc = device_open_host(&v->config, v->backend, &v->host, err);
	if (rc == 0)
		open_adapter(v, kv_there);
	return rc;
}

/* What the buffers take through which pages go to disk and come back. */
static uint64_t prefix_bytes(const struct verifier *v)
{
	const struct kv_layout kv = regions_kv_layout(&v->config, v->model);
	size_t content = kv_content_bytes_of(&kv);
	bool away = kv_memory_device(&v->config, v->backend) != 0;
	bool windows = kv.windows.n_layers > 0;

	/* Windows in a device's memory stay there (kv_content.h). */
	if (v->config.prefix_dir[0] == '\0' || content == 0 || (windows && away))
		return 0;
	return prefix_disk_memory(content) +
	       (away || windows ? recall_states_bytes(recall_state_bytes(&kv)) : 0);
}

static void needs_of(const struct verifier *v, struct resources_needs *out)
{
	const struct kv_layout kv = regions_kv_layout(&v->config, v->model);
	bool away = kv_memory_device(&v->config, v->backend) != 0;

	resources_needs(&v->config, v->model, v->adapter, v->backend,
		away ? kv_map_bytes(&kv) : kv_bytes(&kv), out);
	out->buffers += prefix_bytes(v);
	out->buffers_one += prefix_bytes(v);
}

/* Only the process with the broker's lock may write to regions that another process may still be
 * using. */
static int open_regions(struct verifier *v, struct regions_left *left,
	struct resources_needs *needs, struct error *err)
{
	int rc = links_broker_open(&v->front, err);
	if (rc == 0)
		rc = regions_open(v->front.broker, left, &v->config, v->model, v->backend, needs,
			tokenizer_fingerprint(v->tokenizer), &v->regions, err);
	if (rc == 0)
		rc = packed_open(v->daemon, v->front.broker, &left->weights, &v->config, needs,
			v->model, &v->packed, err);
	regions_left_close(left);
	if (rc == 0)
		rc = model_place(v->model, v->backend, err);
	v->placed = rc == 0;
	if (rc == 0)
		place_adapter(v);
	return rc;
}

static int load_with(struct verifier *v, struct regions_left *left, struct error *err)
{
	struct resources_needs needs;
	int rc = load_model(v, regions_left_device(left), err);

	if (rc != 0)
		return daemon_has_manager() ? gguf_unsettled(v->config.model, rc, err) : rc;
	needs_of(v, &needs);
	if (daemon_is_stopping(v->daemon))
		return -ECANCELED;
	daemon_progress(v->daemon);
	resources_notice(&v->config, v->backend);
	return open_regions(v, left, &needs, err);
}

static int load(struct verifier *v, struct error *err)
{
	struct regions_left left;

	regions_recover(v->daemon, &left);
	int rc = load_with(v, &left, err);
	regions_left_close(&left);
	return rc;
}

static int start(struct verifier *v, struct error *err)
{
	struct front *front = &v->front;
	const struct engine_options engine_options = {
		.config = &v->config,
		.model = v->model,
		.adapter = v->adapter,
		.tokenizer = v->tokenizer,
		.backend = v->backend,
		.host = v->host,
		.regions = &v->regions,
		.kv_store = &v->regions.kv_store,
		.slots = front->slots,
		.news = front->changed,
		.proof = &front->proof,
		.uses = v->uses,
		.generation = daemon_generation(v->daemon),
		.cache_alive = links_cache_alive,
		.wake = wake_front,
		.arg = front,
	};

	front->model = v->model;
	front->adapter = v->adapter;
	front->tokenizer = v->tokenizer;
	constraint_vocab_init(&front->vocab, v->tokenizer, v->model->config.n_vocab);
	front->backend = v->backend;
	front->regions = &v->regions;
	front->packed = &v->packed;
	front->file_state = gguf_state(v->model->gguf);
	/* The engine takes it over. */
	front->device_ends = v->regions.kv_store.ends_with_maker;
	const struct request_limits limits = admission_limits(front);
	int rc = reader_create(&limits, wake_front, front, &front->reader, err);
	if (rc == 0)
		rc = engine_create(&engine_options, &front->engine, err);
	if (rc != 0)
		return rc;
	rc = knobs_open(front, &v->config, &v->options, err);
	if (rc != 0)
		return rc;
	front_recover(front);
	regions_needs(&v->regions, &v->packed, v->model, &front->needs);
	front->needs.rest += prefix_bytes(v);
	/* All of it has been allocated. */
	front->needs.device = front->needs.device_there =
		resources_device(&v->config, v->model, v->adapter, v->backend);
	front->needs.device_kv = device_kv_bytes(&v->config, v->model, v->backend);
	front->needs.device_most = kv_size_limit(&v->config, v->backend);
	broker_offer(front->broker, &v->regions.sessions);
	/* Before the draft rings, which refer to it: a drafter that has only the rings sends empty
	 * drafts. */
	broker_offer(front->broker, &v->regions.supports);
	broker_offer(front->broker, &v->regions.draft);
	links_adopt_hidden(front);
	/* In this order: a new map has no cells yet, and an old one must not describe other memory. */
	broker_offer(front->broker, &v->regions.kv);
	if (v->regions.kv_store_fd >= 0)
		broker_offer_fd(front->broker, KV_MEMORY, v->regions.kv_store_fd);
	if (v->packed.header != NULL)
		broker_offer(front->broker, &v->packed);
	rc = links_open(front, err);
	if (rc == 0)
		rc = engine_start(front->engine, err);
	if (rc == 0)
		rc = daemon_add_server(v->daemon, front->socket, handlers_client, front);
	if (rc == 0 && daemon_add_timer(v->daemon, TICK_NS, front_tick, front) < 0)
		rc = error_set(err, ENOSPC, "no timer");
	bus_on_crowded(front->socket, front_keeps, front);
	bus_on_gone(front->socket, front_gone, front);
	front->shelf.dropped = admission_dropped;
	front->shelf.arg = front;
	daemon_on_wakeup(v->daemon, front_pump, front);
	daemon_on_alive(v->daemon, front_alive, front);
	daemon_on_detail(v->daemon, admin_detail, front);
	return rc;
}

/* The engine first, because its thread uses everything else, including the link to the expert
 * cache. Pages and the KV cache stay in their regions for the successor. */
static void stop(struct verifier *v)
{
	struct front *front = &v->front;

	engine_destroy(&front->engine);
	links_close(front);
	broker_close(&front->broker);
	front_close(front);
	proof_exit(&front->proof);
	if (v->adapter_placed)
		adapter_forget(v->adapter, v->model, v->backend);
	if (v->placed)
		model_forget(v->model, v->backend);
	v->placed = v->adapter_placed = false;
	regions_close(&v->regions);
	if (v->packed.header != NULL)
		region_close(&v->packed);
	tokenizer_free(&v->tokenizer);
	adapter_free(&v->adapter);
	model_free(&v->model);
	close_backend(v);
	bus_server_close(&front->socket);
	daemon_destroy(&v->daemon);
}

static int serve(struct verifier *v, char **argv, const char *runtime_dir)
{
	const struct daemon_options daemon_options = {
		.name = PEER_VERIFIER, .runtime_dir = runtime_dir, .watchdog_stall_ns = STALL_NS};
	struct error err = {.text = ""};
	int rc = daemon_create(&daemon_options, &v->daemon, &err);

	if (rc != 0)
		return daemon_start_failed(die(rc, &err));
	daemon_set_state(v->daemon, "loading");
	v->front.daemon = v->daemon;
	v->front.argv = argv;
	v->front.config = &v->config;
	front_init(&v->front);
	proof_init(&v->front.proof);
	rc = open_sockets(v, &err);
	if (rc == 0)
		rc = load(v, &err);
	/* From here on sessions end with an error when the file is damaged. */
	gguf_guard_survive();
	if (rc == 0)
		rc = start(v, &err);
	bool stopped = rc == -ECANCELED && daemon_is_stopping(v->daemon);
	if (rc != 0 && !stopped)
		rc = device_start_failed(&v->config, v->backend, v->daemon, argv, rc, &err);
	int status = rc != 0 && !stopped ? die(rc, &err) : EX_OK;
	if (rc == 0) {
		log_notice("serving %s: context %lld, %lld thread%s, kernels %s", v->config.model,
			(long long)v->config.context, (long long)v->config.threads,
			plural((uint64_t)v->config.threads), v->backend->variant);
		/* Before it is ready, so that its state names what has not joined yet. */
		links_state(&v->front);
		daemon_ready(v->daemon);
		status = daemon_run(v->daemon);
		/* The supervisor starts a successor, which has the device anew. */
		if (engine_device_lost(v->front.engine, &err))
			status = EX_UNAVAILABLE;
	}
	stop(v);
	return rc != 0 ? daemon_start_failed(status) : status;
}

/* For -n: checks everything that could refuse a start before a socket is opened. */
static int check(struct verifier *v)
{
	struct resources_needs needs;
	struct error err = {.text = ""};
	int rc = load_model(v, 0, &err);

	if (rc == 0) {
		needs_of(v, &needs);
		rc = resources_check(&v->config, &needs, &err);
	}
	tokenizer_free(&v->tokenizer);
	adapter_free(&v->adapter);
	model_free(&v->model);
	close_backend(v);
	return rc != 0 ? die(rc, &err) : EX_OK;
}

int main(int argc, char **argv)
{
	struct error err = {.text = ""};
	char runtime_dir[256];
	static struct verifier verifier;
	struct verifier *v = &verifier;
	struct options *options = &v->options;

	v->device_claim = -1;
	standard_begin();
	log_init(PEER_VERIFIER, 0);
	gguf_guard_start(PEER_VERIFIER ": error: ");
	int rc = options_read(&spec, argc, argv, options, &v->config, stdout, &err);
	if (rc < 0)
		log_error("%s", err.text);
	if (rc < 1)
		return options_exit_status(rc);
	log_set_verbosity(options->verbosity);
	/* Wrong settings are a wrong configuration, wherever they come from. */
	if (verifier_config_resolve(&v->config, &err) < 0)
		return die(-ENOEXEC, &err);
	rc = options->check ? 0
			    : peers_runtime_dir(options->runtime_dir, true, runtime_dir,
				      sizeof(runtime_dir), &err);
	if (rc != 0)
		return daemon_start_failed(die(rc, &err));
	return options->check ? check(v) : serve(v, argv, runtime_dir);
}
