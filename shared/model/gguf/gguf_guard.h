/*
 * When a mapped file is truncated (a copy is started again, `truncate`) or its disk fails, a read
 * of the mapping raises SIGBUS, in the middle of a kernel, from where no error can be returned.
 * This file handles that signal. Unless the program has called gguf_guard_survive, this is the one
 * place in the libraries that prints a message and ends the process.
 */
#pragma once

struct gguf;

/* For a program's main: from now on SIGBUS within the mapping of an open GGUF file ends the process
 * with status EX_IOERR and one line: `prefix` (borrowed for good) and a sentence with the file's
 * name. SIGBUS elsewhere has its former effect. */
void gguf_guard_start(const char *prefix);

/* From now on SIGBUS within the mapping of an open GGUF file instead declares that file's model
 * lost (gguf_watch.h), and maps zeros from there to the end of the file. The computation goes on,
 * and its results must not be used. */
void gguf_guard_survive(void);

/* For gguf_file.c: call after a file was mapped, and before it is unmapped. When the table of files
 * is full, further ones are not watched. */
void gguf_guard_add(const struct gguf *gguf);
void gguf_guard_remove(const struct gguf *gguf);
