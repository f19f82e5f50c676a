#include "shared/spec/slots.h"

#include "shared/model/router_copies.h"

uint64_t slots_needs_weights(const struct model *model)
{
	return gguf_bytes(model->gguf) - model->expert_bytes_total + router_copies_bytes(model);
}

void slots_say_needs(struct slots_header *header, const struct slots_needs *needs)
{
	page_write(&header->needs_lock, &header->needs, needs, sizeof(*needs));
}

bool slots_needs_said(const struct slots_header *header, struct slots_needs *out)
{
	if (atomic_load_explicit(&header->needs_lock.sequence, memory_order_relaxed) == 0)
		return false;
	return page_read(&header->needs_lock, &header->needs, out, sizeof(*out));
}
