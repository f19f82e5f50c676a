#include "services/verifier/packed.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/ipc/broker.h"
#include "shared/model/gguf_watch.h"
#include "shared/model/weights.h"
#include "shared/base/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The payload: this, then the matrices. */
struct packed_header {
	uint64_t model_fingerprint, bytes;
	uint64_t stamps; /* gguf_stamps: of which files, as they then stood */
	uint32_t part; /* enum weights_part */
	_Atomic uint32_t
		ready; /* the matrices are there: not so while they are packed, or after a death meanwhile */
	unsigned char pad[96];
};
static_assert(sizeof(struct packed_header) == 128, "the matrices stay 64-byte aligned");

static enum weights_part part_of(const struct verifier_config *config)
{
	return config->experts == VERIFIER_EXPERTS_MAPPED ? WEIGHTS_ALL : WEIGHTS_DENSE;
}

/* A predecessor's copy of the same matrices; takes its descriptor. */
static bool take_over(int fd, const struct packed_header *want, struct region *out)
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
		atomic_load_explicit(&header->ready, memory_order_acquire))
		return true;
	region_close(out);
	return false;
}

static bool progress(void *arg)
{
	daemon_progress(arg);
	return !daemon_is_stopping(arg);
}

/* News for who has set a pool up; everybody else finds it when he asks for more words. */
static void say_pages(const struct huge_pages *pages)
{
	char text[384];

	huge_pages_notice(pages, text, sizeof(text));
	if (text[0] == '\0')
		log_notice("packed weights lie in %" PRIu64 " pages of %zu KiB", pages->needed,
			pages->page_bytes >> 10);
	else if (pages->free > 0)
		log_notice("%s", text);
	else
		log_info("%s", text);
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
	if (rc != 0) {
		region_close(out);
		return error_set(err, -rc,
			rc == -ECANCELED ? "stopped before the weights were packed"
					 : "no memory to pack the weights");
	}
	/* A file that changed meanwhile is in it half old and half new. */
	rc = gguf_watch(model->gguf, err);
	if (rc != 0) {
		region_close(out);
		return rc;
	}
	atomic_store_explicit(&header->ready, 1, memory_order_release);
	log_notice("packed %s of weights in %.1f s", UNITS_SIZE(want->bytes),
		(double)(clock_ns() - start) / 1e9);
	return 0;
}

/* The pages of the file that are read meanwhile can be taken away at any time, and need no room. */
static int has_room(const struct verifier_config *config, uint64_t bytes, uint64_t kv_bytes,
	bool *room, struct error *err)
{
	struct memory_limit limit;

	memory_limit_now(&limit);
	*room = bytes + kv_bytes <= limit.available;
	if (config->weights == VERIFIER_WEIGHTS_PACKED && bytes > limit.bytes)
		return error_set(err, ENOMEM,
			"packed weights take %s, but %s has %s: set weights = mapped",
			UNITS_SIZE(bytes), limit.where, UNITS_SIZE(limit.bytes));
	if (!*room)
		log_notice("packed weights (%s) and KV cache (%s) do not fit in the %s that are "
			   "free of %s%s",
			UNITS_SIZE(bytes), UNITS_SIZE(kv_bytes), UNITS_SIZE(limit.available),
			limit.where,
			config->weights == VERIFIER_WEIGHTS_AUTO ? ": the weights stay in the file"
								 : "");
	return 0;
}

int packed_open(struct daemon *daemon, struct broker *broker, int *left,
	const struct verifier_config *config, uint64_t kv_bytes, struct model *model,
	struct region *out, struct error *err)
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
			taken = take_over(*left, &want, out);
		else
			close(*left);
		*left = -1;
		/* It is as large as the new one: what there is room for is asked without it. */
		if (!taken)
			broker_abandon(broker, WEIGHTS_REGION);
	}
	if (!wanted)
		return 0;
	if (!taken) {
		bool room = false;
		int rc = has_room(config, want.bytes, kv_bytes, &room, err);
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
