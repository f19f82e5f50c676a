/*
 * A file that becomes shorter while it is mapped (a copy that is started again, a `truncate`), or
 * whose disk fails, shows as SIGBUS in whoever reads there, in the middle of a kernel, from where
 * no error can be returned. Before a program can do better (gguf_guard_survive) this is the one
 * place of the libraries that prints and ends the process.
 */
#pragma once

struct gguf;

/* For a program's main: from now on SIGBUS within an open GGUF file's mapping ends the process
 * with one line, `prefix` (which must stay) and a sentence with the file's name, and with status
 * EX_IOERR. SIGBUS elsewhere does what it did before. */
void gguf_guard_start(const char *prefix);

/* From now on SIGBUS within an open GGUF file's mapping declares that file's model lost
 * (gguf_watch.h) instead, and from there to the end of the file zeros are read: whoever computes
 * goes on, and what comes of it is not to be used. */
void gguf_guard_survive(void);

/* gguf_file.c: a file that is mapped, and one that will be unmapped. More files than there is
 * room for are not watched. */
void gguf_guard_add(const struct gguf *gguf);
void gguf_guard_remove(const struct gguf *gguf);
