/*
 * The setting `device`: which back end the verifier computes with. Used by main, before any thread
 * starts, and by the loop when a device is lost.
 */
#pragma once

#include "services/verifier/state/config.h"

struct adapter;
struct backend;
struct daemon;

/* What computes, and how it came to that. */
struct device_opened {
	struct backend *backend; /* the caller's */
	int claim; /* device_claim.h, the caller's to close; -1: none */
	char refused[256]; /* why it is the CPU, although a device is set; "" */
};

/* Makes the back end for a loaded model, under settings that fit it. kv_there: bytes that a
 * predecessor's KV cache has of the device. runtime_dir: the service's, for which the device is
 * claimed; NULL: it is not. Sets kv_allocated as device_kv says. Where the setting leaves the choice,
 * the CPU computes if the device cannot, and the log says why. -ENOMEM: the device has too little
 * memory; the message says with which settings the model would fit. -EBUSY: another service uses it.
 * Other errors as backend_cuda_create. */
int device_open(struct verifier_config *config, const struct model *model, uint64_t kv_there,
	const char *runtime_dir, struct device_opened *out, struct error *err);

/* Bytes of the KV cache in the device's memory; 0: it has none. */
uint64_t device_kv_bytes(const struct verifier_config *config, const struct model *model,
	const struct backend *backend);

/* -ENOMEM: a device has the memory that the model needs, but not what the adapter adds; the message
 * says how much that is. */
int device_check_adapter(const struct verifier_config *config, const struct model *model,
	const struct adapter *adapter, uint64_t kv_there, struct backend *backend,
	struct error *err);

/* The setting `arithmetic`, for a model and the back end that was made for it: sets config->fast and
 * config->fast_number, and logs where it changes nothing. -ENOENT and others, as backend_ops.fast. */
int device_open_fast(struct verifier_config *config, const struct model *model,
	struct backend *backend, struct error *err);

/* Makes the CPU's back end beside that of a device; *out is NULL where there is none. -EINVAL,
 * -ENOMEM. */
int device_open_host(const struct verifier_config *config, const struct backend *device,
	struct backend **out, struct error *err);

/* After a start that failed with rc and *err. If the device was lost in it, and device_lost = cpu, the
 * program runs anew on the CPU; with device_lost = end the message becomes the reason and the way out.
 * Otherwise both stay as they are. backend: NULL if there is none yet. */
int device_start_failed(const struct verifier_config *config, struct backend *backend,
	struct daemon *daemon, char **argv, int rc, struct error *err);

/* Where the process starts again because of a lost device: daemon_run_anew, on the CPU. */
int device_restart_on_cpu(struct daemon *daemon, const char *why, char **argv);
