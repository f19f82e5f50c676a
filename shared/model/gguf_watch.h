/*
 * Whether the files of an open model are still what was opened. Weights are computed with where
 * they lie in the mapping, so a file that is cut, written to or replaced meanwhile gives other
 * answers, or none; the model is then lost, for good, and whoever computes with it must not let out
 * what came of it. Who finds out says so here (gguf_watch, SIGBUS through gguf_guard.h, another
 * process through gguf_lose), and who lets out results asks.
 *
 * A file whose name is gone is as it was: only a process that starts later will miss it. So is one
 * that got another owner, mode or name, or one name more: that leaves size and st_mtim as they are.
 * But so can who writes other weights (a tool that restores times), and all of these change
 * st_ctim: then the weights are looked at again, a sample of them.
 */
#pragma once

#include "shared/model/gguf.h"

enum gguf_loss {
	GGUF_WHOLE,
	GGUF_SHORTER,
	GGUF_UNREADABLE,
	GGUF_WRITTEN,
	GGUF_REPLACED,
	GGUF_REPORTED, /* another process found out */
};

struct stat;
struct gguf_stamp gguf_stamp_of(const struct stat *status);
uint64_t gguf_touched_ns(const struct stat *status); /* st_ctim */
/* What has become of a file. *err says it (the path is in it) unless it is GGUF_WHOLE; a name
 * that is gone is whole. */
enum gguf_loss gguf_stamp_compare(
	const char *path, const struct gguf_stamp *stamp, struct error *err);

/* A number for which files these are and how they stood when they were opened, whatever is in
 * them: a copy of their bytes that was made under another number is not of these. It changes
 * when gguf_watch finds that the files were touched and the weights are the same: a copy is
 * still one then. */
uint64_t gguf_stamps(const struct gguf *gguf);

/* Looks at every part: one system call each, and the weights after something touched them.
 * -ESTALE when the model is lost, with the reason. Any thread. */
int gguf_watch(const struct gguf *gguf, struct error *err);
/* Looks at the weights whatever the files' times say: lost when the fingerprint is not what
 * gguf_fingerprint said first. For who hears that another process has found another model there.
 * Takes as long as the fingerprint did. */
int gguf_look_again(const struct gguf *gguf, struct error *err);
/* Declares it lost, by what happened to this part; the first reason stays. Async-signal-safe. */
void gguf_lose(const struct gguf *gguf, enum gguf_loss loss, size_t part);
/* The same as gguf_watch without looking. */
int gguf_lost(const struct gguf *gguf, struct error *err);
