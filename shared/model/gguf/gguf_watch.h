/*
 * Whether the files of an open model still hold what was opened. The engine computes with weights
 * in the mapping, so a file that is truncated or overwritten gives wrong answers, or none. The
 * model is then lost for good, and nothing that was computed from it may be sent. Losses are
 * recorded here by the code that detects them (gguf_watch; SIGBUS through gguf_guard.h; another
 * process through gguf_lose), and read by the code that sends results.
 *
 * What matters is the open file, not its name. Another file under the name, or none, changes
 * nothing until a restart; gguf_news has a sentence about it.
 *
 * A tool may touch a file (its times, mode, owner or links) without changing its bytes, or write
 * other bytes and set st_mtim back. Both change the file's times, of which st_ctim cannot be set
 * back. gguf_watch then compares a sample of the weights (gguf_sample_text). Only a process that
 * has a digest of all bytes can know that they are all the same (gguf_prove).
 */
#pragma once

#include "shared/model/gguf/gguf.h"

enum gguf_loss {
	GGUF_WHOLE,
	GGUF_SHORTER,
	GGUF_UNREADABLE,
	GGUF_WRITTEN,
	GGUF_REPORTED, /* another process detected it */
};

struct stat;
struct gguf_stamp gguf_stamp_of(const struct stat *status);
uint64_t gguf_touched_ns(const struct stat *status); /* st_ctim */

/* gguf_files: a number for the files that are open (device, inode, size). gguf_state: a number for
 * their times when their weights were last found to be the same. Two processes with the same open
 * files compute the same numbers. */
uint64_t gguf_files(const struct gguf *gguf);
uint64_t gguf_state(const struct gguf *gguf);
/* Reads the present state of the files, with one system call per part. If the result is not
 * GGUF_WHOLE, part *part has changed. */
enum gguf_loss gguf_state_now(const struct gguf *gguf, uint64_t *state, size_t *part);
/* Both in one number: a copy of the files' bytes that was made with another number may be of other
 * bytes. */
uint64_t gguf_stamps(const struct gguf *gguf);

/* Checks every part with one system call each, and compares a sample of the weights if something
 * touched them. -ESTALE when the model is lost, with the reason. Any thread. */
int gguf_watch(const struct gguf *gguf, struct error *err);
/* Compares the sample whatever the files' times are: the model is lost when the fingerprint is not
 * gguf_fingerprint's first result. For a process that hears that another one has found another
 * model there. */
int gguf_look_again(const struct gguf *gguf, struct error *err);
/* Declares the model lost, and why, and by which part; the first reason is kept. Async-signal-safe.
 */
void gguf_lose(const struct gguf *gguf, enum gguf_loss loss, size_t part);
/* The same result as gguf_watch, without looking at the files. */
int gguf_lost(const struct gguf *gguf, struct error *err);

/* Records that all bytes were found to be the same in this state. Any thread. */
void gguf_prove(const struct gguf *gguf, uint64_t state);
/* Whether the files are in the state in which they were opened, or in the one that was last proven.
 */
bool gguf_proven(const struct gguf *gguf);

/* Which file is found under the name of a part now. */
enum gguf_name { GGUF_NAME_SAME, GGUF_NAME_OTHER, GGUF_NAME_GONE };
/* Over all parts: OTHER if one has been replaced, else GONE if one is gone; *part is that one. */
enum gguf_name gguf_name(const struct gguf *gguf, size_t *part);
struct gguf_news {
	enum gguf_name name;
	size_t part;
};
/* Whether the names have changed since *news, which is zero at first; `out` then gets a sentence
 * about it, with the path. */
bool gguf_news(const struct gguf *gguf, struct gguf_news *news, char *out, size_t out_bytes);
