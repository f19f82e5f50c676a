#include "services/verifier/state/regions.h"

#include "services/verifier/state/kv_memory.h"
#include "services/verifier/state/packed.h"
#include "shared/base/arithmetic.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/spec/kv_plan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void regions_recover(struct daemon *daemon, struct regions_left *left)
{
	*left = (struct regions_left){-1, -1, -1, -1, -1, -1, -1};
	(void)broker_recover(daemon, WEIGHTS_REGION, &left->weights);
	if (broker_recover(daemon, SESSIONS_REGION, &left->sessions) != 0)
		return;
	(void)broker_recover(daemon, DRAFT_REGION, &left->draft);
	(void)broker_recover(daemon, SUPPORTS_REGION, &left->supports);
	(void)broker_recover(daemon, HIDDEN_REGION, &left->hidden);
	(void)broker_recover(daemon, KV_REGION, &left->kv);
	(void)broker_recover(daemon, KV_MEMORY, &left->kv_memory);
}

uint64_t regions_left_device(const struct regions_left *left)
{
	struct region region;
	struct error err;
	int own = left->kv_memory >= 0 && left->kv >= 0 ? fcntl(left->kv, F_DUPFD_CLOEXEC, 0) : -1;

	if (own < 0 ||
		region_attach(own, KV_REGION, KV_REGION_LAYOUT,
			REGION_DATA + sizeof(struct kv_region_header), false, &region, &err) != 0)
		return 0;
	const struct kv_region_header *header = region_payload(&region);
	struct kv_layout layout = header->layout;
	uint64_t bytes = header->device != 0 ? kv_memory_bytes(kv_store_bytes(&layout)) : 0;
	region_close(&region);
	return bytes;
}

void regions_left_close(struct regions_left *left)
{
	int *fds[] = {&left->sessions, &left->draft, &left->supports, &left->hidden, &left->kv,
		&left->kv_memory, &left->weights};

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

/* Takes the predecessor's region *left, if it has at least this payload. -ENOENT when there is none
 * that can be used. The caller checks whether its content has the shape that this configuration
 * needs. */
static int adopt(int *left, const char *name, uint32_t layout, size_t payload, struct region *out)
{
	struct error err = {.text = ""};
	int fd = *left;

	if (fd < 0)
		return -ENOENT;
	*left = -1;
	int rc = region_adopt(fd, name, layout, REGION_DATA + payload, out, &err);
	if (rc != 0) {
		log_notice("region %s of the predecessor is not taken over: %s", name, err.text);
		return -ENOENT;
	}
	return 0;
}

/* Fingerprints cover only part of the bytes. So a file with the predecessor's path and file
 * fingerprint must have its stamps too: it is the same file, not written to since. With another
 * path, or where a packed copy lies next to its original (the copy's header names it), only the
 * model's fingerprint is compared. */
static bool same_file(const struct sessions_header *header, const struct sessions_header *want)
{
	return header->model_stamps == want->model_stamps ||
	       header->file_fingerprint != want->file_fingerprint ||
	       strncmp(header->model_path, want->model_path, sizeof(want->model_path)) != 0;
}

static bool same_sessions(const struct sessions_header *header, const struct sessions_header *want)
{
	return header->n_sessions == want->n_sessions && header->n_context == want->n_context &&
	       header->page_bytes == want->page_bytes &&
	       header->model_fingerprint == want->model_fingerprint &&
	       header->tokenizer_fingerprint == want->tokenizer_fingerprint &&
	       same_file(header, want);
}

/* Either sum may be right: the predecessor may have died while it changed model_stamps. */
static bool is_sound(const struct sessions_header *header)
{
	uint64_t sum = sessions_sum(header);

	return header->sums[0] == sum || header->sums[1] == sum;
}

/* Copies our own header to the region. When the region was there already, this changes only the
 * model's path and stamps, if the same model is served from another place now; a process that is
 * killed while it writes them leaves sessions that are not taken over. */
static void write_header(struct regions *regions)
{
	struct sessions_header *shared = region_payload(&regions->sessions);

	regions->header.sums[0] = regions->header.sums[1] = sessions_sum(&regions->header);
	memcpy(shared, &regions->header, sizeof(*shared));
}

/* Writes our own header, of which only model_stamps has changed. */
static void write_stamps(struct regions *regions)
{
	struct sessions_header *own = &regions->header,
			       *shared = region_payload(&regions->sessions);

	own->sums[0] = own->sums[1] = sessions_sum(own);
	__atomic_store_n(&shared->sums[1], own->sums[1], __ATOMIC_RELEASE);
	__atomic_store_n(&shared->model_stamps, own->model_stamps, __ATOMIC_RELEASE);
	__atomic_store_n(&shared->sums[0], own->sums[0], __ATOMIC_RELEASE);
}

struct session_page *regions_page(const struct regions *regions, uint32_t index)
{
	return session_at(&regions->header, region_payload(&regions->sessions), index);
}

uint32_t regions_next_page(const struct regions *regions, uint32_t from)
{
	const struct sessions_header *header = &regions->header;
	size_t first = (size_t)((char *)regions_page(regions, 0) -
				(char *)region_payload(&regions->sessions));
	size_t data = region_next_data(&regions->sessions, first + from * header->page_bytes);
	size_t page = (data - first) / header->page_bytes;

	return page < header->n_sessions ? (uint32_t)page : header->n_sessions;
}

static int open_sessions(int *left, const struct verifier_config *config, const struct model *model,
	uint64_t tokenizer_fingerprint, struct regions *out, struct error *err)
{
	struct sessions_header want = {
		.n_sessions = LIMIT_SESSIONS,
		.n_context = (uint32_t)config->context,
		.page_bytes = session_page_bytes((uint32_t)config->context),
		.model_fingerprint = model->fingerprint,
		.file_fingerprint = model->file_fingerprint,
		.model_stamps = gguf_stamps(model->gguf),
		.arithmetic = verifier_config_arithmetic(config),
		.tokenizer_fingerprint = tokenizer_fingerprint,
	};
	size_t payload = sessions_bytes(want.n_sessions, want.n_context);
	char *path = file_absolute(gguf_path(model->gguf));

	if (path == NULL || strlen(path) >= sizeof(want.model_path)) {
		free(path);
		return error_set(err, ENAMETOOLONG,
			"%s: its absolute path must have fewer than %zu bytes",
			gguf_path(model->gguf), sizeof(want.model_path));
	}
	memcpy(want.model_path, path, strlen(path) + 1);
	free(path);

	struct sessions_header *found = &out->header;
	char names[2][ARITHMETIC_TEXT];
	if (adopt(left, SESSIONS_REGION, SESSIONS_LAYOUT, payload, &out->sessions) == 0) {
		memcpy(found, region_payload(&out->sessions), sizeof(*found));
		bool sound = is_sound(found);
		bool same = found->arithmetic == want.arithmetic;
		out->recovered = sound && same && same_sessions(found, &want);
		if (sound)
			want.other_stamps =
				same_file(found, &want) ? found->other_stamps : want.model_stamps;
		if (out->recovered) {
			*found = want;
			write_header(out);
			return 0;
		}
		if (sound && !same)
			log_notice("the predecessor's sessions were computed with arithmetic %s, "
				   "but this verifier computes with arithmetic %s: they are not "
				   "taken over",
				arithmetic_text((uint32_t)found->arithmetic, names[0]),
				arithmetic_text((uint32_t)want.arithmetic, names[1]));
		else
			log_notice("%s: its sessions are not taken over",
				sound ? "the predecessor served another model or context, or the "
					"model "
					"file was written to or replaced since"
				      : "another process wrote to the predecessor's region of "
					"sessions");
		region_close(&out->sessions);
	}
	int rc = region_create(
		SESSIONS_REGION, SESSIONS_LAYOUT, payload, REGION_SPARSE, &out->sessions, err);
	if (rc != 0)
		return rc;
	*found = want;
	write_header(out);
	return 0;
}

static int open_draft(int *left, struct regions *out, struct error *err)
{
	if (out->recovered &&
		adopt(left, DRAFT_REGION, DRAFT_LAYOUT, draft_bytes(), &out->draft) == 0) {
		struct draft_rings rings;

		if (draft_attach(&rings, region_payload(&out->draft), draft_bytes(), NULL) == 0 &&
			!ring_broken(&rings.requests) && !ring_broken(&rings.replies))
			return 0;
		region_close(&out->draft);
	}
	int rc = region_create(DRAFT_REGION, DRAFT_LAYOUT, draft_bytes(), 0, &out->draft, err);
	if (rc == 0)
		draft_format(region_payload(&out->draft));
	return rc;
}

/* Takes over or makes "supports", whose content never outlives a pass. */
static int open_supports(int *left, struct regions *out, struct error *err)
{
	if (out->recovered &&
		adopt(left, SUPPORTS_REGION, SUPPORTS_LAYOUT, SUPPORTS_BYTES, &out->supports) == 0)
		return 0;
	return region_create(
		SUPPORTS_REGION, SUPPORTS_LAYOUT, SUPPORTS_BYTES, 0, &out->supports, err);
}

/* Takes over the predecessor's hidden states, if they are of this model. Without them the drafter
 * says which it wants. */
static void adopt_hidden(int *left, const struct model *model, struct regions *out)
{
	struct hidden hidden;

	if (!out->recovered || adopt(left, HIDDEN_REGION, HIDDEN_LAYOUT,
				       sizeof(struct hidden_header), &out->hidden) != 0)
		return;
	if (hidden_attach(&hidden, region_payload(&out->hidden), out->hidden.bytes - REGION_DATA,
		    NULL) == 0 &&
		hidden.shape.model == model->file_fingerprint &&
		hidden.shape.n_embd == model->config.n_embd)
		return;
	region_close(&out->hidden);
	out->hidden = (struct region){.fd = -1};
}

int regions_make_hidden(
	struct regions *regions, const struct hidden_shape *shape, struct error *err)
{
	struct region made;
	int rc = region_create(HIDDEN_REGION, HIDDEN_LAYOUT, hidden_bytes(shape), 0, &made, err);

	if (rc != 0)
		return rc;
	hidden_format(region_payload(&made), shape);
	if (regions->hidden.header != NULL)
		region_close(&regions->hidden);
	regions->hidden = made;
	return 0;
}

static bool same_kv(const struct kv_region_header *found, const struct kv_region_header *want)
{
	struct kv_region_header other = *found;

	other.number = want->number;
	other.pid = want->pid;
	return memcmp(&other, want, sizeof(other)) == 0;
}

/* Takes over the predecessor's KV cache, if its cells belong to the sessions that were taken over.
 */
static bool adopt_kv(struct regions_left *left, const struct kv_region_header *want, size_t payload,
	struct backend *backend, struct regions *out)
{
	struct error err;

	if (!out->recovered ||
		adopt(&left->kv, KV_REGION, KV_REGION_LAYOUT, payload, &out->kv) != 0)
		return false;
	struct kv_region_header *found = region_payload(&out->kv);
	uint64_t number = found->number;
	if (!same_kv(found, want)) {
		log_notice("the predecessor's KV cache has another shape or lies elsewhere: "
			   "sessions are computed again");
		region_close(&out->kv);
		return false;
	}
	if (want->device == 0)
		return true;
	int rc = left->kv_memory >= 0 ? kv_memory_wait(found->pid, &err)
				      : error_set(&err, ENOENT, "no other process kept its memory");
	if (rc == 0)
		rc = kv_memory_adopt(backend, left->kv_memory, kv_store_bytes(&want->layout),
			number, &out->kv_store, &out->kv_store_fd, &err);
	if (rc == 0) {
		found->pid = (uint64_t)getpid();
		return true;
	}
	log_notice("the KV cache on the device is not taken over, and sessions are computed again: "
		   "%s",
		err.text);
	region_close(&out->kv);
	return false;
}

struct kv_layout regions_kv_layout(const struct verifier_config *config, const struct model *model)
{
	const struct kv_plan plan = {
		.type = verifier_config_kv_type(config, model),
		.sessions = config->sessions_allocated,
		.prefill = config->prefill_allocated,
		.tokens = config->kv_allocated,
		.windows_whole = config->prefix_windows,
		.states_bytes = (uint64_t)config->prefix_states,
	};
	return kv_plan_layout(&plan, model);
}

/* Drops what the predecessor left: it may be as large as the new one, so it must not count in what is
 * asked for room. */
static void abandon_kv(struct broker *broker, struct regions_left *left)
{
	int *fds[] = {&left->kv, &left->kv_memory};

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
	broker_abandon(broker, KV_REGION);
	broker_abandon(broker, KV_MEMORY);
}

static int make_kv(const struct kv_region_header *want, size_t payload, struct backend *backend,
	struct regions *out, struct error *err)
{
	struct kv_region_header *header;
	int rc = region_create(KV_REGION, KV_REGION_LAYOUT, payload, REGION_HUGE, &out->kv, err);

	if (rc != 0)
		return rc;
	header = region_payload(&out->kv);
	*header = *want;
	header->number = out->kv.header->uid;
	header->pid = (uint64_t)getpid();
	out->kv_mem = header + 1;
	return want->device != 0 ? kv_memory_make(backend, kv_store_bytes(&want->layout),
					   header->number, &out->kv_store, &out->kv_store_fd, err)
				 : 0;
}

static struct kv_region_header wanted_kv(const struct verifier_config *config,
	const struct model *model, const struct backend *backend)
{
	return (struct kv_region_header){
		.model_fingerprint = model->fingerprint,
		.arithmetic = verifier_config_arithmetic(config),
		.layout = regions_kv_layout(config, model),
		.device = kv_memory_device(config, backend),
	};
}

static size_t kv_payload(const struct kv_region_header *want)
{
	return sizeof(*want) + kv_map_bytes(&want->layout) +
	       (want->device == 0 ? kv_store_bytes(&want->layout) : 0);
}

static void close_kv(struct regions *regions)
{
	if (regions->kv_store.backend != NULL)
		regions->kv_store.backend->ops->free(&regions->kv_store);
	if (regions->kv.header != NULL && regions->kv_store_fd >= 0)
		close(regions->kv_store_fd);
	if (regions->kv.header != NULL)
		region_close(&regions->kv);
	regions->kv_store = (struct buffer){0};
	regions->kv_store_fd = -1;
	regions->kv = (struct region){.fd = -1};
}

int regions_remake_kv(struct regions *regions, const struct verifier_config *config,
	const struct model *model, struct backend *backend, struct error *err)
{
	const struct kv_region_header want = wanted_kv(config, model, backend);

	close_kv(regions);
	regions->kv_recovered = false;
	regions->kv_layout = want.layout;
	int rc = make_kv(&want, kv_payload(&want), backend, regions, err);
	if (rc != 0)
		close_kv(regions);
	return rc;
}

static int open_kv(struct broker *broker, struct regions_left *left,
	const struct verifier_config *config, const struct model *model, struct backend *backend,
	struct resources_needs *needs, struct regions *out, struct error *err)
{
	const struct kv_region_header want = wanted_kv(config, model, backend);
	size_t payload = kv_payload(&want);

	if (kv_bytes(&want.layout) == 0)
		return error_set(err, ENOMEM, "KV cache of %lld tokens (kv_tokens) is too large",
			(long long)config->kv_allocated);
	bool was_left = left->kv >= 0 || left->kv_memory >= 0;
	out->kv_layout = want.layout;
	out->kv_recovered = adopt_kv(left, &want, payload, backend, out);
	if (!out->kv_recovered && was_left)
		abandon_kv(broker, left);
	if (out->kv_recovered) {
		uint64_t there = region_memory(&out->kv);

		needs->kv_there = there < needs->kv ? there : needs->kv;
	}
	int rc = resources_memory(config, model, needs, err);
	if (rc != 0)
		return rc;
	if (out->kv_recovered) {
		out->kv_mem = (struct kv_region_header *)region_payload(&out->kv) + 1;
		return 0;
	}
	rc = make_kv(&want, payload, backend, out, err);
	return rc == 0 ? 0
		       : error_prefix(err, rc, "KV cache of %lld tokens (kv_tokens)",
				 (long long)config->kv_allocated);
}

int regions_open(struct broker *broker, struct regions_left *left,
	const struct verifier_config *config, const struct model *model, struct backend *backend,
	struct resources_needs *needs, uint64_t tokenizer_fingerprint, struct regions *out,
	struct error *err)
{
	memset(out, 0, sizeof(*out));
	out->kv_store_fd = -1;
	out->places = verifier_config_places(config);
	int rc = open_sessions(&left->sessions, config, model, tokenizer_fingerprint, out, err);
	if (rc == 0)
		rc = open_draft(&left->draft, out, err);
	if (rc == 0)
		rc = open_supports(&left->supports, out, err);
	if (rc == 0)
		adopt_hidden(&left->hidden, model, out);
	if (rc == 0)
		rc = open_kv(broker, left, config, model, backend, needs, out, err);
	if (rc != 0)
		regions_close(out);
	else
		needs->there += region_memory(&out->sessions) + region_memory(&out->draft) +
				region_memory(&out->supports);
	return rc;
}

void regions_stamp(struct regions *regions, const struct region *packed, const struct model *model)
{
	uint64_t stamps = gguf_stamps(model->gguf);

	if (regions->header.model_stamps == stamps)
		return;
	regions->header.model_stamps = stamps;
	write_stamps(regions);
	packed_stamp(packed, model);
}

uint64_t regions_there(const struct regions *regions, const struct region *packed)
{
	return region_memory(&regions->kv) + region_memory(&regions->sessions) +
	       region_memory(&regions->draft) + region_memory(&regions->supports) +
	       (regions->hidden.header != NULL ? region_memory(&regions->hidden) : 0) +
	       (packed->header != NULL ? region_memory(packed) : 0);
}

void regions_needs(const struct regions *regions, const struct region *packed,
	const struct model *model, struct slots_needs *out)
{
	const struct sessions_header *header = &regions->header;

	*out = (struct slots_needs){
		.weights = slots_needs_weights(model),
		.kv = kv_map_bytes(&regions->kv_layout) +
		      (regions->kv_store_fd < 0 ? kv_store_bytes(&regions->kv_layout) : 0),
		.rest = sessions_bytes(regions->places, header->n_context) + draft_bytes() +
			SUPPORTS_BYTES +
			(regions->hidden.header != NULL ? regions->hidden.bytes : 0),
		.files = gguf_files(model->gguf),
		.there = regions_there(regions, packed),
	};
}

void regions_close(struct regions *regions)
{
	close_kv(regions);
	if (regions->hidden.header != NULL)
		region_close(&regions->hidden);
	if (regions->supports.header != NULL)
		region_close(&regions->supports);
	if (regions->draft.header != NULL)
		region_close(&regions->draft);
	if (regions->sessions.header != NULL)
		region_close(&regions->sessions);
	memset(regions, 0, sizeof(*regions));
}
