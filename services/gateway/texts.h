/*
 * Texts, tokens and the model, as llama.cpp's server answers about them (tools/server/README.md there): /tokenize, /detokenize,
 * /apply-template, /props. Handlers of routes.
 */
#pragma once

#include <stdbool.h>

struct exchange;

bool texts_tokenize(struct exchange *exchange);
bool texts_detokenize(struct exchange *exchange);
bool texts_template(struct exchange *exchange);
bool texts_props(struct exchange *exchange);
