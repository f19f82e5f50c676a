/*
 * Answers that wait until the service has room, first come first served. The gateway cannot know how much room there is: other
 * clients use the service too. So answers are started until one is refused (-EBUSY); then only as many run as ran at that moment,
 * and the bound grows by one with each tick. On the loop's thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct choice;

struct queue {
	struct choice *first, *last;
	uint32_t n; /* that wait */
	uint32_t running; /* answers that the service was asked for, and that have not ended */
	uint32_t running_max; /* 0: no answer was refused */
	bool rests; /* until the next tick or end: one was refused just now */
};

/* At the end; one that was refused: where it was before, by when its request came. */
void queue_add(struct queue *queue, struct choice *choice);
void queue_put_back(struct queue *queue, struct choice *choice);
/* The next that may be started, taken out and counted as running; NULL: none. */
struct choice *queue_take(struct queue *queue);
/* An answer waits no more. */
void queue_remove(struct queue *queue, struct choice *choice);
/* One that was running has ended; refused: the service had no room for it. */
void queue_ended(struct queue *queue, bool refused);
void queue_tick(struct queue *queue);
