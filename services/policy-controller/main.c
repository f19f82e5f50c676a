/* outrider-policy: owns the policy region and chooses K. Start-up, and the order of tearing down.
 */
#include "services/policy-controller/handlers.h"
#include "shared/base/log.h"
#include "shared/base/options.h"
#include "shared/base/standard.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/peers.h"
#include "shared/ipc/registry.h"

#include <stdlib.h>
#include <sysexits.h>
#include <unistd.h>

/* How often the journal is written; a crash loses at most this much. */
#define JOURNAL_FLUSH_NS 1000000000u

struct service {
	struct daemon *daemon;
	struct broker *broker;
	struct region region;
	struct controller controller;
	struct journal journal;
	struct records records;
};

/* Takes over the region that a predecessor left (fd; -1: none), with the knobs in it, or creates a
 * new one. */
static int open_region(struct service *s, int fd, struct ring *ring, struct error *err)
{
	size_t bytes = policy_bytes();
	struct policy_page *page;
	int r;
	if (fd >= 0) {
		r = region_adopt(
			fd, POLICY_REGION, POLICY_LAYOUT, REGION_DATA + bytes, &s->region, err);
		if (r == 0)
			r = policy_attach(region_payload(&s->region), s->region.bytes - REGION_DATA,
				&page, ring, err);
		if (r == 0 && !ring_broken(ring)) {
			log_notice("took over the policy region of an earlier process");
			return 0;
		}
		log_notice("the policy region of an earlier process cannot be used%s%s",
			*err->text ? ": " : "", err->text);
		region_close(&s->region);
	}
	r = region_create(POLICY_REGION, POLICY_LAYOUT, bytes, 0, &s->region, err);
	if (r < 0)
		return r;
	policy_format(region_payload(&s->region));
	return policy_attach(
		region_payload(&s->region), s->region.bytes - REGION_DATA, &page, ring, err);
}

/* Opens the journal in the state directory that systemd gives, where it survives a boot, or beside
 * the sockets. */
static void open_journal(struct service *s, const struct settings *settings)
{
	const char *state = getenv("STATE_DIRECTORY");
	char path[4200];
	snprintf(path, sizeof(path), "%s/policy.journal",
		state && *state ? state : daemon_runtime_dir(s->daemon));
	bool kept = settings->journal_bytes >= JOURNAL_BYTES_MIN;
	journal_open(&s->journal, kept ? path : "",
		kept ? (uint64_t)settings->journal_bytes : JOURNAL_BYTES_MIN);
}

static void flush_journal(void *arg)
{
	journal_flush(arg);
}

static int open_admin(struct service *s, struct error *err)
{
	static const struct peer_layout layouts[] = {{POLICY_REGION, POLICY_LAYOUT}};
	const struct peer_self self = {.layouts = layouts, .n_layouts = 1};

	registry_describe(s->daemon, &self);
	return daemon_admin_open(s->daemon, handle_admin, &s->records, err);
}

static int serve(struct service *s, struct settings *settings, const struct options *options,
	struct error *err)
{
	struct ring ring;
	int fd;
	if (broker_recover(s->daemon, POLICY_REGION, &fd) < 0)
		fd = -1;
	/* Only the holder of the broker's lock may write to a region that another process may still
	 * be using. */
	int r = broker_open(s->daemon, NULL, &s->broker, err);
	if (r < 0) {
		if (fd >= 0)
			close(fd);
		return r;
	}
	r = open_region(s, fd, &ring, err);
	if (r < 0)
		return r;
	controller_init(&s->controller, region_payload(&s->region), settings);
	open_journal(s, settings);
	r = records_start(&s->records, &ring, &s->controller, &s->journal, err);
	if (r < 0)
		return r;
	if (daemon_add_timer(s->daemon, JOURNAL_FLUSH_NS, flush_journal, &s->journal) < 0)
		log_notice("no timer for the journal: it is written only when it is read");
	r = handlers_knobs(&s->records, s->daemon, settings, options, err);
	if (r == 0)
		r = open_admin(s, err);
	if (r == 0) {
		broker_offer(s->broker, &s->region);
		daemon_on_alive(s->daemon, records_alive, &s->records);
		log_notice("ready: policy %s, K up to %d", settings->policy, (int)settings->k_max);
		daemon_ready(s->daemon);
		r = daemon_run(s->daemon);
	}
	records_stop(&s->records);
	journal_close(&s->journal);
	return r;
}

static const struct options_spec spec = {
	.program = "outrider-policy",
	.summary = "Chooses how many tokens are drafted, from what outrider-verifier measures.",
	.config_path = OUTRIDER_SYSCONFDIR "/outrider/policy.conf",
	.keys = settings_keys,
	.shortcuts = {{"policy", "policy", "NAME", "yield, goodput, cascade or static:K"}},
};

int main(int argc, char **argv)
{
	struct settings settings;
	struct options options;
	struct error err = {""};
	static struct service service;
	char runtime_dir[256];
	int status = EX_OK;

	standard_begin();
	log_init("policy", 0);
	int r = options_read(&spec, argc, argv, &options, &settings, stdout, &err);
	if (r == 1)
		r = settings_check(&settings, &err) < 0 ? -ENOEXEC : !options.check;
	if (r < 0)
		log_error("%s", err.text);
	if (r < 1)
		return options_exit_status(r);
	log_set_verbosity(options.verbosity);
	r = peers_runtime_dir(options.runtime_dir, true, runtime_dir, sizeof(runtime_dir), &err);
	if (r == 0) {
		struct daemon_options daemon = {.name = PEER_POLICY, .runtime_dir = runtime_dir};
		r = daemon_create(&daemon, &service.daemon, &err);
	}
	if (r == 0)
		r = serve(&service, &settings, &options, &err);
	if (r < 0) {
		log_error("%s", err.text);
		status = error_exit_status(r);
	} else {
		status = r;
	}
	if (service.broker)
		broker_close(&service.broker);
	region_close(&service.region);
	if (service.daemon)
		daemon_destroy(&service.daemon);
	return r < 0 ? daemon_start_failed(status) : status;
}
