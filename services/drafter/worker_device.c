#include "services/drafter/worker_device.h"

#include "kernels/arithmetic.h"
#include "kernels/gpu/backend.h"
#include "kernels/gpu/choice.h"
#include "services/drafter/worker_mail.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/ipc/device_claim.h"
#include "shared/ipc/peers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void refuse(struct worker *w, const char *why)
{
	struct worker_device *d = &w->device;
	pthread_mutex_lock(&w->mutex);
	bool same = strcmp(d->state.refusal, why) == 0;
	snprintf(d->state.refusal, sizeof(d->state.refusal), "%s", why);
	pthread_mutex_unlock(&w->mutex);
	if (*why && !same)
		log_notice("device = %s: the CPU drafts, because %s", w->own.device, why);
}

/* Without its library a device drafts in the exact arithmetic. */
static void open_library(struct worker *w)
{
	struct worker_device *d = &w->device;
	struct error why;
	if (w->own.arithmetic == DRAFTER_ARITHMETIC_EXACT)
		return;
	if (d->backend->ops->fast(d->backend, d->library, &why) == 0)
		d->fast = arithmetic_fast(d->library);
	else
		log_info("device = %s: drafts are made in the exact arithmetic: %s", w->own.device,
			why.text);
}

bool worker_device_wanted(const struct worker *w)
{
	const char *device;
	enum gpu_choice choice;
	struct error why;
	return gpu_choice_read(w->own.device, &choice, &device, &why) < 0 ||
	       choice != GPU_CHOICE_CPU;
}

void worker_device_open(struct worker *w)
{
	struct worker_device *d = &w->device;
	struct backend_gpu_options options = {.seed = 0};
	enum gpu_choice choice;
	struct error why;
	d->opened = true;
	int r = gpu_choice_read(w->own.device, &choice, &options.device, &why);
	if (r == 0 && choice == GPU_CHOICE_CPU)
		return;
	if (r == 0)
		r = choice == GPU_CHOICE_SIMT ? backend_simt_create(&options, &d->backend, &why)
					      : backend_cuda_create(&options, &d->backend, &why);
	if (r == 0) {
		pthread_mutex_lock(&w->mutex);
		d->state.name = d->backend->ops->name;
		d->state.variant = d->backend->variant;
		pthread_mutex_unlock(&w->mutex);
		open_library(w);
		return;
	}
	d->backend = NULL;
	refuse(w, why.text);
}

void worker_device_claim(struct worker *w, const char *runtime_dir)
{
	struct worker_device *d = &w->device;
	struct error why;
	d->runtime_dir = runtime_dir;
	if (!d->backend ||
		device_claim(d->backend->device->uuid, d->backend->device->name, runtime_dir,
			PEER_DRAFTER, w->own.device_shared, &d->claim, &why) == 0)
		return;
	worker_device_close(w);
	refuse(w, why.text);
}

void worker_device_close(struct worker *w)
{
	struct worker_device *d = &w->device;
	if (d->backend)
		d->backend->ops->destroy(d->backend);
	d->backend = NULL;
	pthread_mutex_lock(&w->mutex);
	d->state.name = d->state.variant = NULL;
	pthread_mutex_unlock(&w->mutex);
	if (d->claim >= 0)
		close(d->claim);
	d->claim = -1;
}

/* The draft model or head that may move. */
static struct draft_model *movable(const struct worker *w)
{
	return w->context.model ? w->context.model : w->context.head;
}

static void tell(struct worker *w)
{
	if (w->on_change)
		w->on_change(w->arg);
}

/* Moves a model; where the device's library fails, without it; where the device does, back to the
 * CPU. */
static void move(struct worker *w, struct draft_model *m, struct backend *to)
{
	struct error err, why = {.text = ""};
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		struct draft_session *s = &w->sessions[i];
		if (s->uid != 0 && s->has_seq && s->drafter == m)
			draft_model_drop(s);
	}
	m->use_library = to && w->device.fast != 0;
	int r = draft_engine_move(m, w->config, to, to ? &why : &err);
	if (r < 0 && m->use_library && forward_can_be_fast(m->model)) {
		log_notice("device = %s: drafts are made in the exact arithmetic: %s",
			w->own.device, why.text);
		w->device.fast = 0;
		m->use_library = false;
		r = draft_engine_move(m, w->config, to, &why);
	}
	if (r < 0 && to) {
		refuse(w, why.text);
		r = draft_engine_move(m, w->config, NULL, &err);
	}
	if (r == 0)
		return;
	log_error("the draft model cannot be used any more: %s", err.text);
	if (m == w->context.model)
		w->context.model = NULL;
	else
		w->context.head = NULL;
}

static bool same_needs(const struct draft_engine_needs *a, const struct draft_engine_needs *b)
{
	return a->weights == b->weights && a->kv == b->kv && a->passes == b->passes &&
	       a->kv_tokens == b->kv_tokens;
}

/* m: that was asked for; NULL: there is none. */
static void note(
	struct worker *w, const struct draft_engine_needs *needs, const struct draft_model *m)
{
	struct worker_device *d = &w->device;
	bool there = m && m->backend == d->backend;
	pthread_mutex_lock(&w->mutex);
	bool changed = !same_needs(&d->state.needs, needs) || d->state.there != there;
	d->state.needs = *needs;
	d->state.there = there;
	d->state.arithmetic = m && m->fast ? d->fast : KERNELS_ARITHMETIC;
	pthread_mutex_unlock(&w->mutex);
	if (changed)
		tell(w);
}

void worker_device_meet(struct worker *w)
{
	struct worker_device *d = &w->device;
	struct draft_engine_needs needs = {0};
	struct draft_model *m = movable(w);
	if (m && !d->opened) {
		worker_device_open(w);
		if (d->runtime_dir)
			worker_device_claim(w, d->runtime_dir);
		tell(w);
	}
	if (!d->backend || d->lost)
		return;
	/* One that its target refuses does not keep the memory. */
	if (w->model && w->model != m && w->model->backend == d->backend)
		move(w, w->model, NULL);
	if (m) {
		m->use_library = d->fast != 0;
		draft_engine_needs(m, w->config, d->backend, &needs);
	}
	note(w, &needs, m);
	/* The answer may have been there before the question: an expert-cache says it again to a
	 * successor. */
	atomic_store_explicit(&d->answered, true, memory_order_release);
}

void worker_device_settle(struct worker *w)
{
	struct worker_device *d = &w->device;
	char why[sizeof(d->why)];
	if (!atomic_exchange_explicit(&d->answered, false, memory_order_acquire) || d->lost)
		return;
	pthread_mutex_lock(&w->mutex);
	bool granted = d->granted;
	bool current = d->answer_to > 0 && d->answer_to == draft_engine_bytes(&d->state.needs);
	struct draft_engine_needs needs = d->state.needs;
	memcpy(why, d->why, sizeof(why));
	pthread_mutex_unlock(&w->mutex);
	struct draft_model *m = movable(w);
	if (!m || !current)
		return;
	bool there = m->backend == d->backend;
	if (granted && !there) {
		refuse(w, "");
		move(w, m, d->backend);
		if (m->backend == d->backend)
			log_notice(
				"device = %s: %s drafts (weights %s, KV cache %s, passes %s)%s%s",
				w->own.device, d->backend->device->name, UNITS_SIZE(needs.weights),
				UNITS_SIZE(needs.kv), UNITS_SIZE(needs.passes),
				m->fast ? "; texts are read with " : "", m->fast ? d->library : "");
	} else if (!granted) {
		struct error text;
		if (there)
			move(w, m, NULL);
		error_set(&text, ENOMEM,
			"the draft model needs %s (weights %s, KV cache for kv_tokens = %u %s, "
			"passes %s): %s",
			UNITS_SIZE(draft_engine_bytes(&needs)), UNITS_SIZE(needs.weights),
			needs.kv_tokens, UNITS_SIZE(needs.kv), UNITS_SIZE(needs.passes), why);
		refuse(w, text.text);
	}
	note(w, &needs, m);
	tell(w);
}

void worker_device_check(struct worker *w)
{
	struct worker_device *d = &w->device;
	const struct draft_engine_needs none = {0};
	struct error err;
	if (!d->backend || d->lost)
		return;
	struct draft_model *m = movable(w);
	if (!m || m->backend != d->backend || d->backend->ops->failure(d->backend, &err) == 0)
		return;
	/* For as long as the process lives. */
	d->lost = true;
	move(w, m, NULL);
	refuse(w, err.text);
	note(w, &none, NULL);
}

void worker_device_answer(struct worker *w, uint64_t asked, bool granted, const char *why)
{
	struct worker_device *d = &w->device;
	pthread_mutex_lock(&w->mutex);
	d->answer_to = asked;
	d->granted = granted;
	snprintf(d->why, sizeof(d->why), "%s", why);
	atomic_store_explicit(&d->answered, true, memory_order_release);
	worker_wake(w);
	pthread_mutex_unlock(&w->mutex);
}

void worker_device_now(struct worker *w, struct worker_device_state *out)
{
	pthread_mutex_lock(&w->mutex);
	*out = w->device.state;
	pthread_mutex_unlock(&w->mutex);
}
