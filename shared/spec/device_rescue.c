#include "shared/spec/device_rescue.h"

#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often the flags are looked at while a queue waits. */
#define LOOK_NS 1000000
/* Waits at once: a queue waits for what one layer has pinned. */
#define WAITS_MAX LIMIT_EXPERTS

struct device_rescue {
	struct device_rescue_options o;
	struct device_rescue_slots of;
	struct queue *q; /* the thread's */
	struct buffer staging; /* one expert */
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	/* Under the mutex: */
	bool stop;
	int started; /* 1: not yet; else the status of the start */
	struct error *err;
	uint32_t n_waits;
	struct pending {
		struct device_wait wait;
		uint64_t since_ns;
	} waits[WAITS_MAX];
	_Atomic uint32_t late;
};

static bool ended(const struct device_rescue *r, const struct device_wait *wait)
{
	/* As the queue compares them. */
	uint32_t flag = atomic_load_explicit(&r->of.slots.flag[wait->slot], memory_order_acquire);
	return (int32_t)(flag - wait->load) >= 0;
}

static bool expired(struct device_rescue *r, const struct pending *pending)
{
	if (r->o.cache_alive != NULL && !r->o.cache_alive(r->o.arg))
		return true;
	/* Closed after the last copy, or because copies fail. */
	if (atomic_load_explicit(&r->of.slots.header->closed, memory_order_acquire) != 0)
		return !ended(r, &pending->wait);
	if (clock_ns() - pending->since_ns < pending->wait.patience_ns)
		return false;
	atomic_fetch_add_explicit(&r->late, 1, memory_order_relaxed);
	return true;
}

static void copy(struct device_rescue *r, const struct device_wait *wait)
{
	const struct layer *layer = &r->o.model->layers[wait->layer];
	const struct slots_layer_geometry *geometry = &r->o.geometry->layers[wait->layer];
	const void *from[EXPERT_PARTS] = {model_expert_data(&layer->gate, wait->expert),
		model_expert_data(&layer->up, wait->expert),
		model_expert_data(&layer->down, wait->expert)};
	struct queue *q = r->q;
	device_pack(geometry, from, r->o.model->expert_layout, r->staging.host);
	q->ops->copy(q,
		(struct place){
			r->of.memory, (size_t)device_slot_at(r->of.slots.slot_bytes, wait->slot)},
		(struct place){&r->staging, 0}, (size_t)device_expert_bytes(geometry));
	q->ops->write_value(q,
		(struct place){r->of.flags, device_flag_at(r->of.region, &r->of.slots, wait->slot)},
		wait->load);
	int status = q->ops->wait(q, q->ops->ticket(q));
	if (status != 0)
		log_error("the device has failed: %s", strerror(-status));
	counter_add(&r->of.slots.header->rescued, 1);
}

/* With a pin of its own: the flag may come after all, and the slot be released and get another expert
 * before the copy has ended. */
static void rescue(struct device_rescue *r, const struct device_wait *wait)
{
	const struct device_pin pin = {.slot = wait->slot, .load = wait->load};
	if (!device_pin_again(&r->of.slots, &pin, r->of.epoch, wait->layer, wait->expert)) {
		/* It has ended. Or somebody else wrote to the state word: then the queue goes on,
		 * and the pass is found out when it gives the slot back. */
		if (!ended(r, wait))
			atomic_store_explicit(
				&r->of.slots.flag[wait->slot], wait->load, memory_order_release);
		return;
	}
	copy(r, wait);
	(void)device_unpin(&r->of.slots, wait->slot, r->of.epoch, wait->layer, wait->expert);
}

/* Ends the oldest wait, or finds that it has ended. False: it goes on. */
static bool look(struct device_rescue *r)
{
	pthread_mutex_lock(&r->mutex);
	struct pending oldest = r->waits[0];
	pthread_mutex_unlock(&r->mutex);
	if (!ended(r, &oldest.wait)) {
		if (!expired(r, &oldest))
			return false;
		rescue(r, &oldest.wait);
	}
	pthread_mutex_lock(&r->mutex);
	memmove(r->waits, r->waits + 1, --r->n_waits * sizeof(*r->waits));
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->mutex);
	return true;
}

/* Waits for something to look after; false: the thread is to end. */
static bool sleep_until_needed(struct device_rescue *r)
{
	pthread_mutex_lock(&r->mutex);
	while (r->n_waits == 0 && !r->stop)
		pthread_cond_wait(&r->changed, &r->mutex);
	bool stop = r->stop && r->n_waits == 0;
	pthread_mutex_unlock(&r->mutex);
	return !stop;
}

static int open_queue(struct device_rescue *r, struct error *err)
{
	const struct queue_limits limits = {0};
	const struct backend_ops *ops = r->o.backend->ops;
	int status = ops->alloc(r->o.backend, (size_t)device_slot_bytes(r->o.geometry), BUFFER_HOST,
		&r->staging, err);
	return status == 0 ? ops->queue(r->o.backend, &limits, &r->q, err) : status;
}

static void *rescue_thread(void *arg)
{
	struct device_rescue *r = arg;
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	int status = open_queue(r, r->err);

	pthread_mutex_lock(&r->mutex);
	r->started = status;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->mutex);
	while (status == 0 && sleep_until_needed(r))
		if (!look(r))
			nanosleep(&pause, NULL);
	if (r->q != NULL)
		r->q->ops->queue_free(r->q);
	if (r->staging.backend != NULL)
		r->staging.backend->ops->free(&r->staging);
	return NULL;
}

int device_rescue_start(
	const struct device_rescue_options *options, struct device_rescue **out, struct error *err)
{
	struct device_rescue *r = calloc(1, sizeof(*r));
	if (r == NULL)
		return error_set(err, ENOMEM, "no memory to look after copies to the device");
	r->o = *options;
	r->started = 1;
	r->err = err;
	pthread_mutex_init(&r->mutex, NULL);
	pthread_cond_init(&r->changed, NULL);
	int code = pthread_create(&r->thread, NULL, rescue_thread, r);
	if (code != 0) {
		free(r);
		return error_thread(err, code, "the thread that looks after copies");
	}
	pthread_mutex_lock(&r->mutex);
	while (r->started > 0)
		pthread_cond_wait(&r->changed, &r->mutex);
	int status = r->started;
	pthread_mutex_unlock(&r->mutex);
	if (status != 0)
		device_rescue_stop(&r);
	*out = r;
	return status;
}

void device_rescue_stop(struct device_rescue **rescue)
{
	struct device_rescue *r = *rescue;
	if (r == NULL)
		return;
	pthread_mutex_lock(&r->mutex);
	r->stop = true;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->mutex);
	pthread_join(r->thread, NULL);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->mutex);
	free(r);
	*rescue = NULL;
}

void device_rescue_use(struct device_rescue *r, const struct device_rescue_slots *slots)
{
	pthread_mutex_lock(&r->mutex);
	/* The flags are there, and the thread will soon have seen them. */
	while (r->n_waits > 0)
		pthread_cond_wait(&r->changed, &r->mutex);
	r->of = *slots;
	pthread_mutex_unlock(&r->mutex);
}

void device_rescue_add(struct device_rescue *r, const struct device_wait *wait)
{
	pthread_mutex_lock(&r->mutex);
	while (r->n_waits == WAITS_MAX)
		pthread_cond_wait(&r->changed, &r->mutex);
	r->waits[r->n_waits++] = (struct pending){*wait, clock_ns()};
	if (r->n_waits == 1)
		pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->mutex);
}

uint32_t device_rescue_late(struct device_rescue *r)
{
	return atomic_load_explicit(&r->late, memory_order_relaxed) == 0
		       ? 0
		       : atomic_exchange_explicit(&r->late, 0, memory_order_relaxed);
}
