/*
 * Answers that wait until the service has room, in the order in which they came. The gateway cannot
 * know how much room there is, because other clients use the service too. So it starts answers
 * until one is refused (-EBUSY). From then on at most as many run as ran at that moment, and that
 * bound grows by one with each tick. Loop thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct choice;

struct queue {
	struct choice *first, *last;
	uint32_t n; /* that wait */
	uint32_t running; /* answers that were requested from the service and have not ended */
	uint32_t running_max; /* 0: no answer was refused */
	bool rests; /* an answer was refused just now: none is started until the next tick or end */
};

/* queue_add: puts an answer at the end. queue_put_back: puts one that was refused at its former
 * place, by when its request came. */
void queue_add(struct queue *queue, struct choice *choice);
void queue_put_back(struct queue *queue, struct choice *choice);
/* Takes the next answer that may be started, and counts it as running; NULL: none. */
struct choice *queue_take(struct queue *queue);
/* Removes an answer that waits. */
void queue_remove(struct queue *queue, struct choice *choice);
/* Call when a running answer has ended; refused: the service had no room for it. */
void queue_ended(struct queue *queue, bool refused);
void queue_tick(struct queue *queue);
