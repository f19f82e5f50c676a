/*
 * shared/ipc/doorbell.c: waiters that sleep on a futex, ringers that wake only when somebody is counted asleep. One waiter
 * (which may die anywhere and be replaced by a successor that takes over the bell) and another that does not die; a ringer
 * that may die between ringing and waking and is replaced by one that rings again. A listener (doorbell_lie_down, the reader
 * of the expert-cache) sleeps on a wait that stays queued in the kernel while other things, reads, end its sleep.
 *
 * Checked: no wake-up is lost: when all rings are done nobody is left asleep with work undone (an invalid end state).
 *
 * breaks: -DNO_COMPARE       the kernel does not compare the sequence before it puts a waiter to sleep
 * breaks: -DLOOK_BEFORE_RING the ringer's look at sleepers passes its store of sequence (no seq_cst)
 * breaks: -DCOUNT_LATE       the waiter counts itself asleep only after its last look at the sequence
 * breaks: -DNO_LOOK          the listener sleeps on the wait that is queued without a look at the sequence
 */
#define RINGS 3
#ifndef WAITERS
#define WAITERS 2
#endif

byte items;	 /* what the waiters wait for */
byte sequence, sleepers;
bool asleep[WAITERS];
bool queued, woken; /* the listener's wait in the kernel; its completion */
byte reads = 1;	    /* that end while it sleeps */
byte deaths;

inline wake_all(i)
{
	atomic {
		i = 0;
		do
		:: i < WAITERS -> asleep[i] = false; i++
		:: i == WAITERS -> break
		od;
		if
		:: queued -> queued = false; woken = true
		:: else -> skip
		fi;
		i = 0
	}
}

proctype ringer()
{
	byte i;
	bool somebody;

	do
	:: items == RINGS -> break
	:: items < RINGS ->
		items++;
again:
#ifdef LOOK_BEFORE_RING
		somebody = sleepers > 0;
		sequence++;
#else
		sequence++;
		if
		:: deaths < 2 -> deaths++; goto again /* killed before it woke anybody; its successor rings */
		:: skip
		fi;
		somebody = sleepers > 0;
#endif
		if
		:: somebody -> wake_all(i)
		:: else -> skip
		fi
	od
}

proctype waiter(byte me)
{
	byte seen;

begin:
	do
	:: items == RINGS -> break
	:: else ->
		seen = sequence;
		if
		:: items == RINGS -> break
		:: else -> skip
		fi;
#ifndef COUNT_LATE
		sleepers++;
#endif
		do
		:: sequence != seen -> break
		:: else ->
#ifdef NO_COMPARE
			asleep[me] = true;
#else
			atomic { /* the kernel, under its lock */
				if
				:: sequence == seen -> asleep[me] = true
				:: else -> skip
				fi
			};
#endif
#ifdef COUNT_LATE
			sleepers++;
#endif
			if
			:: !asleep[me]
#if WAITERS == 1
			:: asleep[me] && deaths < 2 -> /* killed asleep; the successor takes over */
				atomic { asleep[me] = false; deaths++ };
				sleepers = 0;
				goto begin
#else
			:: me == 0 && asleep[me] && deaths < 2 -> /* killed asleep: stays counted for ever */
				atomic { asleep[me] = false; deaths++ };
				goto begin
#endif
			fi
		od;
		atomic { /* compare and exchange */
			if
			:: sleepers > 0 -> sleepers--
			:: else -> skip
			fi
		}
	od
}

proctype listener()
{
	byte seen;

	do
	:: items == RINGS -> break
	:: else ->
		seen = sequence;
		if
		:: items == RINGS -> break
		:: else -> skip
		fi;
		sleepers++;
		if
#ifndef NO_LOOK
		:: sequence != seen -> skip
#endif
		:: else ->
			if
			:: !queued && !woken ->
				atomic { /* the kernel, under its lock */
					if
					:: sequence == seen -> queued = true
					:: else -> woken = true
					fi
				}
			:: else -> skip
			fi;
			if
			:: woken -> woken = false
			:: reads > 0 -> reads--
			fi
		fi;
		atomic { /* compare and exchange */
			if
			:: sleepers > 0 -> sleepers--
			:: else -> skip
			fi
		}
	od
}

init
{
	byte w;

	atomic {
		run ringer();
#if WAITERS > 1
		run listener(); /* a successor takes over a bell of one waiter only */
#endif
		do
		:: w < WAITERS -> run waiter(w); w++
		:: w == WAITERS -> break
		od
	}
}
