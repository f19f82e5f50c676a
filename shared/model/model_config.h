/* Hyperparameters from metadata: model.c calls this before it looks at a tensor. */
#pragma once

#include "shared/model/model.h"

/* Fills everything of *config but n_vocab and rope_factors, which tensors decide. Errors name the key. */
int model_read_config(const struct gguf *gguf, struct model_config *config, struct error *err);
