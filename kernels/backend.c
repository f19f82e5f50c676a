#include "kernels/backend.h"

#include "shared/base/units.h"

#include <errno.h>

int backend_no_memory(
	struct error *err, const char *device, uint64_t bytes, const struct backend_memory *memory)
{
	return error_set(err, ENOMEM, "%s has no %s left: %s of its %s are free", device,
		UNITS_SIZE(bytes), UNITS_SIZE(memory->free), UNITS_SIZE(memory->bytes));
}

const char *backend_lacks(const struct backend_ops *ops)
{
	const struct {
		const char *name;
		bool has;
	} steps[] = {
		{"requantise", ops->requantise != NULL},
		{"fast", ops->fast != NULL},
		{"embed", ops->embed != NULL},
		{"norm", ops->norm != NULL},
		{"products", ops->products != NULL},
		{"attend", ops->attend != NULL},
		{"mla", ops->mla != NULL},
		{"delta", ops->delta != NULL},
		{"replay", ops->replay != NULL},
		{"dense_ffn", ops->dense_ffn != NULL},
		{"route", ops->route != NULL},
		{"budget", ops->budget != NULL},
		{"experts", ops->experts != NULL},
		{"combine", ops->combine != NULL},
		{"logits", ops->logits != NULL},
		{"pick", ops->pick != NULL},
		{"adapt", ops->adapt != NULL},
		{"silu_norm", ops->silu_norm != NULL},
	};

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		if (!steps[i].has)
			return steps[i].name;
	return NULL;
}
