/*
 * outrider-verifier: owns the target model, its KV cache and the sessions; decides what is emitted.
 *
 *	clients --(bus)--> front: handlers.c, front.c, stream.c      loop thread
 *	                     | commands, slots        ^ session pages
 *	                     v                        |
 *	                   engine: engine.c, iteration.c             engine thread, drives the pool
 *	drafter <--(rings of region "draft")--> drafts.c
 */
#include "services/verifier/front.h"

#include "shared/base/log.h"
#include "shared/ipc/peers.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#define TICK_NS 250000000u
/* One pass over a full prefill chunk of a large model may take this long on a slow machine. */
#define STALL_NS 120000000000u
#define CONFIG_FILE OUTRIDER_SYSCONFDIR "/outrider/verifier.conf"

static const char usage[] =
	"Usage: outrider-verifier [options]\n"
	"Serves a model: owns its KV cache and the sessions, and decides what is emitted.\n"
	"\n"
	"  --model FILE        the GGUF file to serve (key model)\n"
	"  --runtime-dir DIR   where the processes meet (default: OUTRIDER_RUNTIME_DIR, ...)\n"
	"  --config FILE       settings (default: " CONFIG_FILE " when it is there)\n"
	"  --set KEY=VALUE     one setting, over the file's; may be repeated\n"
	"  -n                  check the settings and exit\n"
	"  -d                  stay in the foreground (it always does)\n"
	"  -v                  say more; may be repeated\n"
	"  --print-config      every key with its range and default\n"
	"  --help, --version\n";

enum {
	OPT_RUNTIME_DIR = 256,
	OPT_CONFIG,
	OPT_MODEL,
	OPT_SET,
	OPT_PRINT_CONFIG,
	OPT_HELP,
	OPT_VERSION
};
static const struct option options[] = {
	{"runtime-dir", required_argument, NULL, OPT_RUNTIME_DIR},
	{"config", required_argument, NULL, OPT_CONFIG},
	{"model", required_argument, NULL, OPT_MODEL},
	{"set", required_argument, NULL, OPT_SET},
	{"print-config", no_argument, NULL, OPT_PRINT_CONFIG},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
	{0},
};

struct flags {
	const char *runtime_dir, *config, *model;
	int verbosity;
	bool check;
};

static int die(int rc, const struct error *err)
{
	log_error("%s", err->text);
	return error_exit_status(rc);
}

/* Two passes over the arguments: the file first, then what the command line says over it. -1: go on; else exit. */
static int parse(int argc, char **argv, struct flags *flags)
{
	int c;

	while ((c = getopt_long(argc, argv, "ndv", options, NULL)) != -1) {
		switch (c) {
		case OPT_RUNTIME_DIR:
			flags->runtime_dir = optarg;
			break;
		case OPT_CONFIG:
			flags->config = optarg;
			break;
		case OPT_MODEL:
			flags->model = optarg;
			break;
		case OPT_SET:
		case 'd':
			break;
		case OPT_PRINT_CONFIG:
			config_print(verifier_config_keys, stdout);
			return EX_OK;
		case OPT_HELP:
			fputs(usage, stdout);
			return EX_OK;
		case OPT_VERSION:
			puts("outrider-verifier " OUTRIDER_VERSION);
			return EX_OK;
		case 'n':
			flags->check = true;
			break;
		case 'v':
			flags->verbosity++;
			break;
		default:
			fputs("Try outrider-verifier --help.\n", stderr);
			return EX_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "outrider-verifier: %s: no arguments are taken\n", argv[optind]);
		return EX_USAGE;
	}
	return -1;
}

static int settings(int argc, char **argv, const struct flags *flags,
	struct verifier_config *config, struct error *err)
{
	int c, rc;

	config_defaults(verifier_config_keys, config);
	rc = config_load(flags->config != NULL ? flags->config : CONFIG_FILE, flags->config == NULL,
		verifier_config_keys, config, err);
	optind = 0;
	while (rc == 0 && (c = getopt_long(argc, argv, "ndv", options, NULL)) != -1)
		if (c == OPT_SET)
			rc = config_set(optarg, "command line", verifier_config_keys, config, err);
	if (rc == 0 && flags->model != NULL) {
		if (strlen(flags->model) >= sizeof(config->model))
			return error_set(err, EINVAL,
				"--model: a path of %zu bytes, the limit is %zu",
				strlen(flags->model), sizeof(config->model) - 1);
		strcpy(config->model, flags->model);
	}
	return rc != 0 ? rc : verifier_config_resolve(config, err);
}

struct verifier {
	struct verifier_config config;
	struct daemon *daemon;
	struct model *model;
	struct tokenizer *tokenizer;
	const struct kernels *kernels;
	struct regions regions;
	struct front front;
};

static void wake_front(void *arg)
{
	const struct front *front = arg;

	daemon_wakeup(front->daemon);
}

/* The socket before the model: who comes second learns it at once, and before it could touch the first one's regions. */
static int open_sockets(struct verifier *v, struct error *err)
{
	char endpoint[256];

	peers_client_endpoint(daemon_runtime_dir(v->daemon), endpoint, sizeof(endpoint));
	int rc = bus_server(daemon_zmq(v->daemon), endpoint, &v->front.socket, err);
	if (rc == 0)
		rc = daemon_admin_open(v->daemon, admin_handle, &v->front, err);
	return rc;
}

/* The model, and what of the configuration depends on it. */
static int load_model(struct verifier *v, struct error *err)
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
	if (rc != 0)
		return rc;
	v->kernels = kernels_select(v->config.kernels, err);
	if (v->kernels == NULL)
		return -EINVAL;
	return 0;
}

static int load(struct verifier *v, struct error *err)
{
	int rc = load_model(v, err);

	if (rc != 0)
		return rc;
	daemon_progress(v->daemon);
	return regions_open(v->daemon, &v->config, v->model, tokenizer_fingerprint(v->tokenizer),
		&v->regions, err);
}

static int start(struct verifier *v, struct error *err)
{
	struct front *front = &v->front;
	const struct engine_options engine_options = {
		.config = &v->config,
		.model = v->model,
		.tokenizer = v->tokenizer,
		.kernels = v->kernels,
		.regions = &v->regions,
		.slots = front->slots,
		.generation = daemon_generation(v->daemon),
		.cache_alive = links_cache_alive,
		.wake = wake_front,
		.arg = front,
	};

	front->model = v->model;
	front->tokenizer = v->tokenizer;
	front->kernels = v->kernels;
	front->regions = &v->regions;
	int rc = links_broker_open(front, err);
	if (rc == 0)
		rc = engine_create(&engine_options, &front->engine, err);
	if (rc != 0)
		return rc;
	front_recover(front);
	broker_offer(front->broker, &v->regions.sessions);
	broker_offer(front->broker, &v->regions.draft);
	broker_offer(front->broker, &v->regions.kv);
	rc = links_open(front, err);
	if (rc == 0)
		rc = engine_start(front->engine, err);
	if (rc == 0)
		rc = daemon_add_zmq(v->daemon, front->socket, handlers_client, front);
	if (rc == 0 && daemon_add_timer(v->daemon, TICK_NS, front_tick, front) < 0)
		rc = error_set(err, ENOSPC, "no timer");
	daemon_on_wakeup(v->daemon, front_pump, front);
	daemon_on_alive(v->daemon, front_alive, front);
	daemon_on_detail(v->daemon, admin_detail, front);
	return rc;
}

/* The engine first: it uses everything else. Pages and KV stay in their regions for the successor. */
static void stop(struct verifier *v)
{
	struct front *front = &v->front;

	links_close(front);
	engine_destroy(&front->engine);
	broker_close(&front->broker);
	front_close(front);
	regions_close(&v->regions);
	tokenizer_free(&v->tokenizer);
	model_free(&v->model);
	if (front->socket != NULL)
		bus_close(&front->socket);
	daemon_destroy(&v->daemon);
}

static int serve(struct verifier *v, const char *runtime_dir)
{
	const struct daemon_options daemon_options = {
		.name = PEER_VERIFIER, .runtime_dir = runtime_dir, .watchdog_stall_ns = STALL_NS};
	struct error err = {.text = ""};
	int rc = daemon_create(&daemon_options, &v->daemon, &err);

	if (rc != 0)
		return die(rc, &err);
	daemon_set_state(v->daemon, "loading");
	v->front.daemon = v->daemon;
	v->front.config = &v->config;
	rc = open_sockets(v, &err);
	if (rc == 0)
		rc = load(v, &err);
	if (rc == 0)
		rc = start(v, &err);
	int status = rc != 0 ? die(rc, &err) : EX_OK;
	if (rc == 0) {
		log_notice("serving %s: context %lld, %lld threads, kernels %s", v->config.model,
			(long long)v->config.context, (long long)v->config.threads,
			v->kernels->name);
		daemon_ready(v->daemon);
		links_state(&v->front);
		status = daemon_run(v->daemon);
	}
	stop(v);
	return status;
}

/* -n: everything that serving would refuse before it opens a socket. */
static int check(struct verifier *v)
{
	struct error err = {.text = ""};
	int rc = load_model(v, &err);

	tokenizer_free(&v->tokenizer);
	model_free(&v->model);
	return rc != 0 ? die(rc, &err) : EX_OK;
}

int main(int argc, char **argv)
{
	struct flags flags = {0};
	struct error err = {.text = ""};
	char runtime_dir[256];
	int rc = parse(argc, argv, &flags);

	if (rc >= 0)
		return rc;
	log_init(PEER_VERIFIER, flags.verbosity);
	struct verifier *v = calloc(1, sizeof(*v));
	if (v == NULL)
		return die(-ENOMEM, &(struct error){"no memory"});
	rc = settings(argc, argv, &flags, &v->config, &err);
	if (rc == 0 && !flags.check)
		rc = peers_runtime_dir(
			flags.runtime_dir, true, runtime_dir, sizeof(runtime_dir), &err);
	/* What is wrong with settings is wrong with the configuration, whichever place it came from. */
	if (rc == -EINVAL) {
		(void)die(rc, &err);
		free(v);
		return EX_CONFIG;
	}
	int status = rc != 0 ? die(rc, &err) : flags.check ? check(v) : serve(v, runtime_dir);
	free(v);
	return status;
}
