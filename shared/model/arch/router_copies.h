/*
 * Copies of a model's routers in 8 bits (Q8_0), for code that only ranks experts: they have a
 * quarter of the bytes of a float32 router. The forward pass never uses them. A router is used as
 * it is if it is quantised in the file, if its rows are not whole blocks, or if it does not have
 * the model's shape. Once made, any thread may read them.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/model.h"

struct router_copies {
	/* [n_layers] each [n_experts][n_embd]; unset for layers without experts */
	struct matrix *matrix;
	unsigned char *blocks; /* memory of all copies */
	size_t bytes; /* its size */
	/* for which the copies of the first n_placed layers are placed */
	struct backend *backend;
	uint32_t n_placed;
};

/* Bytes that the copies of a model's routers take. */
size_t router_copies_bytes(const struct model *model);
/* Borrows model; reads every router once. -ENOMEM. */
int router_copies_init(struct router_copies *copies, const struct model *model,
	struct backend *backend, struct error *err);
void router_copies_exit(struct router_copies *copies);
