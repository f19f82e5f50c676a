/*
 * Whether the files of an open model still hold what was opened. Weights are computed with where they lie in the mapping,
 * so a file that is cut or overwritten gives other answers, or none. The model is then lost for good, and nothing that was
 * computed from it may get out. Whoever finds out says so here (gguf_watch, SIGBUS through gguf_guard.h, another process
 * through gguf_lose); whoever sends results asks.
 *
 * What counts is the open file, not its name. Another file under the name, or none, changes nothing until a restart:
 * gguf_news has a sentence about it.
 *
 * A tool may touch a file (its times, mode, owner or links) and leave its bytes alone, or write other bytes and put st_mtim
 * back. Both change the file's times, of which st_ctim cannot be put back. gguf_watch then looks at a sample of the weights
 * (gguf_sample_text). That all bytes are the same is known to whoever has a digest of them (gguf_prove).
 */
#pragma once

#include "shared/model/gguf/gguf.h"

enum gguf_loss {
	GGUF_WHOLE,
	GGUF_SHORTER,
	GGUF_UNREADABLE,
	GGUF_WRITTEN,
	GGUF_REPORTED, /* another process found out */
};

struct stat;
struct gguf_stamp gguf_stamp_of(const struct stat *status);
uint64_t gguf_touched_ns(const struct stat *status); /* st_ctim */

/* A number for which files are open (device, inode, size), and one for their times when their weights were last found to be
 * the same. Both processes that have the same files open compute the same numbers. */
uint64_t gguf_files(const struct gguf *gguf);
uint64_t gguf_state(const struct gguf *gguf);
/* The state that the files are in now: one system call for each part. Anything but GGUF_WHOLE: *part is not what it was. */
enum gguf_loss gguf_state_now(const struct gguf *gguf, uint64_t *state, size_t *part);
/* Both as one number: a copy of the files' bytes that was made under another number may be of other bytes. */
uint64_t gguf_stamps(const struct gguf *gguf);

/* Looks at every part: one system call each, and a sample of the weights after something touched them.
 * -ESTALE when the model is lost, with the reason. Any thread. */
int gguf_watch(const struct gguf *gguf, struct error *err);
/* Looks at the sample whatever the files' times say: lost when the fingerprint is not what gguf_fingerprint said first. For
 * who hears that another process has found another model there. */
int gguf_look_again(const struct gguf *gguf, struct error *err);
/* Declares it lost, by what happened to this part; the first reason stays. Async-signal-safe. */
void gguf_lose(const struct gguf *gguf, enum gguf_loss loss, size_t part);
/* The same as gguf_watch without looking. */
int gguf_lost(const struct gguf *gguf, struct error *err);

/* All bytes were found to be the same in this state. Any thread. */
void gguf_prove(const struct gguf *gguf, uint64_t state);
/* Whether the files are in the state in which they were opened, or in one that was proven last. */
bool gguf_proven(const struct gguf *gguf);

/* Which file has the name of a part now. */
enum gguf_name { GGUF_NAME_SAME, GGUF_NAME_OTHER, GGUF_NAME_GONE };
/* Of all parts: OTHER if any has been replaced, else GONE if any is gone; *part is that one. */
enum gguf_name gguf_name(const struct gguf *gguf, size_t *part);
struct gguf_news {
	enum gguf_name name;
	size_t part;
};
/* Whether the names have changed since *news, which begins as zeros; out then says how, with the path. */
bool gguf_news(const struct gguf *gguf, struct gguf_news *news, char *out, size_t out_bytes);
