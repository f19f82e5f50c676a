#include "services/drafter/worker_skip.h"

#include "services/drafter/skip.h"
#include "services/drafter/worker_mail.h"
#include "shared/base/log.h"
#include "shared/model/arch/model_config.h"
#include "shared/model/arch/skip.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void set(struct worker *w, struct draft_model *skip, const char *refusal)
{
	pthread_mutex_lock(&w->mutex);
	struct draft_model *old = w->skip;
	bool news = refusal[0] != '\0' && strcmp(w->skip_told, refusal) != 0;
	w->skip = skip;
	snprintf(w->skip_told, sizeof(w->skip_told), "%s", refusal);
	snprintf(w->skip_refusal, sizeof(w->skip_refusal), "%s", refusal);
	pthread_mutex_unlock(&w->mutex);
	w->context.skip = skip;
	if (news)
		log_error("layer-skip: %s", refusal);
	if (old != skip)
		worker_close_model(w, &old);
	if (w->on_change)
		w->on_change(w->arg);
}

void worker_skip_want(struct worker *w)
{
	struct draft_model *skip = NULL;
	struct error err = {""}, why = {""};
	if (w->skip_tried || !w->context.view)
		return;
	w->skip_tried = true;
	if (draft_skip_open(w->config, &w->view.header, &w->weights, w->sessions, LIMIT_SESSIONS,
		    &w->hints, &skip, &err) < 0)
		error_set(&why, EINVAL, "%.370s: drafting with n-grams", err.text);
	set(w, skip, why.text);
}

/* Whether the target can do without these layers, or is not known. Under the mutex. */
static int check(const struct worker *w, const char *layers, struct error *err)
{
	struct skip skip;
	bool layer[LIMIT_LAYERS];
	if (w->target.n_layers == 0)
		return 0;
	int r = skip_parse(layers, &skip, err);
	return r < 0 ? r : skip_choose(&skip, &w->target, layer, err);
}

int worker_skip_can(struct worker *w, const char *layers, struct error *err)
{
	pthread_mutex_lock(&w->mutex);
	int r = check(w, layers, err);
	pthread_mutex_unlock(&w->mutex);
	return r < 0 ? error_prefix(err, -ENOEXEC, "skip_layers = %.100s", layers) : 0;
}

void worker_skip_check(const struct worker *w, const char *layers, char *out, size_t bytes)
{
	struct error err;
	out[0] = '\0';
	if (check(w, layers, &err) < 0)
		snprintf(out, bytes, "skip_layers = %.100s: %.250s: drafting with n-grams", layers,
			err.text);
}

void worker_skip_forget(struct worker *w)
{
	char why[sizeof(w->skip_refusal)];
	worker_skip_check(w, w->config->skip_layers, why, sizeof(why));
	w->skip_tried = why[0] != '\0';
	set(w, NULL, why);
}

void worker_skip_meet(struct worker *w)
{
	struct model_config config = {0};
	struct gguf *gguf;
	struct error err;
	if (gguf_open(w->view.header.model_path, &gguf, &err) == 0) {
		if (model_read_config(gguf, &config, &err) < 0)
			config.n_layers = 0;
		gguf_close(&gguf);
	}
	pthread_mutex_lock(&w->mutex);
	w->target = config;
	pthread_mutex_unlock(&w->mutex);
	worker_skip_forget(w);
}

void worker_skip_settle(struct worker *w)
{
	bool by_default = w->config->method == DRAFT_LAYER_SKIP;
	pthread_mutex_lock(&w->mutex);
	bool changed = w->skip_by_default != by_default;
	w->skip_by_default = by_default;
	pthread_mutex_unlock(&w->mutex);
	if (by_default)
		worker_skip_want(w);
	if (changed && w->on_change)
		w->on_change(w->arg);
}

void worker_skip(struct worker *w, struct worker_skip *out)
{
	pthread_mutex_lock(&w->mutex);
	worker_head_of(w->skip, &out->passes);
	out->kept = w->skip ? w->skip->model->config.n_layers : 0;
	out->of = w->skip ? w->skip->target->config.n_layers : 0;
	snprintf(out->refusal, sizeof(out->refusal), "%s", w->skip_refusal);
	pthread_mutex_unlock(&w->mutex);
}
