/*
 * Audits of answers ("outrider": {"audit": true}): when all answers of an exchange have ended, the
 * service computes their tokens once more without an expert budget, in a stream for each, and says
 * which token the model itself picks in their places. generate.c runs the streams, as those of
 * answers. Loop thread.
 */
#pragma once

#include "services/gateway/exchange.h"

/* Keeps the tokens of an answer that is to be audited. False: memory is exhausted. */
bool audit_keep(struct choice *choice, const struct outrider_event *event);
/* Makes the choices of the audits, exchange->n_audits; 0: nothing is to be audited. */
void audit_begin(struct exchange *exchange);
/* Makes the exchange's request that of an audit. No answer can be started from it any more. 0 or
 * -errno, as the SDK. */
int audit_request(const struct choice *audit);
/* Notes what an event says. False: memory is exhausted. */
bool audit_take(struct choice *audit, const struct outrider_event *event);
/* Notes why an audit cannot be had; the answer stands without it. */
void audit_fail(struct choice *audit, const char *why);
/* [{"tokens": N, "changed": [{"index": I, "token": T, "picked": P}, ...]}, ...], one for each answer;
 * a new reference, or NULL when memory is exhausted. */
json_t *audit_json(const struct exchange *exchange);
void audit_free(struct choice *choice);
