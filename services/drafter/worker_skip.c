#include "services/drafter/worker_skip.h"

#include "services/drafter/skip.h"
#include "services/drafter/worker_mail.h"
#include "shared/base/log.h"

#include <stdio.h>

static void set(struct worker *w, struct draft_model *skip, const char *refusal)
{
	pthread_mutex_lock(&w->mutex);
	struct draft_model *old = w->skip;
	w->skip = skip;
	snprintf(w->skip_refusal, sizeof(w->skip_refusal), "%s", refusal);
	pthread_mutex_unlock(&w->mutex);
	w->context.skip = skip;
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
		    &w->hints, &skip, &err) < 0) {
		error_set(&why, EINVAL, "%.370s: drafting with n-grams", err.text);
		log_error("layer-skip: %s", why.text);
	}
	set(w, skip, why.text);
}

void worker_skip_forget(struct worker *w)
{
	w->skip_tried = false;
	set(w, NULL, "");
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
