#include "services/expert-cache/model_file.h"

#include "services/expert-cache/service.h"
#include "shared/base/log.h"
#include "shared/base/units.h"

#include <inttypes.h>
#include <string.h>
#include <sysexits.h>

static bool link_busy(void *arg)
{
	const struct service *service = arg;
	return service->budget > 0 &&
	       atomic_load_explicit(&service->transfer.queue, memory_order_relaxed) > 0;
}

/* Adopts a predecessor's digest of the same files. Blocks that changed while nobody looked are
 * found when it is compared. */
static bool adopt(struct service *service, int fd, struct region *out)
{
	const struct gguf *gguf = service->model->gguf;
	struct error err;
	if (region_adopt(fd, DIGEST_REGION, DIGEST_LAYOUT, REGION_DATA + sizeof(struct file_digest),
		    out, &err) != 0) {
		log_notice("the predecessor's digest is not taken over: %s", err.text);
		return false;
	}
	const struct file_digest *table = region_payload(out);
	uint64_t n_done = atomic_load_explicit(&table->n_done, memory_order_relaxed);
	if (file_digest_check(table, out->bytes - REGION_DATA, gguf, &err) == 0 &&
		n_done <= table->n_blocks &&
		atomic_load_explicit(&table->differs, memory_order_relaxed) == 0)
		return true;
	region_close(out);
	return false;
}

static int begin(struct service *service, bool adopted, struct error *err)
{
	struct model_file *file = &service->file;
	const struct gguf *gguf = service->model->gguf;
	if (!adopted) {
		int status = region_create(DIGEST_REGION, DIGEST_LAYOUT, file_digest_bytes(gguf), 0,
			&file->region, err);
		if (status != 0)
			return status;
		file_digest_format(region_payload(&file->region), gguf);
	}
	struct file_digest *table = region_payload(&file->region);
	file->older = atomic_load_explicit(&table->state, memory_order_relaxed) != gguf_state(gguf);
	file->compared = 0;
	broker_offer(service->broker, &file->region);
	return digest_start(&file->digest, gguf, table, link_busy, service, err);
}

int model_file_open(struct service *service, int recovered_fd, struct error *err)
{
	struct model_file *file = &service->file;
	bool adopted = recovered_fd >= 0 && adopt(service, recovered_fd, &file->region);
	if (recovered_fd >= 0 && !adopted)
		broker_abandon(service->broker, DIGEST_REGION);
	file->state = gguf_state(service->model->gguf);
	return begin(service, adopted, err);
}

void model_file_close(struct service *service)
{
	struct model_file *file = &service->file;
	digest_stop(&file->digest);
	if (file->region.header != NULL)
		region_close(&file->region);
}

uint64_t model_file_digested(const struct service *service)
{
	const struct gguf *gguf = service->model->gguf;
	const struct file_digest *table = service->file.digest.table;
	uint64_t n = atomic_load_explicit(&table->n_done, memory_order_relaxed), bytes = 0;
	for (size_t i = 0; i < gguf_n_parts(gguf); i++)
		bytes += gguf_part_at(gguf, i)->bytes;
	/* The last blocks of files are shorter. */
	return n < table->n_blocks && n * DIGEST_BLOCK_BYTES < bytes ? n * DIGEST_BLOCK_BYTES
								     : bytes;
}

/* Begins a new digest. The file changed after the predecessor had read it and before we opened it,
 * so for us it is unchanged. A process that opened it earlier finds the difference in the region
 * that it has. */
static int begin_anew(struct service *service, struct error *err)
{
	struct model_file *file = &service->file;
	struct region before = file->region;
	log_notice("%s: the file was written to after the predecessor had read it: its digest "
		   "begins anew",
		gguf_path(service->model->gguf));
	digest_stop(&file->digest);
	file->region = (struct region){.fd = -1};
	/* The new one is offered before the old one is closed, because the broker borrows the
	 * descriptor. */
	int status = begin(service, false, err);
	if (file->region.header == NULL)
		file->region = before;
	else
		region_close(&before);
	return status;
}

static void lose(struct service *service, const struct error *err)
{
	service->file.lost = true;
	if (service->budget > 0)
		loads_lose(&service->transfer.loads, err);
	else
		log_error("%s", err->text);
}

static void say_touched(struct service *service)
{
	struct model_file *file = &service->file;
	const struct gguf *gguf = service->model->gguf;
	char sample[GGUF_SAMPLE_TEXT];
	if (file->state == gguf_state(gguf))
		return;
	file->state = gguf_state(gguf);
	log_notice("%s: something touched the file; the parts that were compared are the same: %s",
		gguf_path(gguf), gguf_sample_text(gguf, sample));
}

/* Logs a comparison of all blocks that have a digest. */
static void say_compared(struct service *service)
{
	struct model_file *file = &service->file;
	const struct gguf *gguf = service->model->gguf;
	const struct file_digest *table = file->digest.table;
	uint64_t compared = atomic_load_explicit(&file->digest.compared, memory_order_acquire);
	if (compared == file->compared)
		return;
	file->compared = compared;
	uint64_t n = atomic_load_explicit(&file->digest.n_compared, memory_order_relaxed);
	if (n == table->n_blocks)
		log_notice("%s: every byte was compared by its digest and is the same",
			gguf_path(gguf));
	else
		log_notice("%s: of %" PRIu64 " blocks of %s only the first %" PRIu64
			   " had been read before; these are the same",
			gguf_path(gguf), table->n_blocks, UNITS_SIZE(DIGEST_BLOCK_BYTES), n);
}

/* The verifier reads experts itself while it has another file open. If it was started on the file
 * that has our file's name now, this process follows it. */
static void follow_verifier(struct service *service)
{
	const struct gguf *gguf = service->model->gguf;
	struct slots_needs said;
	size_t part;
	if (service->budget == 0 || !slots_needs_said(service->store.slots.header, &said) ||
		said.files == 0 || said.files == gguf_files(gguf)) {
		service->file.other_told = false;
		return;
	}
	bool replaced = gguf_name(gguf, &part) == GGUF_NAME_OTHER;
	if (!service->file.other_told)
		log_notice("%s: the verifier has another file open; %s", gguf_path(gguf),
			replaced ? "a restart opens the file that has this name now"
				 : "it reads experts itself until both are started on the same "
				   "file");
	service->file.other_told = true;
	if (replaced)
		daemon_stop(service->daemon, EX_TEMPFAIL);
}

/* -ESTALE: the model is lost. */
static int check_bytes(struct service *service, struct error *err)
{
	struct model_file *file = &service->file;
	const struct gguf *gguf = service->model->gguf;
	if (atomic_load_explicit(&file->digest.compared, memory_order_relaxed) > 0)
		file->older = false;
	int status = gguf_watch(gguf, err);
	if (status == 0)
		status = digest_check(&file->digest, err);
	if (status != 0 && file->older && gguf_lost(gguf, NULL) == 0 && gguf_proven(gguf))
		status = begin_anew(service, err);
	return status;
}

void model_file_check(void *arg)
{
	struct service *service = arg;
	const struct gguf *gguf = service->model->gguf;
	struct error err;
	char news[512];
	if (!service->file.lost && check_bytes(service, &err) != 0)
		lose(service, &err);
	/* The transfer worker may have noticed. */
	if (service->file.lost || (service->budget > 0 && loads_lost(&service->transfer.loads))) {
		daemon_set_state(service->daemon, "degraded: the model file changed");
		daemon_stop(service->daemon, EX_TEMPFAIL);
		return;
	}
	if (gguf_news(gguf, &service->file.news, news, sizeof(news)))
		log_notice("%s", news);
	say_touched(service);
	say_compared(service);
	/* A successor adopts slots only in a state in which every byte was found to be the same. */
	if (service->budget > 0 && digest_proves(&service->file.digest))
		service->store.slots.header->model_stamps = gguf_stamps(gguf);
	follow_verifier(service);
}
