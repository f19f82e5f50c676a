/* outrider-drafter: start-up and the order of tearing down. */
#include "services/drafter/handlers.h"
#include "services/drafter/head.h"
#include "services/drafter/worker_device.h"
#include "shared/base/log.h"
#include "shared/base/options.h"
#include "shared/base/standard.h"
#include "shared/ipc/peers.h"
#include "shared/model/gguf/gguf_guard.h"

#include <stdlib.h>
#include <sysexits.h>

/* The draft thread may be away for this long: for K passes of a large draft model on a slow
 * machine, or while it loads the target's routers. */
#define STALL_NS 120000000000u

struct service {
	struct daemon *daemon;
	struct broker *broker;
	struct handlers handlers;
	struct worker worker;
	struct drafter_config config;
	struct options options;
};

static void on_change(void *arg)
{
	struct service *s = arg;
	daemon_wakeup(s->daemon);
}

static void on_wakeup(void *arg)
{
	struct service *s = arg;
	handlers_update_state(&s->handlers);
}

static int serve(struct service *s, struct error *err)
{
	int r = broker_open(s->daemon, NULL, &s->broker, err);
	worker_device_claim(&s->worker, daemon_runtime_dir(s->daemon));
	if (r == 0)
		r = worker_start(&s->worker, err);
	if (r == 0)
		r = handlers_open(&s->handlers, s->daemon, s->broker, &s->worker, &s->config,
			&s->options, err);
	if (r < 0)
		return r;
	daemon_on_wakeup(s->daemon, on_wakeup, s);
	log_notice("ready: draft method %s, %s%s", draft_method_names[s->config.method],
		s->worker.model		      ? "draft model "
		: s->worker.own.draft_is_head ? "EAGLE-3 head "
					      : "no draft model",
		s->config.draft);
	handlers_update_state(&s->handlers);
	daemon_ready(s->daemon);
	return daemon_run(s->daemon);
}

static const struct options_spec spec = {
	.program = "outrider-drafter",
	.summary = "Drafts tokens, which outrider-verifier then checks.",
	.config_path = OUTRIDER_SYSCONFDIR "/outrider/drafter.conf",
	.keys = drafter_config_keys,
	.shortcuts = {{"draft", "draft", "FILE", "GGUF file of the draft model"}},
};

/* What -n checks in addition to the settings: whether the draft model can be loaded. A head is
 * checked against its target, when that is known. */
static int check_draft(const struct drafter_config *config, struct error *err)
{
	struct model *model;
	struct tokenizer *tokenizer;

	if (!config->draft[0] || draft_is_head(config->draft))
		return 0;
	int r = model_load(config->draft, &model, err);
	if (r < 0)
		return r;
	r = tokenizer_load(model->gguf, &tokenizer, err);
	if (r == 0)
		tokenizer_free(&tokenizer);
	model_free(&model);
	return r;
}

int main(int argc, char **argv)
{
	static struct service service;
	struct drafter_config *config = &service.config;
	struct options *options = &service.options;
	struct error err = {""};
	char runtime_dir[256];
	bool has_worker = false;

	standard_begin();
	log_init("drafter", 0);
	gguf_guard_start(PEER_DRAFTER ": error: ");
	int r = options_read(&spec, argc, argv, options, config, stdout, &err);
	if (r == 1)
		r = drafter_config_resolve(config, &err) < 0 ? -ENOEXEC : 1;
	if (r < 0)
		log_error("%s", err.text);
	if (r < 1)
		return options_exit_status(r);
	if (options->check) {
		r = check_draft(config, &err);
		if (r < 0)
			log_error("%s", err.text);
		return error_exit_status(r);
	}
	log_set_verbosity(options->verbosity);
	r = peers_runtime_dir(options->runtime_dir, true, runtime_dir, sizeof(runtime_dir), &err);
	if (r == 0) {
		struct daemon_options daemon = {.name = PEER_DRAFTER,
			.runtime_dir = runtime_dir,
			.watchdog_stall_ns = STALL_NS};
		r = daemon_create(&daemon, &service.daemon, &err);
	}
	if (r == 0)
		r = broker_claim(service.daemon, &err);
	if (r == 0) {
		daemon_set_state(service.daemon, "loading");
		daemon_progress(service.daemon);
		has_worker = true;
		r = worker_init(&service.worker, config, on_change, &service, &err);
		if (r < 0 && daemon_has_manager())
			r = gguf_unsettled(config->draft, r, &err);
	}
	if (r == 0)
		r = serve(&service, &err);
	int status = r < 0 ? error_exit_status(r) : r;
	if (r < 0)
		log_error("%s", err.text);
	handlers_close(&service.handlers);
	if (has_worker)
		worker_exit(&service.worker);
	if (service.broker)
		broker_close(&service.broker);
	if (service.daemon)
		daemon_destroy(&service.daemon);
	return r < 0 ? daemon_start_failed(status) : status;
}
