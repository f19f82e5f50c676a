/*
 * How large the KV cache is to be, and what the service may take of a device's memory: the settings
 * kv_tokens, device_kv and device_memory. Pure, but for the question how much memory the device has.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "kernels/backend.h"

/* This part of a device's memory is left to the driver and to other programs (device/share.h of the
 * expert-cache keeps it too). */
#define KV_SIZE_RESERVE_PART 16

/* Whether a text is a size of a device's memory: auto, a share or bytes. -EINVAL names the key. */
int kv_size_read(const char *key, const char *text, struct error *err);
/* The same of device_memory and device_kv, whatever computes. */
int kv_size_check(const struct verifier_config *config, struct error *err);

/* Bytes of the device's memory that the service may take; 0: there is no device. -EINVAL names the
 * key. */
int kv_size_most(const struct verifier_config *config, const struct backend *backend, uint64_t *out,
	struct error *err);

/* The same if the setting says it; 0: with auto, where each process leaves its own reserve, or with a
 * setting that is wrong. */
uint64_t kv_size_limit(const struct verifier_config *config, const struct backend *backend);

/* The tokens that the settings mean. -EINVAL: they are too few for one session, or the setting is
 * wrong. */
int kv_size_tokens(const struct verifier_config *config, const struct model *model,
	const struct backend *backend, int64_t *out, struct error *err);

/* Bytes of the store for so many tokens, and with kv_memory = device what the device's memory of it
 * takes, else 0. */
uint64_t kv_size_bytes(
	const struct verifier_config *config, const struct model *model, int64_t tokens);
uint64_t kv_size_device_bytes(const struct verifier_config *config, const struct model *model,
	const struct backend *backend, int64_t tokens);
