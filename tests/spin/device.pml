/*
 * The protocol of a device's slots, shared/spec/device_slots.h: one slot, two experts, a verifier whose queue waits for copies, the
 * owner and its queue of copies, and both processes killed between any two steps, with a successor. What it has in common with
 * slots.pml (refusals, the budget, two slots of one expert) is left to that. Names in brackets are the C code's.
 *
 * names in: shared/spec/device_slots.c
 *
 * Checked by assertions, and by the absence of invalid end states:
 *  - when the verifier's queue reads a slot, the bytes are those of the expert that it pinned, and stay until it unpins;
 *  - a READY slot holds its tag's bytes;
 *  - no slot is lost, and no queue waits for ever: whatever ends, ends with the slot EMPTY or READY and nobody waiting.
 *
 * breaks: -DFLAG_EARLY  the flag is written before the bytes are there
 * breaks: -DREADY_EARLY  READY is stored before the copy has ended
 * breaks: -DNUMBER_LATE  LOADING is stored before the number of the load: the verifier waits for an earlier one
 * breaks: -DEND_BLIND  READY is stored without the pins that were made in LOADING
 * breaks: -DABANDON_BLIND  a successor frees a LOADING slot that is pinned
 * breaks: -DABANDON_NOT  a successor leaves LOADING slots as they are
 * breaks: -DEVICT_BLIND  the eviction stores EVICTING without comparing: a pin in between is lost
 * breaks: -DEPOCH_FIRST  the owner reads the header's epoch before the state word
 * breaks: -DPIN_BLIND  the pin does not compare the tag
 * breaks: -DNO_RESCUE  nobody ends the wait for a copy of the dead
 * breaks: -DRESCUE_EARLY  the verifier writes the flag before the bytes that it copies itself
 * breaks: -DRESCUE_UNPINNED  it copies without a pin of its own: the slot may hold another expert when the copy ends
 */
#define EXPERTS 2
#define NONE 9 /* no expert's bytes */
#define LOADS 3 /* that there may be */

#define EMPTY 0
#define LOADING 1
#define READY 2
#define EVICTING 3

typedef word {
	byte state, pins, epoch, tag
};
word slot; /* read and written in one step */
byte table[EXPERTS]; /* 1: the slot; 0: absent */
byte load; /* number of the last load */
byte flag; /* of the last load whose bytes are there */
byte content = NONE;
byte header_epoch;
byte deaths = 2, verifier_deaths = 1; /* that may still come */
byte held; /* pins of the verifier that lives, for the assertions */
bool reads; /* its queue has passed the wait */
byte copies; /* expert + 1 that the owner's queue copies */
byte copied; /* what the queue does next: the bytes, then the flag */
bool dead; /* the owner has died, and has no successor yet */
bool waits; /* the verifier's queue waits for the flag */
byte number, wanted; /* of the load that it waits for, and its expert */
byte rescues; /* what the thread that ends waits does next */

#define same_word (slot.state == w_state && slot.pins == w_pins && slot.epoch == w_epoch && slot.tag == w_tag)
#define invariant \
	((slot.state != READY || content == slot.tag) && (!reads || content == slot.tag) && \
	(held == 0 || slot.state == READY || slot.state == LOADING))
#define evictable (slot.state == READY && (slot.pins == 0 || slot.epoch != header_epoch))

inline load_word()
{
	w_state = slot.state; w_pins = slot.pins; w_epoch = slot.epoch; w_tag = slot.tag
}
inline forget()
{
	e = 0; w_state = 0; w_pins = 0; w_epoch = 0; w_tag = 0
}

/* The owner's queue. It ends with its process, between any two steps. */
active proctype queue()
{
end:	do
#ifdef FLAG_EARLY
	:: atomic { copies != 0 && copied == 0 -> flag = load; copied = 1 }
	:: atomic { copies != 0 && copied == 1 -> content = copies - 1; copied = 2; assert(invariant) }
#else
	:: atomic { copies != 0 && copied == 0 -> content = copies - 1; copied = 1; assert(invariant) }
	:: atomic { copies != 0 && copied == 1 -> flag = load; copied = 2 }
#endif
	od
}

active proctype verifier()
{
	byte e, epoch;
	byte w_state, w_pins, w_epoch, w_tag;

enter:	/* [enter] */
	epoch = header_epoch + 1;
	header_epoch = epoch;
end:	do
	:: atomic { table[0] != 0 -> e = 0 }; break
	:: atomic { table[1] != 0 -> e = 1 }; break
	:: atomic { verifier_deaths > 0 -> goto die }
	od;
	/* [pin] the table word above, then the state word, then the compare-and-swap; then the number. */
	atomic {
		load_word();
		if
#ifdef PIN_BLIND
		:: w_state != READY && w_state != LOADING -> forget(); goto end
#else
		:: (w_state != READY && w_state != LOADING) || w_tag != e -> forget(); goto end
#endif
		:: else
		fi
	};
	atomic {
		if
		:: same_word ->
			slot.pins = (w_epoch == epoch -> w_pins + 1 : 1);
			slot.epoch = epoch;
			held++;
			assert(slot.tag == e && invariant);
			w_pins = 0; w_epoch = 0; w_tag = 0
		:: else -> forget(); goto end
		fi
	};
	number = load;
	if
	:: w_state == LOADING -> atomic { waits = 1; wanted = e };
		do
		:: atomic { flag >= number -> waits = 0; w_state = 0 }; break
		:: atomic { verifier_deaths > 0 -> goto die }
		od
	:: else -> w_state = 0
	fi;
	atomic { reads = 1; assert(invariant && slot.tag == e && content == e) };
	do
	:: atomic { assert(content == e && slot.tag == e) }; break
	:: atomic { verifier_deaths > 0 -> goto die }
	od;
	/* [unpin] */
	atomic {
		assert(content == e && slot.tag == e && slot.epoch == epoch && slot.pins > 0 &&
			(slot.state == READY || slot.state == LOADING));
		slot.pins--; held--; reads = 0; forget();
		goto end
	};
die:	/* With its queue, and the thread. */
	atomic {
		verifier_deaths--;
		held = 0; reads = 0; waits = 0; rescues = 0; epoch = 0; number = 0; wanted = 0; forget();
		goto enter
	}
}

/* The verifier's thread that ends waits: whether the owner is dead or only late, it copies itself, with a pin of its own
 * ([pin_again]) and the number and the expert of the wait that it saw. */
active proctype rescue()
{
	byte n, e;

end:	do
#ifndef NO_RESCUE
	:: atomic { rescues == 0 && waits && flag < number -> n = number; e = wanted; rescues = 1 }
#endif
	:: atomic { rescues == 1 ->
#ifdef RESCUE_UNPINNED
		rescues = 2
#else
		if
		:: held > 0 && slot.tag == e && (slot.state == READY || slot.state == LOADING) && load == n ->
			slot.pins++; held++; rescues = 2
		:: else -> rescues = 0
		fi
#endif
		}
#ifdef RESCUE_EARLY
	:: atomic { rescues == 2 -> flag = n; rescues = 3 }
	:: atomic { rescues == 3 -> content = e; rescues = 4; assert(invariant) }
#else
	:: atomic { rescues == 2 -> content = e; rescues = 3; assert(invariant) }
	:: atomic { rescues == 3 -> flag = n; rescues = 4 }
#endif
	:: atomic { rescues == 4 ->
#ifndef RESCUE_UNPINNED
		slot.pins--; held--;
#endif
		n = 0; e = 0; rescues = 0 }
	od
}

active proctype owner()
{
	byte e;
	byte w_state, w_pins, w_epoch, w_tag;

adopt:	/* [adopt] READY slots are kept; a LOADING one leaves the table. */
	if
	:: atomic { slot.state == READY -> assert(content == slot.tag); table[slot.tag] = 1 }
	:: atomic { slot.state == LOADING -> table[slot.tag] = 0 }
	:: atomic { slot.state == EVICTING -> table[slot.tag] = 0 }; slot.state = EMPTY
	:: slot.state == EMPTY
	fi;
	/* Words that name what is not there. */
	atomic { if :: table[0] != 0 && (slot.state == EMPTY || slot.tag != 0) -> table[0] = 0 :: else fi };
	atomic { if :: table[1] != 0 && (slot.state == EMPTY || slot.tag != 1) -> table[1] = 0 :: else fi };
	dead = 0;
	/* [abandon] once it is not pinned. */
#ifndef ABANDON_NOT
	do
	:: slot.state != LOADING -> break
#ifdef ABANDON_BLIND
	:: atomic { slot.state == LOADING -> slot.state = EMPTY; slot.pins = 0; assert(held == 0) }
#else
	:: atomic { slot.state == LOADING && (slot.pins == 0 || slot.epoch != header_epoch) ->
		slot.state = EMPTY; slot.pins = 0; assert(held == 0) }
#endif
	:: atomic { deaths > 0 -> goto die }
	od;
#endif
end:	do
	:: atomic { slot.state == EMPTY && load < LOADS -> e = 0; goto load_it }
	:: atomic { slot.state == EMPTY && load < LOADS -> e = 1; goto load_it }
	:: atomic { evictable -> goto evict }
	:: atomic { deaths > 0 -> goto die }
	/* Whatever it is doing, it ends here with nothing half done. */
	:: atomic { slot.state == READY || load == LOADS ->
		assert(slot.state == EMPTY || slot.state == READY); assert(!waits || flag >= load) } -> goto end
	od;
load_it: /* [load_begin] the number, the state, the table word; then the copy. */
#ifdef NUMBER_LATE
	atomic { content = NONE; slot.state = LOADING; slot.tag = e; slot.pins = 0; slot.epoch = 0 };
	table[e] = 1;
	load++;
#else
	load++;
	atomic { content = NONE; slot.state = LOADING; slot.tag = e; slot.pins = 0; slot.epoch = 0 };
	do
	:: table[e] = 1; break
	:: atomic { deaths > 0 -> goto die }
	od;
#endif
	atomic { copies = e + 1; copied = 0 };
	do
#ifdef READY_EARLY
	:: break
#else
	:: copied == 2 -> break
#endif
	:: atomic { deaths > 0 -> goto die }
	od;
	/* [load_end] keeps the pins. */
	atomic {
		slot.state = READY;
#ifdef END_BLIND
		slot.pins = 0;
#endif
		assert(invariant)
	};
	atomic { (copied == 2) -> copies = 0; copied = 0; forget() };
	goto end;
evict:	/* [evict] the word, then the header's epoch, then the compare-and-swap. */
#ifdef EPOCH_FIRST
	e = header_epoch;
#endif
	atomic { load_word() };
#ifndef EPOCH_FIRST
	e = header_epoch;
#endif
	atomic {
		if
		:: w_pins > 0 && w_epoch == e -> forget(); goto end
		:: else
		fi
	};
	atomic {
		if
#ifdef EVICT_BLIND
		:: slot.state == READY ->
#else
		:: same_word ->
#endif
			assert(held == 0);
			slot.state = EVICTING; slot.pins = 0; slot.epoch = 0
		:: else -> forget(); goto end
		fi
	};
	do
	:: table[w_tag] = 0; break
	:: atomic { deaths > 0 -> goto die }
	od;
	do
	:: atomic { slot.state = EMPTY; forget() }; goto end
	:: atomic { deaths > 0 -> goto die }
	od;
die:	/* Its queue ends with it, and its successor starts after that. */
	atomic { deaths--; dead = 1; copies = 0; copied = 0; forget(); goto adopt }
}
