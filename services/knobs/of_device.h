/*
 * Settings that concern a device's memory and what is computed there. A process that uses no device
 * takes them, so that a configuration serves machines with and without one, and says that they have no
 * effect. Loop thread, or before it runs.
 */
#pragma once

#include "shared/base/config.h"

/* Logs which of them differ from their defaults, if any does. device: the setting `device`. */
void of_device_say_idle(const struct config_key *keys, const void *config, const char *device);

/* For daemon_knobs.idle: why a key has no effect where `used` is NULL; NULL: it has. used: what stands for
 * the device. */
const char *of_device_idle(const struct config_key *key, const void *used);
