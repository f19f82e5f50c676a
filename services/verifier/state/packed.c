#include "services/verifier/state/packed.h"

#include "services/verifier/state/packed_sum.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/peers.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/spec/slots.h"
#include "shared/base/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How long an expert cache may take to appear, where its memory matters, and how long to wait
 * between two looks. */
#define CACHE_NS_MAX 5000000000u
#define CACHE_US_AGAIN 300000
/* A look that was not answered stays in the cache's backlog, which has LIMIT_PEERS places for all
 * peers, until the cache has started. */
#define CACHE_US_AGAIN_SILENT 900000

static enum weights_part part_of(const struct verifier_config *config)
{
	return config->experts == VERIFIER_EXPERTS_MAPPED ? WEIGHTS_ALL : WEIGHTS_DENSE;
}

static bool progress(void *arg)
{
	daemon_progress(arg);
	return !daemon_is_stopping(arg);
}

/* Checks the matrices, which another process could have changed. Nothing checks them after this:
 * the weights are used as they are. */
static bool is_sound(struct daemon *daemon, const struct verifier_config *config,
	const struct packed_header *want, const struct packed_header *header)
{
	uint64_t told = header->sum, sum;
	int rc = packed_sum(
		header + 1, want->bytes, (uint32_t)config->threads, progress, daemon, &sum);

	if (rc == 0 && sum != told)
		log_notice("the predecessor's packed weights have changed, because another process "
			   "wrote to them: they are packed again");
	return rc == 0 && sum == told;
}

/* Takes over a predecessor's copy of the same matrices, and its descriptor. */
static bool take_over(struct daemon *daemon, const struct verifier_config *config, int fd,
	const struct packed_header *want, struct region *out)
{
	size_t payload = sizeof(*want) + want->bytes;
	struct error err = {.text = ""};

	if (region_adopt(fd, WEIGHTS_REGION, WEIGHTS_REGION_LAYOUT, REGION_DATA + payload, out,
		    &err) != 0) {
		log_notice("the predecessor's packed weights are not taken over: %s", err.text);
		return false;
	}
	const struct packed_header *header = region_payload(out);
	if (header->bytes == want->bytes && header->model_fingerprint == want->model_fingerprint &&
		header->stamps == want->stamps && header->part == want->part &&
		atomic_load_explicit(&header->ready, memory_order_acquire) &&
		is_sound(daemon, config, want, header))
		return true;
	region_close(out);
	return false;
}

/* Logs what pages the copy has. A notice, where small pages slow every token down or where the user
 * has set up a pool of huge pages; information only, where the kernel joined pages. */
static void say_pages(const struct huge_pages *pages)
{
	char text[384];

	huge_pages_notice(pages, text, sizeof(text));
	if (text[0] == '\0')
		log_notice("packed weights lie in %" PRIu64 " pages of %zu KiB", pages->needed,
			pages->page_bytes >> 10);
	else if (pages->kind == HUGE_NONE || pages->free > 0)
		log_notice("packed weights: %s", text);
	else
		log_info("packed weights: %s", text);
}

static int pack(struct daemon *daemon, const struct verifier_config *config,
	const struct model *model, const struct packed_header *want, struct region *out,
	struct error *err)
{
	uint64_t start = clock_ns();
	struct huge_pages pages;
	int rc = region_create_huge(WEIGHTS_REGION, WEIGHTS_REGION_LAYOUT,
		sizeof(*want) + want->bytes, &pages, out, err);
	if (rc != 0)
		return rc;
	say_pages(&pages);
	struct packed_header *header = region_payload(out);

	header->model_fingerprint = want->model_fingerprint;
	header->bytes = want->bytes;
	header->stamps = want->stamps;
	header->part = want->part;
	rc = weights_pack(model, (enum weights_part)want->part, header + 1,
		(uint32_t)config->threads, progress, daemon);
	if (rc == 0)
		rc = packed_sum(header + 1, want->bytes, (uint32_t)config->threads, progress,
			daemon, &header->sum);
	if (rc != 0) {
		region_close(out);
		return error_set(err, -rc,
			rc == -ECANCELED ? "stopped before the weights were packed"
					 : "no memory to pack the weights");
	}
	/* If a file changed meanwhile, the copy is half old and half new. */
	rc = gguf_watch(model->gguf, err);
	/* gguf_watch has compared only a sample. */
	if (rc == 0 && !gguf_proven(model->gguf))
		rc = gguf_error_prefix(err,
			error_set(err, ESTALE,
				"the file was written to or touched while its weights were packed"),
			gguf_path(model->gguf));
	if (rc != 0) {
		region_close(out);
		return rc;
	}
	atomic_store_explicit(&header->ready, 1, memory_order_release);
	log_notice("packed %s of weights in %.1f s", UNITS_SIZE(want->bytes),
		(double)(clock_ns() - start) / 1e9);
	return 0;
}

/* The expert cache's share of memory, in bytes. */
struct experts_share {
	uint64_t budget; /* at most */
	uint64_t there; /* allocated already */
};

/* Reads the share from the cache's region. Another process writes that region, so the numbers are
 * not trusted. Fails as broker_look does. */
static int look_at_cache(struct daemon *daemon, const struct resources_needs *needs,
	struct experts_share *out, struct error *err)
{
	struct region region;
	int fd, rc = broker_look(daemon, PEER_CACHE, EXPERTS_REGION, &fd, err);

	if (rc != 0)
		return rc;
	/* A region of another build stays as it is, so there is no use in asking again. */
	if (region_attach(fd, EXPERTS_REGION, EXPERTS_LAYOUT,
		    REGION_DATA + sizeof(struct slots_header), false, &region, err) != 0)
		return -EPROTO;
	const struct slots_header *header = region_payload(&region);
	uint64_t budget = atomic_load_explicit(&header->budget, memory_order_relaxed);
	uint64_t in_use = atomic_load_explicit(&header->in_use, memory_order_relaxed);
	uint64_t slot_bytes = header->slot_bytes;
	region_close(&region);
	if (slot_bytes == 0 || slot_bytes > needs->experts_all)
		return error_set(err, EPROTO,
			"a slot of %" PRIu64 " bytes, all experts have %" PRIu64, slot_bytes,
			needs->experts_all);
	out->budget = budget * slot_bytes;
	out->budget = out->budget < needs->experts_all ? out->budget : needs->experts_all;
	out->there = in_use * slot_bytes;
	out->there = out->there < out->budget ? out->there : out->budget;
	return 0;
}

/* Asks the cache, which starts at the same time and fills its slots from then on. If it does not
 * appear, the least is assumed; if it is there but does not say how much it takes, it may take all
 * experts. */
static int ask_cache(struct daemon *daemon, const struct resources_needs *needs,
	struct experts_share *out, struct error *err)
{
	uint64_t end_ns = clock_ns() + CACHE_NS_MAX;

	struct error why = {.text = ""};
	bool there = false;
	int rc;

	while ((rc = look_at_cache(daemon, needs, out, &why)) != 0) {
		there |= rc != -ENOENT;
		/* The answer would be the same the next time. */
		if (rc == -EPERM || rc == -EPROTO || clock_ns() >= end_ns)
			break;
		if (!progress(daemon))
			return error_set(err, ECANCELED, "stopped before the weights were packed");
		usleep(rc == -ETIMEDOUT ? CACHE_US_AGAIN_SILENT : CACHE_US_AGAIN);
	}
	if (rc == 0)
		return 0;
	*out = (struct experts_share){.budget = there ? needs->experts_all : needs->experts};
	if (there)
		log_notice("%s does not say how much memory it takes (%s): room is kept for all "
			   "experts",
			PEER_CACHE, why.text);
	return 0;
}

/* The memory that is needed once the verifier runs. The file's pages that are read meanwhile need
 * no room, because the kernel can reclaim them at any time. */
struct packed_room {
	uint64_t now; /* packed weights and everything that is allocated at once */
	uint64_t kv; /* filled later */
	/* the parts of them that are not allocated yet, to compare with what is available */
	uint64_t now_more, kv_more;
	struct experts_share experts;
	struct memory_limit limit;
};

static uint64_t beyond(uint64_t bytes, uint64_t there)
{
	return bytes > there ? bytes - there : 0;
}

/* Whether everything fits in addition to the experts that the cache may load now, and the full KV
 * cache in addition to the fewest experts to which the cache can fall. A cache whose configured
 * budget leaves less than that has said so itself. */
static bool fits(const struct packed_room *r, uint64_t experts_least)
{
	const struct experts_share *e = &r->experts;

	return r->now + r->kv + experts_least <= r->limit.bytes &&
	       r->now_more + r->kv_more + beyond(experts_least, e->there) <= r->limit.available &&
	       r->now_more + beyond(e->budget, e->there) <= r->limit.available;
}

static int find_room(struct daemon *daemon, const struct resources_needs *needs, uint64_t bytes,
	struct packed_room *r, bool *room, struct error *err)
{
	*r = (struct packed_room){
		.now = bytes + needs->rest + needs->buffers + needs->others,
		.kv = needs->kv,
		.now_more =
			bytes + beyond(needs->rest + needs->buffers, needs->there) + needs->others,
		.kv_more = beyond(needs->kv, needs->kv_there),
	};
	memory_limit_now(&r->limit);
	/* Without asking the cache: whatever it takes, or has already. */
	r->experts = (struct experts_share){.budget = needs->experts_all};
	*room = fits(r, needs->experts);
	if (*room || needs->experts == 0 || r->now_more + r->kv_more > r->limit.available ||
		r->now + r->kv + needs->experts > r->limit.bytes) {
		r->experts.budget = needs->experts;
		return 0;
	}
	int rc = ask_cache(daemon, needs, &r->experts, err);
	if (rc != 0)
		return rc;
	/* Read after the cache was asked, so that what it loads in between is counted twice rather
	 * than never. */
	memory_limit_now(&r->limit);
	*room = fits(r, needs->experts);
	return 0;
}

static void say_no_room(const struct verifier_config *config, const struct resources_needs *needs,
	const struct packed_room *r, uint64_t bytes)
{
	char experts[64] = "";

	if (needs->experts > 0)
		snprintf(
			experts, sizeof(experts), ", %s of experts", UNITS_SIZE(r->experts.budget));
	log_notice("packed weights (%s) do not fit in the free %s of %s, beside the KV cache "
		   "(%s)%s and buffers (%s)%s",
		UNITS_SIZE(bytes), UNITS_SIZE(r->limit.available), r->limit.where,
		UNITS_SIZE(needs->kv), experts,
		UNITS_SIZE(needs->rest + needs->buffers + needs->others),
		config->weights == VERIFIER_WEIGHTS_AUTO ? ": the weights stay in the file" : "");
}

static int has_room(struct daemon *daemon, const struct verifier_config *config,
	const struct resources_needs *needs, uint64_t bytes, bool *room, struct error *err)
{
	struct packed_room r;

	int rc = find_room(daemon, needs, bytes, &r, room, err);
	if (rc != 0)
		return rc;
	if (config->weights == VERIFIER_WEIGHTS_PACKED &&
		bytes + resources_least(needs) > r.limit.bytes)
		return error_set(err, ENOMEM,
			"packed weights take %s and everything else takes %s, but %s has %s: set "
			"weights = mapped",
			UNITS_SIZE(bytes), UNITS_SIZE(resources_least(needs)), r.limit.where,
			UNITS_SIZE(r.limit.bytes));
	if (!*room)
		say_no_room(config, needs, &r, bytes);
	return 0;
}

int packed_open(struct daemon *daemon, struct broker *broker, int *left,
	const struct verifier_config *config, const struct resources_needs *needs,
	struct model *model, struct region *out, struct error *err)
{
	struct packed_header want = {
		.model_fingerprint = model->file_fingerprint,
		.stamps = gguf_stamps(model->gguf),
		.part = part_of(config),
		.bytes = weights_bytes(model, part_of(config)),
	};

	memset(out, 0, sizeof(*out));
	bool wanted = config->weights != VERIFIER_WEIGHTS_MAPPED && want.bytes > 0;
	bool taken = false;
	if (*left >= 0) {
		if (wanted)
			taken = take_over(daemon, config, *left, &want, out);
		else
			close(*left);
		*left = -1;
		/* It is as large as the new one, so it must not count in what is asked for room
		 * below. */
		if (!taken)
			broker_abandon(broker, WEIGHTS_REGION);
	}
	if (!wanted)
		return 0;
	if (!taken) {
		bool room = false;
		int rc = has_room(daemon, config, needs, want.bytes, &room, err);
		if (rc == 0 && !room && config->weights == VERIFIER_WEIGHTS_AUTO)
			return 0;
		if (rc == 0)
			rc = pack(daemon, config, model, &want, out, err);
		if (rc != 0)
			return rc;
	}
	weights_use(model, part_of(config), (struct packed_header *)region_payload(out) + 1);
	return 0;
}

void packed_stamp(const struct region *packed, const struct model *model)
{
	if (packed->header != NULL)
		((struct packed_header *)region_payload(packed))->stamps = gguf_stamps(model->gguf);
}
