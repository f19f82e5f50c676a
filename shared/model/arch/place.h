/*
 * Places a model's weights for a back end (backend_ops.place): every matrix and vector that steps
 * are given by address. Experts are not among them: they are reached through buffers
 * (shared/model/pass/experts.h). Call model_place when the weights lie where they will stay
 * (weights_use moves them), and model_forget before that memory goes.
 */
#pragma once

#include "kernels/backend.h"
#include "shared/model/arch/model.h"

struct adapter;

/* -ENOMEM when the device has no room for them; then nothing stays placed. */
int model_place(const struct model *model, struct backend *backend, struct error *err);
void model_forget(const struct model *model, struct backend *backend);
/* The bytes that they take in all. */
uint64_t model_place_bytes(const struct model *model);

/* The same for a gated adapter (shared/model/arch/adapter.h). */
int adapter_place(const struct adapter *adapter, const struct model *target,
	struct backend *backend, struct error *err);
void adapter_forget(
	const struct adapter *adapter, const struct model *target, struct backend *backend);
uint64_t adapter_place_bytes(const struct adapter *adapter, const struct model *target);
