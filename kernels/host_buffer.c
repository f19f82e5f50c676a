#include "kernels/host_buffer.h"

#include "shared/base/huge_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* How a buffer's memory is freed. */
enum handle { HANDLE_CALLERS, HANDLE_HEAP, HANDLE_MAPPING };

static int alloc_shared(size_t bytes, struct buffer *out, struct error *err)
{
	struct huge_pages pages;
	void *memory;
	int rc = huge_pages_memfd("outrider-buffer", bytes, &pages, &out->fd, &memory, err);

	if (rc < 0)
		return rc;
	out->host = memory;
	out->bytes = pages.bytes;
	out->handle = HANDLE_MAPPING;
	return 0;
}

int host_buffer_alloc(size_t bytes, enum buffer_kind kind, struct buffer *out, struct error *err)
{
	*out = (struct buffer){.bytes = bytes, .handle = HANDLE_HEAP, .fd = -1};
	if (kind == BUFFER_SHARED)
		return alloc_shared(bytes, out, err);
	/* Rows of tokens are far apart: with small pages each store of a product would be to a page
	 * of its own (measured: a prompt of 512 tokens of qwen3-30b-a3b takes 2 % longer). */
	out->host = huge_pages_alloc(bytes);
	if (!out->host)
		return error_set(err, ENOMEM, "no memory for a buffer of %zu bytes", bytes);
	return 0;
}

void host_buffer_wrap(void *memory, size_t bytes, struct buffer *out)
{
	*out = (struct buffer){.bytes = bytes, .host = memory, .handle = HANDLE_CALLERS, .fd = -1};
}

int host_buffer_export(const struct buffer *buffer, struct error *err)
{
	if (buffer->fd < 0)
		return error_set(err, ENOTSUP, "a private buffer has no descriptor");
	int fd = fcntl(buffer->fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return error_set(err, errno, "a buffer's descriptor cannot be duplicated: %s",
			strerror(errno));
	return fd;
}

int host_buffer_import(int fd, size_t bytes, bool write, struct buffer *out, struct error *err)
{
	struct stat status;

	*out = (struct buffer){.fd = -1};
	if (fstat(fd, &status) < 0)
		return error_set(
			err, errno, "a buffer's descriptor cannot be used: %s", strerror(errno));
	if (bytes == 0 || status.st_size < 0 || (uint64_t)status.st_size < bytes)
		return error_set(err, EINVAL,
			"a buffer of %zu bytes was asked for, but its memory has %lld", bytes,
			(long long)status.st_size);
	void *memory =
		mmap(NULL, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return error_set(err, errno, "a buffer of %zu bytes cannot be mapped: %s", bytes,
			strerror(errno));
	out->host = memory;
	out->bytes = bytes;
	out->handle = HANDLE_MAPPING;
	return 0;
}

void host_buffer_free(struct buffer *buffer)
{
	if (!buffer->host)
		return;
	if (buffer->handle == HANDLE_HEAP)
		free(buffer->host);
	else if (buffer->handle == HANDLE_MAPPING)
		munmap(buffer->host, buffer->bytes);
	if (buffer->fd >= 0)
		close(buffer->fd);
	*buffer = (struct buffer){.fd = -1};
}
