#include "services/gateway/queue.h"

#include "services/gateway/exchange.h"

void queue_add(struct queue *queue, struct choice *choice)
{
	choice->behind = NULL;
	choice->waits = true;
	if (queue->last)
		queue->last->behind = choice;
	else
		queue->first = choice;
	queue->last = choice;
	queue->n++;
}

void queue_put_back(struct queue *queue, struct choice *choice)
{
	struct choice *before = NULL, *at = queue->first;

	/* If several were refused, the oldest is first again. */
	for (; at && at->exchange->begun_ns < choice->exchange->begun_ns; at = at->behind)
		before = at;
	choice->behind = at;
	choice->waits = true;
	if (before)
		before->behind = choice;
	else
		queue->first = choice;
	if (!at)
		queue->last = choice;
	queue->n++;
}

void queue_remove(struct queue *queue, struct choice *choice)
{
	struct choice *before = NULL, *at = queue->first;

	if (!choice->waits)
		return;
	for (; at != choice; at = at->behind)
		before = at;
	if (before)
		before->behind = choice->behind;
	else
		queue->first = choice->behind;
	if (queue->last == choice)
		queue->last = before;
	choice->behind = NULL;
	choice->waits = false;
	queue->n--;
}

struct choice *queue_take(struct queue *queue)
{
	struct choice *choice = queue->first;

	if (!choice || queue->rests || (queue->running_max && queue->running >= queue->running_max))
		return NULL;
	queue_remove(queue, choice);
	queue->running++;
	return choice;
}

void queue_ended(struct queue *queue, bool refused)
{
	queue->running--;
	queue->rests = refused;
	if (refused)
		queue->running_max = queue->running ? queue->running : 1;
}

void queue_tick(struct queue *queue)
{
	queue->rests = false;
	if (queue->running_max && queue->n > 0)
		queue->running_max++;
	else if (queue->n == 0 && queue->running == 0)
		queue->running_max = 0;
}
