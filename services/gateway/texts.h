/*
 * Texts, tokens and the model, with the interface of llama.cpp's server (tools/server/README.md
 * there): the handlers of /tokenize, /detokenize, /apply-template and /props.
 */
#pragma once

#include <stdbool.h>

struct exchange;

bool texts_tokenize(struct exchange *exchange);
bool texts_detokenize(struct exchange *exchange);
bool texts_template(struct exchange *exchange);
bool texts_props(struct exchange *exchange);
