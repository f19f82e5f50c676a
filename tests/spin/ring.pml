/*
 * shared/ipc/ring.c: one producer, one consumer, either may die at any step and is replaced by a successor that attaches at
 * the counters it finds. Counters run modulo 8, well past a wrap of the 2-slot ring. A slot is written and read in two
 * halves, so that a torn one would show.
 *
 * Checked: the consumer sees every message once, whole and in order (a consumer that died between reading and releasing
 * sees that one again); the counters are never further apart than the ring is long; nobody is stuck at the end.
 *
 * breaks: -DPUBLISH_EARLY    head is stored before the slot's bytes (ring_publish without release)
 * breaks: -DRELEASE_EARLY    tail is stored before the slot has been read (ring_release without release)
 * breaks: -DZERO_CACHE       a view that attaches believes the other side's counter is 0 instead of a ring behind
 */
#define SLOTS 2
#define MODULUS 8
#define MESSAGES 11
#define DEATHS 2

byte head = 6, tail = 6; /* modulo MODULUS: the wrap comes soon */
byte low[SLOTS], high[SLOTS];
byte written, deaths;  /* written: messages published; what the successor's program would know */
byte expected;	       /* the next number the consumer must see */
bool producer_done;

#define distance(a, b) (((a) + MODULUS - (b)) % MODULUS)

proctype producer()
{
	byte cached;

attach:
#ifdef ZERO_CACHE
	cached = 0;
#else
	cached = (head + MODULUS - SLOTS) % MODULUS;
#endif
	do
	:: written == MESSAGES -> break
	:: written < MESSAGES ->
		if
		:: distance(head, cached) >= SLOTS -> cached = tail
		:: else -> skip
		fi;
		if
		:: distance(head, cached) >= SLOTS -> (tail != cached) /* full: look again when it moved */
		:: else ->
#ifdef PUBLISH_EARLY
			atomic { head = (head + 1) % MODULUS; written++ };
			low[(head + MODULUS - 1) % SLOTS] = written;
			high[(head + MODULUS - 1) % SLOTS] = written
#else
			low[head % SLOTS] = written + 1;
			if
			:: deaths < DEATHS -> deaths++; goto attach
			:: skip
			fi;
			high[head % SLOTS] = written + 1;
			if
			:: deaths < DEATHS -> deaths++; goto attach
			:: skip
			fi;
			atomic { head = (head + 1) % MODULUS; written++ }
#endif
		fi;
		assert(distance(head, tail) <= SLOTS)
	od;
	producer_done = true
}

proctype consumer()
{
	byte cached, first, second;

attach:
	cached = (head + MODULUS - SLOTS) % MODULUS;
	do
	:: expected == MESSAGES -> break
	:: expected < MESSAGES ->
		if
		:: distance(cached, tail) == 0 || distance(cached, tail) > SLOTS -> cached = head
		:: else -> skip
		fi;
		if
		:: distance(cached, tail) == 0 || distance(cached, tail) > SLOTS -> (head != cached)
		:: else ->
#ifdef RELEASE_EARLY
			atomic { first = tail; tail = (tail + 1) % MODULUS };
			second = high[first % SLOTS];
			first = low[first % SLOTS];
			assert(first == expected + 1 && second == expected + 1);
			expected++
#else
			first = low[tail % SLOTS];
			if
			:: deaths < DEATHS -> deaths++; goto attach
			:: skip
			fi;
			second = high[tail % SLOTS];
			assert(first == expected + 1 && second == expected + 1);
			atomic { tail = (tail + 1) % MODULUS; expected++ }
#endif
		fi
	od
}

init
{
	atomic {
		run producer();
		run consumer()
	}
}
