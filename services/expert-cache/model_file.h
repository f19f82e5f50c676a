/*
 * The model's file while the process runs: whether it is unchanged, whether another file has its
 * name, and whether the verifier has the same file open. In the loop thread.
 *
 * When the model is lost, the process ends with EX_TEMPFAIL, so that its manager starts it again
 * with the file that is there then. It does the same when a verifier was started on a file that has
 * taken this one's name.
 */
#pragma once

#include "services/expert-cache/digest.h"
#include "shared/ipc/region.h"
#include "shared/model/gguf/gguf_watch.h"

struct service;

struct model_file {
	struct region region; /* the region "digest"; header NULL: there is none */
	struct digest digest;
	struct gguf_news news;
	uint64_t state; /* last logged */
	uint64_t compared; /* digest.compared, last logged */
	/* the digest describes a state before this process opened the files, and was not compared
	 * yet */
	bool older;
	bool lost, other_told;
};

/* Takes over the predecessor's digest (recovered_fd, or -1; the descriptor is taken) or begins one,
 * and offers it. Call after broker_open. */
int model_file_open(struct service *service, int recovered_fd, struct error *err);
/* call after broker_close, before the model is freed */
void model_file_close(struct service *service);
/* Bytes of the model's files that have a digest. */
uint64_t model_file_digested(const struct service *service);
/* Called by a timer. arg: struct service. */
void model_file_check(void *arg);
