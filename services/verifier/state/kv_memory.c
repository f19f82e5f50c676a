#include "services/verifier/state/kv_memory.h"

#include "shared/base/checksum.h"
#include "shared/base/log.h"
#include "shared/base/round.h"
#include "shared/ipc/region.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How long a process may take to end. */
#define END_MS 5000
/* Bytes behind the store: the number, at a multiple of this. */
#define NUMBER_BYTES 256

uint64_t kv_memory_device(const struct verifier_config *config, const struct backend *backend)
{
	const struct backend_device *device = backend->device;

	if (device == NULL || config->kv_memory == VERIFIER_KV_HOST)
		return 0;
	uint64_t sum = checksum(1, device->name, strnlen(device->name, sizeof(device->name)));
	sum = checksum(sum, device->uuid, strnlen(device->uuid, sizeof(device->uuid)));
	return sum | 1;
}

static size_t number_at(uint64_t store_bytes)
{
	return round_up(store_bytes, NUMBER_BYTES);
}

uint64_t kv_memory_bytes(uint64_t store_bytes)
{
	return number_at(store_bytes) + NUMBER_BYTES;
}

/* Copies the number to its place, or from there, by a queue that lives for this. */
static int copy_number(const struct buffer *memory, uint64_t store_bytes, uint64_t *number,
	bool out, struct error *err)
{
	const struct queue_limits limits = {0};
	struct backend *backend = memory->backend;
	const struct backend_ops *ops = backend->ops;
	struct place there = {memory, number_at(store_bytes)};
	struct buffer word = {0};
	struct queue *q = NULL;
	int rc = ops->alloc(backend, NUMBER_BYTES, BUFFER_HOST, &word, err);

	if (rc != 0)
		return rc;
	struct place here = {&word, 0};
	memcpy(word.host, number, sizeof(*number));
	rc = ops->queue(backend, &limits, &q, err);
	if (rc == 0) {
		ops->copy(q, out ? here : there, out ? there : here, sizeof(*number));
		rc = ops->wait(q, ops->ticket(q));
		if (rc != 0)
			error_set(err, -rc, "the device's memory cannot be reached: %s",
				strerror(-rc));
		ops->queue_free(q);
	}
	memcpy(number, word.host, sizeof(*number));
	ops->free(&word);
	return rc;
}

int kv_memory_make(struct backend *backend, uint64_t store_bytes, uint64_t number,
	struct buffer *out, int *fd, struct error *err)
{
	const struct backend_ops *ops = backend->ops;
	int rc = ops->alloc(backend, kv_memory_bytes(store_bytes), BUFFER_SHARED, out, err);

	*fd = -1;
	if (rc != 0)
		return rc;
	if (out->ends_with_maker)
		log_notice("the GPU's memory cannot be exported as a descriptor, so the KV cache "
			   "in it ends with this process: a successor computes sessions again");
	rc = *fd = ops->export_fd(out, err);
	if (*fd >= 0)
		rc = copy_number(out, store_bytes, &number, false, err);
	if (rc != 0) {
		ops->free(out);
		*out = (struct buffer){0};
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
	}
	return rc;
}

int kv_memory_wait(uint64_t pid, struct error *err)
{
	/* The same process, if it has begun anew (device_restart_on_cpu). */
	if (pid == 0 || pid > INT32_MAX || pid == (uint64_t)getpid())
		return 0;
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0), .events = POLLIN};
	if (end.fd < 0)
		return 0; /* there is no such process */
	int n = poll(&end, 1, END_MS);
	close(end.fd);
	return n == 1 ? 0
		      : error_set(err, EBUSY, "process %llu, which wrote to it, has not ended",
				(unsigned long long)pid);
}

int kv_memory_adopt(struct backend *backend, int left, uint64_t store_bytes, uint64_t number,
	struct buffer *out, int *fd, struct error *err)
{
	const struct backend_ops *ops = backend->ops;
	uint64_t found = 0;

	*fd = region_memory_fd(left);
	if (*fd < 0)
		return error_set(err, -*fd, "%s: %s", KV_MEMORY, strerror(-*fd));
	int rc = ops->import_fd(backend, *fd, kv_memory_bytes(store_bytes), true, out, err);
	if (rc == 0) {
		rc = copy_number(out, store_bytes, &found, true, err);
		if (rc == 0 && found != number)
			rc = error_set(err, ESTALE, "%s belongs to another region", KV_MEMORY);
		if (rc != 0)
			ops->free(out);
	}
	if (rc != 0) {
		*out = (struct buffer){0};
		close(*fd);
		*fd = -1;
	}
	return rc;
}
