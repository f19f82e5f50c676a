#include "client/cli/doctor/doctor.h"

#include "shared/model/arch/head.h"
#include "shared/base/file.h"
#include "shared/base/plural.h"
#include "shared/base/units.h"
#include "shared/model/text/tokenizer.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

static void say_model(struct doctor *d)
{
	const struct facts *f = &d->model;
	const struct model_config *c = &f->model->config;
	char experts[96] = "";

	if (f->experts > 0)
		snprintf(experts, sizeof(experts), " with %u experts, %u used, of %s", f->experts,
			f->used, UNITS_SIZE(f->expert_bytes));
	finding_add(&d->findings, "model", FINDING_OK,
		"%s: %s, %u layers%s; one token reads %s, and %s of experts; a token of context "
		"takes %.1f KiB",
		d->model_path, c->arch->name, c->n_layers, experts,
		UNITS_SIZE(f->dense_token_bytes), UNITS_SIZE(f->expert_token_bytes),
		(double)f->kv_token_bytes / 1024);
}

/* The user that the units run as. */
static bool unit_user(uid_t *uid)
{
	const struct passwd *user = getpwnam("outrider");

	if (user)
		*uid = user->pw_uid;
	return user != NULL;
}

/* Only where units are installed: who else starts the service has opened the file just now. */
static void judge_rights(struct doctor *d)
{
	const struct gguf *gguf = d->model.model->gguf;
	char *path = file_absolute(gguf_path(gguf));
	struct stat st;
	uid_t uid;

	if (!d->machine.units[0] || !path || fstat(gguf_fd(gguf), &st) != 0) {
		free(path);
		return;
	}
	bool hidden = strncmp(path, "/tmp/", 5) == 0 || strncmp(path, "/var/tmp/", 9) == 0;
	if (hidden)
		finding_todo(finding_add(&d->findings, "model-rights", FINDING_ADVICE,
				     "the units do not see %s: each has a /tmp of its own", path),
			"move the file to /srv or /var/lib if the units are to serve it");
	else if (unit_user(&uid) && st.st_uid != uid && !(st.st_mode & S_IROTH))
		finding_todo(
			finding_add(&d->findings, "model-rights", FINDING_ADVICE,
				"the user outrider, which the units run as, may not read %s", path),
			"chmod o+r, and o+x of the directories above it");
	free(path);
}

static void judge_storage(struct doctor *d)
{
	const struct storage *s = &d->storage;
	char cached[64] = "";

	if (s->cached_bytes >= 0)
		snprintf(cached, sizeof(cached), ", %.0f %% of the file in the page cache",
			s->bytes ? 100 * (double)s->cached_bytes / (double)s->bytes : 0);
	bool slow = s->network || s->rotates == 1;
	struct finding *finding =
		finding_add(&d->findings, "storage", slow ? FINDING_ADVICE : FINDING_OK,
			"%s on %s%s, %s free%s", s->type[0] ? s->type : "unknown file system",
			s->source[0] ? s->source : "?", s->rotates == 1 ? " (a rotating disk)" : "",
			s->free_bytes == UINT64_MAX ? "?" : UNITS_SIZE(s->free_bytes), cached);
	if (s->network)
		finding_todo(finding, "put the file on a local SSD: what experts do not fit in "
				      "memory are read again and again");
	else if (slow)
		finding_todo(finding, "put the file on an SSD");
}

static void judge_tokens(struct doctor *d)
{
	struct tokenizer *target = NULL, *draft = NULL;
	struct error err = {""};
	uint32_t shared = 0;

	int rc = tokenizer_load(d->model.model->gguf, &target, &err);
	if (rc == 0)
		rc = tokenizer_load(d->draft.model->gguf, &draft, &err);
	if (rc == 0)
		rc = tokenizer_compare(target, draft, &shared, &err);
	if (rc != 0)
		finding_todo(finding_add(&d->findings, "draft-tokens", FINDING_PROBLEM,
				     "%s does not speak the model's tokens: %s", d->draft_path,
				     err.text),
			"take a draft model of the same family, or none");
	else
		finding_add(&d->findings, "draft-tokens", FINDING_OK,
			"%u tokens are the same in both models", shared);
	tokenizer_free(&target);
	tokenizer_free(&draft);
}

static void judge_draft(struct doctor *d)
{
	const struct facts *f = &d->draft;
	double draft = (double)(f->dense_token_bytes + f->expert_token_bytes);
	double target = (double)(d->model.dense_token_bytes + d->model.expert_token_bytes);
	bool large = draft * 10 > target;

	struct finding *finding =
		finding_add(&d->findings, "draft", large ? FINDING_ADVICE : FINDING_OK,
			"%s: one of its tokens reads %s, %.1f times less than one of the model",
			d->draft_path, UNITS_SIZE((uint64_t)draft), target / draft);
	if (large)
		finding_todo(finding, "take a draft model that reads a tenth of the model or "
				      "less: drafting takes the time that it is to save");
	judge_tokens(d);
}

static void judge_little_room(struct doctor *d)
{
	const struct plan *p = &d->plan;
	const struct facts *f = &d->model;

	if (f->experts == 0) {
		finding_todo(finding_add(&d->findings, "plan", FINDING_ADVICE,
				     "the weights (%s), the KV cache (%s) and a reserve (%s) are "
				     "more than the memory that is free: weights are read from the "
				     "disk again and again",
				     UNITS_SIZE(p->room.needs.of.weights), UNITS_SIZE(p->kv_bytes),
				     UNITS_SIZE(p->room.reserve)),
			"make memory free, or serve a smaller model");
		return;
	}
	struct finding *finding = finding_add(&d->findings, "plan", FINDING_ADVICE,
		"%.0f %% of the experts fit (%s of %s) beside %s of other weights, %s of KV cache "
		"(%lld sessions, context %u) and %s in reserve: the others come from the disk",
		100 * p->share, UNITS_SIZE(p->budget_bytes), UNITS_SIZE(p->all_bytes),
		UNITS_SIZE(p->room.needs.of.weights), UNITS_SIZE(p->kv_bytes),
		(long long)p->sessions, p->context, UNITS_SIZE(p->room.reserve));
	bool packs = !f->model->packed && d->storage.free_bytes >= f->bytes;
	finding_todo(finding,
		"%s of memory would hold all; a smaller context or sessions_max leaves more%s",
		UNITS_SIZE(
			room_limit_least(&p->room.needs, p->all_bytes + p->room.needs.of.weights)),
		packs ? "; outrider-model pack writes a copy in which each expert is one read"
		      : "");
}

static void judge_plan(struct doctor *d)
{
	const struct plan *p = &d->plan;

	if (!p->runs) {
		finding_todo(finding_add(&d->findings, "plan", FINDING_PROBLEM,
				     "the model does not run here: %s has %s, and %s are the least "
				     "for the fewest experts, one session and a reserve",
				     d->machine.memory.where, UNITS_SIZE(d->machine.memory.bytes),
				     UNITS_SIZE(p->least_bytes)),
			"give it more memory, or serve a model with smaller experts");
		return;
	}
	if (!p->all) {
		judge_little_room(d);
		return;
	}
	struct finding *finding =
		finding_add(&d->findings, "plan", p->smaller ? FINDING_ADVICE : FINDING_OK,
			"everything fits: %s of experts, %s of other weights, %s of KV cache (%lld "
			"sessions, context %u) and %s in reserve, of %s%s",
			UNITS_SIZE(p->all_bytes), UNITS_SIZE(p->room.needs.of.weights),
			UNITS_SIZE(p->kv_bytes), (long long)p->sessions, p->context,
			UNITS_SIZE(p->room.reserve), UNITS_SIZE(p->room.memory),
			p->room.free_of_it ? " that are free" : "");
	if (p->smaller)
		finding_todo(finding,
			"set sessions_max = %lld: with the default of %d the KV cache would take "
			"the place of experts",
			(long long)p->sessions, KV_PLAN_SESSIONS);
}

static bool open_file(const char *path, struct facts *out, struct doctor_file_error *why)
{
	why->code = path ? facts_open(path, out, &why->text) : -ENOENT;
	return why->code == 0;
}

static bool is_head(const char *path)
{
	struct gguf *gguf;

	if (gguf_open(path, &gguf, NULL) != 0)
		return false;
	bool is = head_is_eagle3(gguf);
	gguf_close(&gguf);
	return is;
}

/* Looks whether the head is one for the model. */
static void open_head(struct doctor *d)
{
	struct doctor_file_error *why = &d->draft_error;
	struct model *head;

	why->code = head_load_eagle3(d->draft_path, d->model.model, &head, &why->text);
	d->is_head = why->code == 0;
	if (d->is_head)
		model_free(&head);
}

void doctor_open_files(struct doctor *d)
{
	d->has_model = open_file(d->model_path, &d->model, &d->model_error);
	if (d->has_model && d->draft_path && is_head(d->draft_path))
		open_head(d);
	else
		d->has_draft = open_file(d->draft_path, &d->draft, &d->draft_error);
	if (!d->has_model)
		return;
	storage_read("", d->model_path, gguf_fd(d->model.model->gguf), &d->storage);
	plan_make(&d->model, &d->machine.memory, d->prefix_dir != NULL, &d->plan);
}

static void say_unopened(
	struct doctor *d, const char *name, const char *path, const struct doctor_file_error *why)
{
	struct finding *finding =
		finding_add(&d->findings, name, FINDING_PROBLEM, "%s", why->text.text);

	if (error_exit_status(why->code) == EX_DATAERR)
		finding_todo(finding,
			"fetch the file again if it is not complete, or name another model; "
			"outrider-model check %s reports everything that is wrong with it",
			path);
	else
		finding_todo(finding, "name a GGUF file that this user may read");
}

void doctor_judge_files(struct doctor *d)
{
	if (d->model_path && !d->has_model)
		say_unopened(d, "model", d->model_path, &d->model_error);
	if (d->draft_path && !d->has_draft && !d->is_head)
		say_unopened(d, "draft", d->draft_path, &d->draft_error);
	if (!d->has_model)
		return;
	say_model(d);
	judge_rights(d);
	judge_storage(d);
	if (d->has_draft)
		judge_draft(d);
	if (d->is_head)
		finding_add(&d->findings, "draft", FINDING_OK, "%s: an EAGLE-3 head for the model",
			d->draft_path);
	judge_plan(d);
	doctor_judge_device(d);
}

void doctor_close(struct doctor *d)
{
	if (d->has_model)
		facts_close(&d->model);
	if (d->has_draft)
		facts_close(&d->draft);
}
