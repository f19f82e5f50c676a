#include "shared/spec/slots.h"

#include "shared/model/arch/router_copies.h"

uint64_t slots_needs_weights(const struct model *model)
{
	return gguf_bytes(model->gguf) - model->expert_bytes_total + model->memory_bytes +
	       router_copies_bytes(model);
}

void slots_say_needs(struct slots_header *header, const struct slots_needs *needs)
{
	page_write(&header->needs_lock, &header->needs, needs, sizeof(*needs));
}

static uint64_t at_most(uint64_t bytes, uint64_t most)
{
	return bytes < most ? bytes : most;
}

bool slots_needs_said(const struct slots_header *header, struct slots_needs *out)
{
	if (atomic_load_explicit(&header->needs_lock.sequence, memory_order_relaxed) == 0)
		return false;
	struct slots_needs said;
	if (!page_read(&header->needs_lock, &header->needs, &said, sizeof(said)))
		return false;
	out->weights = at_most(said.weights, SLOTS_NEEDS_BYTES_MAX);
	out->kv = at_most(said.kv, SLOTS_NEEDS_BYTES_MAX);
	out->rest = at_most(said.rest, SLOTS_NEEDS_BYTES_MAX);
	out->there = at_most(said.there, out->weights + out->kv + out->rest);
	out->files = said.files;
	out->device = at_most(said.device, SLOTS_NEEDS_BYTES_MAX);
	out->device_there = at_most(said.device_there, out->device);
	out->device_kv = at_most(said.device_kv, out->device);
	out->device_most = at_most(said.device_most, SLOTS_NEEDS_BYTES_MAX);
	return true;
}
