#include "services/drafter/draft_kv.h"

#include <errno.h>
#include <sys/mman.h>

int draft_kv_open(struct backend *backend, const struct kv_layout *layout, struct kv *kv,
	struct draft_kv_memory *memory, struct error *err)
{
	bool away = backend->device != NULL;
	memory->bytes = away ? kv_map_bytes(layout) : kv_bytes(layout);
	memory->at = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory->at == MAP_FAILED) {
		memory->at = NULL;
		return error_set(
			err, ENOMEM, "no memory for a draft KV cache of %zu bytes", memory->bytes);
	}
	return away ? kv_init_own(kv, backend, memory->at, layout, err)
		    : kv_init_memory(kv, backend, memory->at, layout, true, err);
}

void draft_kv_close(struct kv *kv, struct draft_kv_memory *memory)
{
	if (kv->meta)
		kv_exit(kv);
	*kv = (struct kv){0};
	if (memory->at)
		munmap(memory->at, memory->bytes);
	memory->at = NULL;
}
