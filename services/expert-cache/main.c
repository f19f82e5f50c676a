/* outrider-expert-cache: keeps experts of a model in slots of fast memory. Flags and start-up. */
#include "services/expert-cache/live.h"
#include "services/expert-cache/live_device.h"
#include "services/expert-cache/live_drafter.h"
#include "services/expert-cache/service.h"
#include "services/expert-cache/settle.h"

#include "kernels/gpu/backend.h"
#include "kernels/gpu/choice.h"
#include "services/knobs/of_device.h"
#include "shared/base/descriptors.h"
#include "shared/base/log.h"
#include "shared/base/options.h"
#include "shared/base/standard.h"
#include "shared/ipc/device_claim.h"
#include "shared/ipc/peers.h"
#include "shared/model/gguf/gguf_guard.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/spec/slots.h"
#include "shared/base/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

static const struct options_spec spec = {
	.program = "outrider-expert-cache",
	.summary = "Keeps experts of a Mixture-of-Experts model in memory for outrider-verifier.",
	.config_path = OUTRIDER_SYSCONFDIR "/outrider/expert-cache.conf",
	.keys = cache_config_keys,
	.shortcuts = {{"model", "model", "FILE", "GGUF file, the same as the verifier's"},
		{"budget", "budget", "SIZE",
			"auto, all, min, a share as 30%, or bytes as 2G (default auto)"}},
};

/* Loads the model and finds how many slots the budget is. */
static int size_up(struct service *service, struct error *err)
{
	int status = model_load(service->config.model, &service->model, err);
	if (status != 0)
		return status;
	slots_geometry_init(&service->geometry, service->model);
	if (service->geometry.n_total == 0)
		return 0;
	room_needs_of(service->model, &service->needs);
	/* Any size: the memory is checked when it is taken. */
	struct budget budget;
	status = budget_slots(service->config.budget, &service->geometry, UINT64_MAX, &budget, err);
	service->budget = status == 0 ? budget.n_slots : 0;
	if (status == 0 && service->config.profile[0] != '\0')
		status = service_profile(service, service->config.profile, &service->profile, err);
	return status;
}

/* Opens the reader of the model's file, or of the parts of a split one. */
static int open_reader(struct service *service, struct error *err)
{
	const struct cache_config *config = &service->config;
	const struct gguf *gguf = service->model->gguf;
	struct reader_file files[GGUF_PARTS_MAX];
	unsigned n = (unsigned)gguf_n_parts(gguf);
	for (unsigned i = 0; i < n; i++) {
		const struct gguf_part *part = gguf_part_at(gguf, i);
		files[i] = (struct reader_file){part->path, part->base, part};
	}
	struct reader_options options = {
		.io = (enum io_choice)config->io,
		.direct = (enum auto_choice)config->direct,
		.depth = (unsigned)config->queue_depth,
		.read_bytes = (size_t)config->read_bytes,
	};
	int status = reader_open(files, n, &options, &service->reader, err);
	if (status == 0)
		reader_slots(service->reader, slots_at(&service->store.slots, 0),
			(size_t)service->geometry.slot_bytes, service->geometry.n_total);
	return status;
}

static void say_reads(const struct reader *reader)
{
	char rate[48] = "";
	/* If both are set, or the file is small, nothing was measured. */
	if (reader_rate(reader) > 0)
		snprintf(rate, sizeof(rate), "; the disk gives %.2f GiB/s",
			reader_rate(reader) / (1 << 30));
	log_notice("%s: %u reads of at most %zu KiB at once%s", reader_link(reader),
		reader_depth(reader), reader_piece_bytes(reader) >> 10, rate);
}

static void go_without(struct service *service, const struct error *why)
{
	log_notice("device = %s: experts are kept in memory alone, because %s",
		service->config.device, why->text);
	snprintf(service->device_refused, sizeof(service->device_refused), "%.255s", why->text);
}

/* Without a GPU that can be used experts stay in memory alone, if the setting leaves the choice, or if
 * a predecessor had the GPU: it is lost, and the service goes on. */
static int open_backend(struct service *service, struct error *err)
{
	enum gpu_choice choice;
	struct backend_gpu_options options = {.seed = 0};
	struct error why = {.text = ""};
	int status = gpu_choice_read(service->config.device, &choice, &options.device, err);
	if (status == 0 && choice == GPU_CHOICE_CPU)
		of_device_say_idle(cache_config_keys, &service->config, service->config.device);
	if (status != 0 || choice == GPU_CHOICE_CPU)
		return status;
	struct backend *backend = NULL;
	status = choice == GPU_CHOICE_SIMT ? backend_simt_create(&options, &backend, &why)
					   : backend_cuda_create(&options, &backend, &why);
	if (status == 0)
		status = device_claim(backend->device->uuid, backend->device->name,
			daemon_runtime_dir(service->daemon), PEER_CACHE,
			service->config.device_shared, &service->device_claim, &why);
	if (status == 0) {
		service->backend = backend;
		return 0;
	}
	if (backend != NULL)
		backend->ops->destroy(backend);
	if (choice != GPU_CHOICE_AUTO && service->device_fd < 0)
		return error_set(err, -status, "device = %s: %s", service->config.device, why.text);
	go_without(service, &why);
	if (choice == GPU_CHOICE_AUTO)
		of_device_say_idle(cache_config_keys, &service->config, service->config.device);
	return 0;
}

/* A device that is lost while its slots are made is as good as none. */
static int open_device(struct service *service, struct error *err)
{
	struct error why;
	int status = open_backend(service, err);
	if (status != 0 || service->backend == NULL)
		return status;
	status = live_device_open(service, err);
	if (status == 0 || service->backend->ops->failure(service->backend, &why) == 0)
		return status;
	service->backend->ops->destroy(service->backend);
	service->backend = NULL;
	if (service->device_claim >= 0)
		close(service->device_claim);
	service->device_claim = -1;
	go_without(service, &why);
	return 0;
}

/* Starts slots, reader and worker. The broker is open, so no predecessor lives. */
static int start_cache(
	struct service *service, int recovered_fd, int recovered_hints_fd, struct error *err)
{
	struct store_options options = {
		.budget = service->budget,
		.model_fingerprint = service->model->file_fingerprint,
		.model_files = gguf_files(service->model->gguf),
		.model_stamps = gguf_stamps(service->model->gguf),
		.policy = cache_policy_find(service->config.policy),
		.queue_max = (uint32_t)service->config.hint_queue_max,
		.profile = service->profile,
		.recovered_fd = recovered_fd,
		.recovered_hints_fd = recovered_hints_fd,
	};
	int status = store_open(&service->store, &service->geometry, &options, err);
	if (status != 0)
		return status;
	/* Before experts are loaded: they need its memory. */
	if (recovered_fd >= 0 && !service->store.adopted)
		broker_abandon(service->broker, EXPERTS_REGION);
	live_begin(service);
	status = open_reader(service, err);
	if (status != 0)
		return status;
	status = hint_quality_init(
		&service->quality, service->geometry.n_layers, service->geometry.n_experts, err);
	if (status != 0)
		return status;
	status = open_device(service, err);
	if (status != 0)
		return status;
	struct transfer_options transfer = live_options(service, &service->config, service->budget);
	status = transfer_start(&service->transfer, &service->store, service->reader,
		service->device, &transfer, err);
	if (status != 0)
		return status;
	broker_offer(service->broker, &service->store.region);
	broker_offer(service->broker, &service->store.hints);
	live_device_offer(service);
	const struct slots_adopted *found = &service->store.found;
	say_reads(service->reader);
	log_notice("%u of %u experts fit (%s), read with %s, policy %s%s%s", service->budget,
		service->geometry.n_total,
		UNITS_SIZE(service->budget * service->geometry.slot_bytes),
		reader_link(service->reader), service->config.policy,
		transfer.preload ? ", preloading" : "", transfer.packs ? ", packed" : "");
	if (service->store.adopted)
		log_notice(
			"took over %u experts; repaired: %u loads that were cut off, %u evictions, "
			"%u words of the table; given up: %u experts with a wrong checksum",
			found->ready, found->loading, found->evicting, found->words, found->wrong);
	return 0;
}

static void stop(struct service *service)
{
	transfer_stop(&service->transfer);
	hint_quality_exit(&service->quality);
	if (service->reader != NULL)
		reader_close(&service->reader);
	if (service->broker != NULL)
		broker_close(&service->broker);
	model_file_close(service);
	live_device_close(service);
	store_close(&service->store);
	if (service->daemon != NULL)
		daemon_destroy(&service->daemon);
	free(service->profile);
	model_free(&service->model);
}

/* A recovered region has its memory already. */
static int check_memory(struct service *service, int recovered_fd, struct error *err)
{
	struct stat st = {.st_blocks = 0};
	if (recovered_fd >= 0)
		(void)fstat(recovered_fd, &st);
	/* If there is a region, there usually is a verifier. Weights that it maps are in the page
	 * cache, which counts as free already. */
	service->needs.of.there = settle_there(recovered_fd);
	int status = settle(service, service->config.budget, (uint64_t)st.st_blocks * 512,
		&service->settled, err);
	service->budget = service->settled.budget.n_slots;
	return status;
}

static void on_joined(void *arg, const char *peer, int pid, uint64_t generation)
{
	struct service *service = arg;
	(void)pid;
	if (strcmp(peer, PEER_VERIFIER) != 0)
		return;
	service->verifier_left = false;
	service->verifier_generation = generation;
}

static void on_left(void *arg, const char *peer)
{
	struct service *service = arg;
	if (strcmp(peer, PEER_VERIFIER) == 0)
		service->verifier_left = true;
	if (strcmp(peer, PEER_DRAFTER) == 0)
		live_drafter_left(service);
}

static int serve(struct service *service, const struct options *started, const char *runtime_dir,
	struct error *err)
{
	const struct broker_events events = {.joined = on_joined, .left = on_left, .arg = service};
	struct daemon_options options = {.name = PEER_CACHE, .runtime_dir = runtime_dir};
	int status = daemon_create(&options, &service->daemon, err);
	if (status != 0)
		return status;
	daemon_set_state(service->daemon, "loading");
	int fd = -1, hints_fd = -1, digest_fd = -1;
	(void)broker_recover(service->daemon, DIGEST_REGION, &digest_fd);
	if (service->budget > 0 && broker_recover(service->daemon, EXPERTS_REGION, &fd) != 0)
		fd = -1;
	if (service->budget > 0 && broker_recover(service->daemon, HINTS_REGION, &hints_fd) != 0)
		hints_fd = -1;
	if (service->budget > 0)
		live_device_recover(service);
	if (service->budget > 0)
		status = check_memory(service, fd, err);
	if (status == 0)
		status = broker_open(service->daemon, &events, &service->broker, err);
	if (status == 0 && service->budget > 0) {
		status = start_cache(service, fd, hints_fd, err);
		fd = hints_fd = -1;
	}
	if (fd >= 0)
		close(fd);
	if (hints_fd >= 0)
		close(hints_fd);
	if (status == 0)
		status = model_file_open(service, digest_fd, err);
	else if (digest_fd >= 0)
		close(digest_fd);
	if (status == 0)
		status = handlers_open(service, started, err);
	if (status != 0)
		return status;
	daemon_ready(service->daemon);
	if (service->budget == 0) {
		daemon_set_state(service->daemon, "idle: dense model");
		log_notice("%s has no experts: nothing to do", service->config.model);
	}
	status = daemon_run(service->daemon);
	if (status == 0 && service->budget > 0)
		live_end(service);
	return status;
}

int main(int argc, char **argv)
{
	static struct service service;
	service.store.region.fd = service.store.hints.fd = -1;
	service.device_fd = service.device_memory_fd = service.device_claim = -1;
	service.argv = argv;
	struct options options;
	char runtime_dir[4096];
	struct error err = {.text = ""};
	standard_begin();
	log_init(PEER_CACHE, 0);
	gguf_guard_start(PEER_CACHE ": error: ");
	int code = options_read(&spec, argc, argv, &options, &service.config, stdout, &err);
	if (code < 0)
		log_error("%s", err.text);
	if (code < 1)
		return options_exit_status(code);
	log_set_verbosity(options.verbosity);
	/* Before the verifier, which starts at the same time, has taken its part. */
	memory_limit_now(&service.settled.limit);
	code = cache_config_check(&service.config, &err);
	if (code == 0)
		code = size_up(&service, &err);
	/* Each file of the model is opened once for its header and twice for reading. */
	if (code == 0)
		code = descriptors_need(
			PEER_CACHE, 3 * (gguf_n_parts(service.model->gguf) - 1), &err);
	if (code < 0 && !options.check && daemon_has_manager())
		code = gguf_unsettled(service.config.model, code, &err);
	if (code == 0 && !options.check)
		code = peers_runtime_dir(
			options.runtime_dir, true, runtime_dir, sizeof(runtime_dir), &err);
	if (code == 0 && !options.check)
		code = serve(&service, &options, runtime_dir, &err);
	stop(&service);
	if (code >= 0)
		return code;
	log_error("%s", err.text);
	int status = error_exit_status(code);
	return options.check ? status : daemon_start_failed(status);
}
