/*
 * outrider-model pack: makes a copy of a model's file in which an expert is one read
 * (shared/model/arch/pack.h). Everything but the experts is copied unchanged; the matrices of an
 * expert are put together, and into tiles.
 */
#include "client/model/args.h"
#include "client/model/engine.h"
#include "client/model/file_commands.h"
#include "client/model/gguf_write.h"
#include "shared/base/new_file.h"
#include "shared/base/units.h"
#include "kernels/tiles.h"
#include "shared/model/arch/pack.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

struct pack {
	const char *in, *out;
	bool force, quiet;
	bool progress; /* on a terminal */
	struct model *model;
	struct gguf_write header;
	struct new_file file;
	struct pack_place *places; /* of tensors with experts, ascending */
	size_t n_places;
	unsigned char *expert; /* one, as it is written */
	uint64_t written, shown; /* bytes of tensors */
};

/* Where a tensor with experts begins, and its layer. The packed tensor replaces the first of its
 * layer. */
struct pack_place {
	uint64_t offset;
	uint32_t layer;
	bool first;
};

/* The three matrices of a layer's experts, in the order of the parts. */
static void parts_of(
	const struct layer *layer, const struct expert_tensor *parts[static PACK_PARTS])
{
	parts[PACK_GATE] = &layer->gate;
	parts[PACK_UP] = &layer->up;
	parts[PACK_DOWN] = &layer->down;
}

static struct pack_layout layout_of(const struct layer *layer)
{
	const struct expert_tensor *parts[PACK_PARTS];
	struct matrix shapes[PACK_PARTS];
	parts_of(layer, parts);
	for (int p = 0; p < PACK_PARTS; p++)
		shapes[p] = parts[p]->shape;
	return pack_layout_of(shapes);
}

static int compare_places(const void *a, const void *b)
{
	uint64_t x = ((const struct pack_place *)a)->offset,
		 y = ((const struct pack_place *)b)->offset;
	return x < y ? -1 : x > y;
}

/* The places where tensors with experts may begin: of a single expert's matrix, or of all experts'
 * matrices in one. */
static int find_places(struct pack *pack, struct error *err)
{
	const struct model_config *c = &pack->model->config;
	size_t most = (size_t)c->n_layers * PACK_PARTS * c->n_experts;
	pack->places = calloc(most, sizeof(*pack->places));
	if (!pack->places)
		return error_set(err, ENOMEM, "no memory for the places of experts");
	for (uint32_t i = 0; i < c->n_layers; i++) {
		const struct expert_tensor *parts[PACK_PARTS];
		parts_of(&pack->model->layers[i], parts);
		for (int p = 0; pack->model->layers[i].moe && p < PACK_PARTS; p++)
			for (uint32_t e = 0; e < (parts[p]->places ? c->n_experts : 1); e++)
				pack->places[pack->n_places++] = (struct pack_place){
					.offset = model_expert_offset(parts[p], e),
					.layer = i,
					.first = p == PACK_GATE && e == 0,
				};
	}
	qsort(pack->places, pack->n_places, sizeof(*pack->places), compare_places);
	return 0;
}

/* The place of a tensor with experts; NULL for any other tensor. */
static const struct pack_place *place_of(const struct pack *pack, const struct gguf_tensor *tensor)
{
	const struct pack_place wanted = {.offset = tensor->offset};
	return bsearch(&wanted, pack->places, pack->n_places, sizeof(wanted), compare_places);
}

static bool key_is(struct gguf_string key, const char *name)
{
	return key.bytes == strlen(name) && memcmp(key.data, name, key.bytes) == 0;
}

/* Keys about the file, not about the model. */
static bool is_replaced(struct gguf_string key)
{
	return key_is(key, "general.architecture") || key_is(key, "general.alignment") ||
	       (key.bytes >= 6 && memcmp(key.data, "split.", 6) == 0);
}

static void plan_keys(struct pack *pack)
{
	const struct gguf *gguf = pack->model->gguf;
	const struct model *m = pack->model;
	struct gguf_write *w = &pack->header;
	gguf_write_key_string(w, "general.architecture", PACK_ARCHITECTURE);
	gguf_write_align(w, PACK_PAGE);
	gguf_write_key_u32(w, PACK_KEY_VERSION, PACK_VERSION);
	gguf_write_key_string(w, PACK_KEY_ARCHITECTURE, m->config.arch->name);
	gguf_write_key_u64(w, PACK_KEY_FINGERPRINT, m->fingerprint);
	gguf_write_key_array(
		w, PACK_KEY_TYPES, GGUF_U32, (uint64_t)m->config.n_layers * PACK_PARTS);
	for (uint32_t i = 0; i < m->config.n_layers; i++) {
		const struct expert_tensor *parts[PACK_PARTS];
		parts_of(&m->layers[i], parts);
		for (int p = 0; p < PACK_PARTS; p++)
			gguf_write_u32(w, m->layers[i].moe ? (uint32_t)parts[p]->shape.type : 0);
	}
	for (size_t i = 0; i < gguf_n_keys(gguf); i++) {
		size_t bytes;
		const void *record = gguf_key_raw(gguf, i, &bytes);
		if (!is_replaced(gguf_key_at(gguf, i)))
			gguf_write_key_raw(w, record, bytes);
	}
}

/* Tensors in the order of the original; a layer's experts are where their gate matrices were. */
static void plan_tensors(struct pack *pack)
{
	const struct gguf *gguf = pack->model->gguf;
	char name[80];
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
		const struct pack_place *place = place_of(pack, t);
		if (place && !place->first)
			continue;
		if (place) {
			struct pack_layout layout = layout_of(&pack->model->layers[place->layer]);
			uint64_t ne[2] = {layout.stride, pack->model->config.n_experts};
			snprintf(name, sizeof(name), PACK_TENSOR, place->layer);
			gguf_write_tensor(&pack->header, name, 2, ne, PACK_TENSOR_TYPE,
				layout.stride * ne[1]);
			continue;
		}
		snprintf(name, sizeof(name), "%.*s", (int)t->name.bytes, t->name.data);
		gguf_write_tensor(&pack->header, name, t->n_dims, t->ne, t->type, t->bytes);
	}
}

static void show_progress(struct pack *pack)
{
	if (!pack->progress || pack->written - pack->shown < (64 << 20))
		return;
	pack->shown = pack->written;
	fprintf(stderr, "\r%.1f of %.1f GiB", (double)pack->written / (1 << 30),
		(double)pack->header.data_bytes / (1 << 30));
}

static int write_bytes(struct pack *pack, const void *data, uint64_t bytes, struct error *err)
{
	if (fwrite(data, 1, (size_t)bytes, pack->file.file) != bytes)
		return error_set(err, errno ? errno : EIO, "%s: %s", pack->out,
			strerror(errno ? errno : EIO));
	pack->written += bytes;
	show_progress(pack);
	return 0;
}

static int write_experts(struct pack *pack, const struct layer *layer, struct error *err)
{
	const struct pack_layout layout = layout_of(layer);
	const struct expert_tensor *parts[PACK_PARTS];
	int rc = 0;
	parts_of(layer, parts);
	for (uint32_t e = 0; !rc && e < pack->model->config.n_experts; e++) {
		memset(pack->expert, 0, (size_t)layout.stride);
		for (int p = 0; p < PACK_PARTS; p++) {
			struct matrix from = parts[p]->shape;
			from.data = model_expert_data(parts[p], e);
			if (tiles_possible(&from))
				tiles_pack(&from, 0, from.rows, pack->expert + layout.at[p]);
			else
				memcpy(pack->expert + layout.at[p], from.data,
					(size_t)layout.bytes[p]);
		}
		rc = write_bytes(pack, pack->expert, layout.stride, err);
	}
	return rc;
}

/* Experts have whole pages. */
static int write_plain(struct pack *pack, const struct gguf_tensor *t, struct error *err)
{
	static const unsigned char zeros[PACK_PAGE];
	const unsigned char *data = gguf_tensor_data(pack->model->gguf, t);
	int rc = 0;
	for (uint64_t at = 0, n; !rc && at < t->bytes; at += n) {
		n = t->bytes - at < (8 << 20) ? t->bytes - at : 8 << 20;
		rc = write_bytes(pack, data + at, n, err);
	}
	return rc ? rc : write_bytes(pack, zeros, -t->bytes % PACK_PAGE, err);
}

static int write_tensors(struct pack *pack, struct error *err)
{
	const struct gguf *gguf = pack->model->gguf;
	int rc = 0;
	for (size_t i = 0; !rc && i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
		const struct pack_place *place = place_of(pack, t);
		if (!place)
			rc = write_plain(pack, t, err);
		else if (place->first)
			rc = write_experts(pack, &pack->model->layers[place->layer], err);
	}
	if (pack->shown)
		fputs("\r\033[K", stderr);
	return rc;
}

/* The result is opened once before it gets its name. */
static int check_written(const struct pack *pack, struct error *err)
{
	struct model *copy = NULL;
	if (fflush(pack->file.file) != 0)
		return error_set(err, errno, "%s: %s", pack->out, strerror(errno));
	int rc = model_load(pack->file.part, &copy, err);
	if (!rc && (!copy->packed || copy->fingerprint != pack->model->fingerprint))
		rc = error_set(
			err, EIO, "%s: the file differs from what was written to it", pack->out);
	model_free(&copy);
	return rc;
}

static int write_file(struct pack *pack, struct error *err)
{
	uint64_t header_bytes;
	int rc = new_file_open(&pack->file, pack->out, pack->force, pack->header.data_bytes, err);
	if (!rc)
		rc = gguf_write_header(&pack->header, pack->file.file, &header_bytes, err);
	if (!rc)
		rc = write_tensors(pack, err);
	if (!rc)
		rc = check_written(pack, err);
	return new_file_close(&pack->file, rc, err);
}

static int allocate(struct pack *pack, struct error *err)
{
	uint64_t most = 0;
	for (uint32_t i = 0; i < pack->model->config.n_layers; i++) {
		uint64_t stride =
			pack->model->layers[i].moe ? layout_of(&pack->model->layers[i]).stride : 0;
		most = stride > most ? stride : most;
	}
	pack->expert = malloc((size_t)most);
	return pack->expert ? 0 : error_set(err, ENOMEM, "no memory for an expert");
}

static int plan(struct pack *pack, struct error *err)
{
	struct stat in, out;
	int rc = model_load(pack->in, &pack->model, err);
	if (rc)
		return rc;
	if (pack->model->packed)
		return error_set(err, EINVAL, "%s is a packed model already", pack->in);
	if (pack->model->config.n_experts == 0)
		return error_set(
			err, EINVAL, "%s has no experts: there is nothing to pack", pack->in);
	if (stat(pack->in, &in) == 0 && stat(pack->out, &out) == 0 && in.st_dev == out.st_dev &&
		in.st_ino == out.st_ino)
		return error_set(err, EEXIST, "%s is the model itself", pack->out);
	rc = allocate(pack, err);
	if (!rc)
		rc = find_places(pack, err);
	if (!rc)
		rc = gguf_write_init(&pack->header, err);
	if (rc)
		return rc;
	plan_keys(pack);
	plan_tensors(pack);
	return 0;
}

static void tell_written(const struct pack *pack)
{
	const struct model *model = pack->model;
	uint32_t layers = 0;
	struct stat st;
	for (uint32_t i = 0; i < model->config.n_layers; i++)
		layers += model->layers[i].moe;
	if (stat(pack->out, &st) != 0)
		return;
	fprintf(stderr, "outrider-model: wrote %s: %s, %u experts in each of %u layer%s\n",
		pack->out, UNITS_SIZE((uint64_t)st.st_size), model->config.n_experts, layers,
		layers == 1 ? "" : "s");
}

int command_pack(int argc, char **argv)
{
	static struct pack pack;
	struct error err = {""};
	bool help = false;
	const struct arg args[] = {
		{"IN", ARG_FILE, &pack.in, 0, 0, NULL,
			"the GGUF file, or a split one's first part"},
		{"OUT", ARG_FILE, &pack.out, 0, 0, NULL, "the packed file to write"},
		{"force", ARG_FLAG, &pack.force, 0, 0, NULL, "replace OUT"},
		{"quiet", ARG_FLAG, &pack.quiet, 0, 0, NULL, "print no progress and no summary"},
		{"help", ARG_FLAG, &help, 0, 0, NULL, "print this text"},
		{0},
	};
	if (args_parse(argc, argv, args, &err) < 0)
		return engine_usage(&err);
	if (help) {
		puts("usage: outrider-model pack IN OUT [OPTIONS]\n\n"
		     "Writes a copy of a Mixture-of-Experts model in which each expert is one "
		     "read, in\n"
		     "the layout that multiplies fastest. The copy is as large as the model. "
		     "Answers are\n"
		     "the same, and sessions go on over either file. Other programs refuse the "
		     "copy.\n");
		args_help(args, stdout);
		return EX_OK;
	}
	if (!pack.in || !pack.out) {
		error_set(&err, EINVAL, "pack needs two files, IN and OUT");
		return engine_usage(&err);
	}
	pack.progress = !pack.quiet && isatty(STDERR_FILENO);
	int rc = plan(&pack, &err);
	bool planned = !rc;
	if (!rc)
		rc = write_file(&pack, &err);
	if (!rc && !pack.quiet)
		tell_written(&pack);
	gguf_write_exit(&pack.header);
	free(pack.expert);
	free(pack.places);
	model_free(&pack.model);
	int status = rc ? engine_fail(rc, &err) : EX_OK;
	/* A missing directory, or one without permission, is no input error. */
	return planned && (status == EX_NOINPUT || status == EX_NOPERM || status == EX_SOFTWARE)
		       ? EX_CANTCREAT
		       : status;
}
