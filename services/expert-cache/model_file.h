/*
 * The model's file while the process runs: whether it is still what was opened, whether another has its name, and whether
 * the verifier has the same one open. In the loop thread.
 *
 * A model that is lost ends the process with EX_TEMPFAIL, so that its manager starts it again with what is there then. So
 * does a verifier that was started on a file which has taken this one's name.
 */
#pragma once

#include "services/expert-cache/digest.h"
#include "shared/ipc/region.h"
#include "shared/model/gguf/gguf_watch.h"

struct service;

struct model_file {
	struct region region; /* the digest's; header NULL: there is none */
	struct digest digest;
	struct gguf_news news;
	uint64_t state; /* that the log knows of */
	uint64_t compared; /* the same of digest.compared */
	bool older; /* the digest is of a state before we opened the files, and was not compared yet */
	bool lost, other_told;
};

/* Takes over the predecessor's digest (recovered_fd, or -1; taken), or begins one, and offers it. After broker_open. */
int model_file_open(struct service *service, int recovered_fd, struct error *err);
void model_file_close(struct service *service); /* after broker_close, before the model is freed */
/* Bytes of the model's files that have a digest. */
uint64_t model_file_digested(const struct service *service);
/* A timer. arg: struct service. */
void model_file_check(void *arg);
