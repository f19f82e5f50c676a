/*
 * Shared by gguf.c (parsing), gguf_file.c (opening), gguf_split.c (files in parts) and gguf_value.c
 * (reading metadata); no other file includes it.
 */
#pragma once

#include "shared/model/gguf/gguf.h"

#include <stdatomic.h>

struct gguf_key {
	struct gguf_string name;
	enum gguf_value_type type;
	enum gguf_value_type element; /* of an array */
	uint64_t n; /* elements of an array, 1 for a scalar, bytes of a string */
	const unsigned char *value; /* first byte of the value, element or string */
	uint64_t *strings; /* for a string array: offset of each length field in the file; owned */
};

struct gguf {
	char *path; /* "" when parsed from memory; owned */
	int fd;
	const unsigned char *data;
	size_t bytes;
	bool mapped;
	uint32_t version;
	uint64_t alignment;
	struct gguf_key *keys; /* in file order; owned */
	uint32_t *keys_by_name; /* owned */
	size_t n_keys, keys_capacity;
	struct gguf_tensor *tensors; /* in file order; owned */
	uint32_t *tensors_by_name; /* owned */
	size_t n_tensors, tensors_capacity;
	struct gguf_part *parts; /* [n_parts] for a split model, NULL for a single file; owned */
	size_t n_parts;
	struct gguf_part whole; /* a single file as its only part */
	/* For gguf_watch.c. loss: the part and its enum gguf_loss. state: of the files when their
	 * weights were last compared (0: when they were opened). proven: the state in which all
	 * bytes were last compared (0: none). */
	_Atomic uint64_t loss, state, proven;
	_Atomic uint64_t fingerprint; /* the first result of gguf_fingerprint, or 0 */
	struct gguf_check *check; /* NULL: problems are errors */
	bool owns_check; /* true for the file that was opened first */
};

struct gguf_check {
	gguf_report *report;
	void *arg;
	uint64_t n;
};

/* In gguf.c: reads keys and tensors from data and bytes. */
int gguf_parse(struct gguf *gguf, struct error *err);
/* Opens, maps and parses one file, ignoring its split keys; messages do not contain the path. */
int gguf_open_file(
	const char *path, struct gguf_check *check, struct gguf **out, struct error *err);
/* If *gguf, the file that was opened first, says that it is split, opens the other parts and joins
 * them to one model. */
int gguf_open_parts(struct gguf *gguf, struct error *err);
/* Sorts the tensors by name and checks that no name occurs twice. */
int gguf_index_tensors(struct gguf *gguf, struct error *err);

int gguf_string_compare(struct gguf_string a, struct gguf_string b);
const struct gguf_key *gguf_key_find(const struct gguf *gguf, const char *key); /* or NULL */
/* Bytes of one element, 0 for strings, arrays and unknown types. */
size_t gguf_element_bytes(uint32_t type);
const char *gguf_value_type_name(uint32_t type);
uint64_t gguf_load_u64(const unsigned char *at);
uint32_t gguf_load_u32(const unsigned char *at);
/* Loads an integer element of any width, sign-extended. A u64 beyond INT64_MAX wraps; callers to
 * which that matters check it. */
int64_t gguf_load_integer(enum gguf_value_type type, const unsigned char *at);
double gguf_load_float(enum gguf_value_type type, const unsigned char *at);
