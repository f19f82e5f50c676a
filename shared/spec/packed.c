#include "shared/spec/packed.h"

#include <errno.h>

int packed_use(const struct region *region, struct model *model, struct error *err)
{
	const struct packed_header *header = region_payload(region);
	uint64_t room = region->bytes - REGION_DATA;
	if (room < sizeof(*header) || !atomic_load_explicit(&header->ready, memory_order_acquire) ||
		header->model_fingerprint != model->file_fingerprint)
		return error_set(err, ESTALE, "the verifier's weights are not this file's");
	uint32_t part = header->part;
	if (part != WEIGHTS_DENSE && part != WEIGHTS_ALL)
		return error_set(
			err, ESTALE, "the verifier's weights are of unknown kind %u", part);
	uint64_t bytes = weights_bytes(model, (enum weights_part)part);
	if (bytes == 0 || bytes != header->bytes || bytes > room - sizeof(*header))
		return error_set(err, ESTALE, "the verifier's weights have another size");
	weights_use(model, (enum weights_part)part, header + 1);
	return (int)part;
}
