/*
 * GGUF v2/v3 files (the GGUF specification; ../shared/design/GGUF_NOTES.md section 1),
 * memory-mapped read-only. Every count, length and offset is checked against the bytes that remain
 * before it is used; nothing is allocated in proportion to an unchecked number. Errors name the
 * key, tensor or offset. The opener owns the file and closes it.
 *
 * A split model (NAME-00001-of-00003.gguf and so on; split.no, split.count, split.tensors.count) is
 * opened by its first part and looks like one file: its parts are mapped one after the other, each
 * from a page boundary, and every offset here counts from the start of the first part's mapping.
 * Callers that read the files themselves by offset find the part with gguf_part_at; offsets within
 * a page are the same there. The metadata are the first part's.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_value_type {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64,
};

struct gguf_string {
	const char *data; /* into the mapping, without a NUL */
	size_t bytes;
};

struct gguf_tensor {
	struct gguf_string name;
	uint32_t type; /* GGUF type id; may be one with which the engine does not compute */
	uint32_t n_dims;
	uint64_t ne[4]; /* fastest first; unused entries are 1 */
	/* in the mapping, which is the file, or the parts of a split model one after the other */
	uint64_t offset;
	uint64_t bytes;
};

/* A name from the file as text for a message: at most 95 bytes, with '?' for unprintable ones. */
struct gguf_name_text {
	char text[96];
};
struct gguf_name_text gguf_name_text(struct gguf_string name);

struct gguf;

int gguf_open(const char *path, struct gguf **out, struct error *err);
/* Opens a file to check it: each problem with a key or tensor is reported in one sentence, and such
 * a tensor is left out; only a file that cannot be read any further is an error. The result is as
 * safe to use as that of gguf_open. */
typedef void gguf_report(void *arg, const char *problem);
int gguf_open_checked(
	const char *path, gguf_report *report, void *arg, struct gguf **out, struct error *err);
int gguf_open_memory_checked(const void *data, size_t bytes, gguf_report *report, void *arg,
	struct gguf **out, struct error *err);
/* For code that can go on after a problem. Returns rc if the file was not opened for checking.
 * Otherwise reports *err (if rc is not 0) and returns 0, so that the caller goes on to the next
 * problem; only -ENOMEM is returned as it is. */
int gguf_problem(const struct gguf *gguf, int rc, const struct error *err);
/* How many problems were reported so far. */
uint64_t gguf_n_problems(const struct gguf *gguf);
/* Parses bytes in memory, which are borrowed; for fuzzing. */
int gguf_open_memory(const void *data, size_t bytes, struct gguf **out, struct error *err);
void gguf_close(struct gguf **gguf);
/* For the start of a service that failed with `code` because of a file. Returns -EAGAIN, and
 * appends the reason to *err, when the file or one of its parts was written to within the last
 * GGUF_SETTLED_S seconds: a copy may be in progress. Otherwise returns code, also for a missing
 * file. */
#define GGUF_SETTLED_S 10
int gguf_unsettled(const char *path, int code, struct error *err);
/* Puts the path in front of a message, without its beginning when it is long; returns code. */
int gguf_error_prefix(struct error *err, int code, const char *path);

const char *gguf_path(const struct gguf *gguf); /* the path it was opened by: the first part's */
int gguf_fd(const struct gguf *gguf); /* the first part's; -1 when parsed from memory */
const void *gguf_data(const struct gguf *gguf); /* the whole mapping */
size_t gguf_bytes(const struct gguf *gguf); /* of the mapping */

#define GGUF_PARTS_MAX 256
/* Identity and state of a file when it was opened (gguf_watch.h). */
struct gguf_stamp {
	uint64_t device, inode, bytes;
	int64_t changed_s, changed_ns;
};
struct gguf_part {
	char *path; /* "" when parsed from memory */
	uint64_t base; /* offset in the mapping, a multiple of the page size */
	uint64_t bytes; /* of the file */
	int fd; /* open for reading; -1 when parsed from memory */
	struct gguf_stamp stamp;
	uint64_t touched_ns; /* st_ctim at that time: when the file or its inode was last changed */
};
/* A single file has one part. Parts are in ascending order of base. */
size_t gguf_n_parts(const struct gguf *gguf);
const struct gguf_part *gguf_part_at(const struct gguf *gguf, size_t i);
/* Identifies the model: FNV-1a over everything before the weights in every part, all sizes, and a
 * sample of every tensor's bytes, by which a fine-tuned or later checkpoint of the same shape
 * differs. Reads some thousand pages at most. The first result is kept, and gguf_look_again
 * compares with it. */
uint64_t gguf_fingerprint(const struct gguf *gguf);
/* Describes what gguf_fingerprint reads, for use in a sentence: "its size, its header and ... of
 * its weights". Returns out. */
#define GGUF_SAMPLE_TEXT 160
const char *gguf_sample_text(const struct gguf *gguf, char out[static GGUF_SAMPLE_TEXT]);
uint32_t gguf_version(const struct gguf *gguf);

size_t gguf_n_tensors(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name); /* or NULL */
/* The first tensor, by name, whose name is not less than this text, or NULL. */
const struct gguf_tensor *gguf_tensor_from(const struct gguf *gguf, const char *name);
/* Says whether the accesses that follow touch a little here and there (vectors, while loading) or
 * read long runs. Read-ahead for the former would read a large part of the file. */
void gguf_expect_scattered(const struct gguf *gguf, bool scattered);
/* wanted: all these bytes of the mapping will be read at once, so reading begins now. Otherwise:
 * they are not needed any more, so their pages are dropped, also from the page cache where the
 * kernel allows it (for a file of our own) and no other process has them mapped. Ignores what is
 * outside of the mapping. Any thread. */
void gguf_advise(const struct gguf *gguf, const void *from, size_t bytes, bool wanted);
/* The tensor's bytes in the mapping; NULL for NULL. */
const void *gguf_tensor_data(const struct gguf *gguf, const struct gguf_tensor *tensor);
/* Name of a GGUF tensor type, also of those with which the engine does not compute; NULL when the
 * format has no such id. */
const char *gguf_tensor_type_name(uint32_t type);

/* Metadata. 0; -ENOENT when the key is absent (no message); -EINVAL with a message when it has
 * another type or is outside of min..max. Any integer type is accepted for u64; f32 and f64 for
 * f64. */
bool gguf_has(const struct gguf *gguf, const char *key);
int gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t min, uint64_t max,
	uint64_t *out, struct error *err);
int gguf_get_f64(const struct gguf *gguf, const char *key, double *out, struct error *err);
int gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, struct error *err);
int gguf_get_string(
	const struct gguf *gguf, const char *key, struct gguf_string *out, struct error *err);

/* Arrays: gguf_get_array returns the element type and count; the functions below return elements.
 * String arrays are indexed when the file is opened, so each access takes O(1). */
int gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_value_type *type,
	uint64_t *n, struct error *err);
/* i < n, and the array's own type: the caller has checked both with gguf_get_array. */
struct gguf_string gguf_array_string(const struct gguf *gguf, const char *key, uint64_t i);
int64_t gguf_array_i64(const struct gguf *gguf, const char *key, uint64_t i);
double gguf_array_f64(const struct gguf *gguf, const char *key, uint64_t i);
/* The raw elements of an array whose elements have a fixed size (no strings), unaligned. */
const void *gguf_array_raw(const struct gguf *gguf, const char *key);

/* All keys, for `outrider-model info`. gguf_value_text writes a short form of a value. */
size_t gguf_n_keys(const struct gguf *gguf);
struct gguf_string gguf_key_at(const struct gguf *gguf, size_t i);
/* Key i as it lies in the file: name, type and value. */
const void *gguf_key_raw(const struct gguf *gguf, size_t i, size_t *bytes);
void gguf_value_text(const struct gguf *gguf, size_t i, char *out, size_t out_bytes);
