/*
 * The slot protocol of shared/spec/slots.h: two slots, two experts, a verifier that pins, reads and demands, a cache that
 * loads, evicts, and whose budget falls and rises, and both killed between any two steps, with a successor. What becomes of
 * demands that find every slot pinned is starved.pml's. Names in brackets are the C code's.
 *
 * names in: shared/spec/slots.c services/expert-cache/store/store.c services/expert-cache/reader/loads.c
 *
 * Checked by assertions, and by the absence of invalid end states:
 *  - while a verifier that lives holds a pin, the slot is READY with its expert and the bytes are that expert's: they do
 *    not change, and nobody evicts;
 *  - a READY slot holds its tag's bytes, in memory of its own, in the layout that its word says;
 *  - an expert is never READY in two slots;
 *  - adoption never finds what slots_adopt refuses;
 *  - no slot is lost: a cache that finds nothing to do but wait has every slot EMPTY or READY, no memory in EMPTY ones,
 *    and no more slots in use than the budget but for those that are pinned or demanded;
 *  - no demand is lost: while the cache waits, what a verifier waits for is there or refused.
 *
 * A read the device has not finished outlives the process that submitted it (`landing`), and writes the bytes of the
 * expert it was for. The successor frees a LOADING slot with new pages, so that the read ends in the old ones, or when
 * none can land in it any more: renew_pages, or HELD_NS, in services/expert-cache/store/store_open.c.
 *
 * breaks: -DNO_QUARANTINE  a successor frees a LOADING slot while a read of the dead may still land in it
 * breaks: -DEVICT_BLIND  the eviction stores EVICTING without comparing: a pin in between is lost
 * breaks: -DEPOCH_FIRST  the owner reads the header's epoch before the state word
 * breaks: -DREADY_EARLY  READY is stored before the bytes are there
 * breaks: -DPIN_BLIND  the pin does not compare the tag: the slot may hold another expert by now
 * breaks: -DREADY_FIRST  READY is stored before the table word: what was used once is demanded as absent, and not protected
 * breaks: -DPUNCH_FIRST  a budget that falls takes the pages before the eviction has won
 * breaks: -DNO_GIVE_BACK  a successor leaves the pages of slots that the dead had evicted but not given back
 * breaks: -DNO_PROMOTE  a prefetch that a demand waits for fails as a prefetch: nobody is told
 * breaks: -DUNPROTECTED  what was demanded is evicted again before the verifier has pinned it
 * breaks: -DPACK_BLIND  packing stores LOADING without comparing: a pin in between is lost
 * breaks: -DPACK_UNSAID  what was packed is READY in the layout it had
 * breaks: -DPACK_KEPT  a successor takes an expert that the dead was packing for a whole one
 */
#define SLOTS 2
#define EXPERTS 2
#define NONE 9 /* no expert's bytes: half written, or a new page */
#define REFUSED 9 /* a table word */

#define EMPTY 0
#define LOADING 1
#define READY 2
#define EVICTING 3

/* The state words: each is read and written in one step. */
typedef word {
	byte state, pins, epoch, tag;
	bit tiles
};
word slot[SLOTS];
byte table[EXPERTS]; /* slot + 1, 0 absent, REFUSED */
byte content[SLOTS]; /* the bytes */
bit packed[SLOTS]; /* their layout */
byte packs = 1; /* that may still come */
bool pages[SLOTS]; /* there is memory */
byte landing[SLOTS]; /* reads under way, a bit per expert */
byte header_epoch;
byte budget = SLOTS;
byte changes = 2; /* of the budget, that may still come */
byte cache_deaths = 2, verifier_deaths = 1; /* that may still come */
byte held[SLOTS]; /* pins of the verifier that lives, for the assertions */
byte waits; /* expert + 1 that the verifier waits for */
byte demand; /* expert + 1 in the ring */
byte taken; /* expert + 1 of the demand the cache has taken last: not evicted until it was pinned */
byte wanted; /* expert + 1 of a demand that has no slot yet */

#define same_word(s) (slot[s].state == w_state && slot[s].pins == w_pins && \
	slot[s].epoch == w_epoch && slot[s].tag == w_tag)
#define invariant \
	((slot[0].state != READY || (content[0] == slot[0].tag && pages[0] && packed[0] == slot[0].tiles)) && \
	(slot[1].state != READY || (content[1] == slot[1].tag && pages[1] && packed[1] == slot[1].tiles)) && \
	!(slot[0].state == READY && slot[1].state == READY && slot[0].tag == slot[1].tag) && \
	(held[0] == 0 || slot[0].state == READY) && (held[1] == 0 || slot[1].state == READY))
#define in_use ((slot[0].state != EMPTY) + (slot[1].state != EMPTY))
#ifdef UNPROTECTED
#define protected(s) false
#else
#define protected(s) (taken == slot[s].tag + 1 && slot[s].epoch == 0)
#endif
#define evictable(s) (slot[s].state == READY && !protected(s) && \
	(slot[s].pins == 0 || slot[s].epoch != header_epoch))
#define absent(e) (table[e] == 0 || table[e] == REFUSED)

inline load_word(s)
{
	w_state = slot[s].state; w_pins = slot[s].pins;
	w_epoch = slot[s].epoch; w_tag = slot[s].tag
}
/* Locals that mean nothing any more, so that equal states are equal. */
inline forget()
{
	s = 0; e = 0; w_state = 0; w_pins = 0; w_epoch = 0; w_tag = 0
}

inline land(s, e)
{
	assert(held[s] == 0);
	content[s] = e; packed[s] = 0; landing[s] = landing[s] - (1 << e);
	assert(invariant)
}
/* The device ends a read: into the slot it was submitted for, whoever has it. */
active proctype device()
{
end:	do
	:: atomic { landing[0] & 1 -> land(0, 0) }
	:: atomic { landing[0] & 2 -> land(0, 1) }
	:: atomic { landing[1] & 1 -> land(1, 0) }
	:: atomic { landing[1] & 2 -> land(1, 1) }
	od
}

active proctype verifier()
{
	byte e, s, epoch;
	byte w_state, w_pins, w_epoch, w_tag; /* the word that was loaded */

enter:	/* [enter] */
	epoch = header_epoch + 1;
	header_epoch = epoch;
end:	do
	:: atomic { waits != 0 && !absent(waits - 1) -> e = waits - 1; s = table[e] - 1 }; break
	:: atomic { waits == 0 && !absent(0) -> e = 0; s = table[0] - 1 }; break
	:: atomic { waits == 0 && !absent(1) -> e = 1; s = table[1] - 1 }; break
	/* A demand clears a refusal of before. */
	:: atomic { waits == 0 && absent(0) && demand == 0 -> table[0] = 0; waits = 1; demand = 1 }
	:: atomic { waits == 0 && absent(1) && demand == 0 -> table[1] = 0; waits = 2; demand = 2 }
	/* Refused: it reads the file itself. */
	:: atomic { waits != 0 && table[waits - 1] == REFUSED -> waits = 0 }
	:: atomic { verifier_deaths > 0 -> goto die }
	od;
	/* [pin] the table word above, then the state word, then the compare-and-swap. */
	atomic {
		load_word(s);
		if
#ifdef PIN_BLIND
		:: w_state != READY -> forget(); goto end
#else
		:: w_state != READY || w_tag != e -> forget(); goto end
#endif
		:: else
		fi
	};
	atomic {
		if
		:: same_word(s) ->
			slot[s].pins = (w_epoch == epoch -> w_pins + 1 : 1);
			slot[s].epoch = epoch;
			held[s]++;
			waits = 0;
			assert(invariant);
			w_state = 0; w_pins = 0; w_epoch = 0; w_tag = 0
		:: else -> forget(); goto end
		fi
	};
	/* The pass computes: every look finds e's bytes. A kill here leaves the pin in the word. */
	do
	:: assert(content[s] == e && slot[s].state == READY && slot[s].tag == e); break
	:: atomic { verifier_deaths > 0 -> goto die }
	od;
	/* [unpin] */
	atomic {
		assert(content[s] == e && slot[s].state == READY && slot[s].tag == e &&
			slot[s].epoch == epoch && slot[s].pins > 0);
		slot[s].pins--; held[s]--; forget();
		goto end
	};
die:	atomic {
		verifier_deaths--;
		held[0] = 0; held[1] = 0; epoch = 0; waits = 0; forget();
		goto enter
	}
}

/* The oldest demand is taken from the ring; e is what is being loaded, EXPERTS when nothing is. */
inline take_demand(e)
{
	taken = demand; demand = 0;
	if
	:: !absent(taken - 1) -> wanted = 0
	/* [promote] */
#ifdef NO_PROMOTE
	:: absent(taken - 1) && taken - 1 == e -> wanted = 0
#else
	:: absent(taken - 1) && taken - 1 == e -> wanted = 0; demanded = 1
#endif
	:: absent(taken - 1) && taken - 1 != e -> wanted = taken
	fi
}

inline give_back(s)
{
	assert(held[s] == 0);
	content[s] = NONE; pages[s] = 0;
	assert(invariant)
}

active proctype cache()
{
	byte s, e;
	bool demanded; /* the load under way is for a demand */
	bool shrinks; /* the eviction under way is for the budget's sake */
	byte w_state, w_pins, w_epoch, w_tag;

	content[0] = NONE; content[1] = NONE;
adopt:	/* [adopt] One word at a time, while the verifier pins. */
	do
	:: s < SLOTS && slot[s].state == READY ->
		atomic {
			e = table[slot[s].tag];
			assert(e == 0 || e == REFUSED || e == s + 1 || slot[e - 1].state != READY ||
				slot[e - 1].tag != slot[s].tag);
			table[slot[s].tag] = s + 1; e = 0; s++
		}
	:: s < SLOTS && slot[s].state == EVICTING ->
		atomic { if :: table[slot[s].tag] == s + 1 -> table[slot[s].tag] = 0 :: else fi };
		slot[s].state = EMPTY;
		s++
	:: s < SLOTS && (slot[s].state == EMPTY || slot[s].state == LOADING) -> s++
	:: s == SLOTS -> s = 0; break
	od;
	/* Words that name what is not there, and refusals. */
	do
	:: atomic { e < EXPERTS && !absent(e) &&
		!(slot[table[e] - 1].state == READY && slot[table[e] - 1].tag == e) ->
		table[e] = 0; e++ }
	:: atomic { e < EXPERTS && table[e] == REFUSED -> table[e] = 0; e++ }
	:: atomic { e < EXPERTS && (table[e] == 0 || (!absent(e) &&
		slot[table[e] - 1].state == READY && slot[table[e] - 1].tag == e)) -> e++ }
	:: e == EXPERTS -> e = 0; break
	od;
	/* LOADING slots of the dead come free with new pages, or when their reads have ended. */
	do
#ifdef PACK_KEPT
	:: atomic { s < SLOTS && slot[s].state == LOADING && landing[s] == 0 -> slot[s].state = READY; assert(invariant); s++ }
#endif
	:: atomic { s < SLOTS && slot[s].state == LOADING ->
		if
#ifdef NO_QUARANTINE
		:: true
#else
		:: landing[s] = 0; give_back(s)
		:: landing[s] == 0
#endif
		fi };
		slot[s].state = EMPTY;
		s++
	:: s < SLOTS && slot[s].state != LOADING -> s++
	:: s == SLOTS -> s = 0; break
	od;
#ifndef NO_GIVE_BACK
	do
	:: atomic { s < SLOTS && slot[s].state == EMPTY ->
#ifndef NO_QUARANTINE
		assert(landing[s] == 0);
#endif
		give_back(s); s++ }
	:: s < SLOTS && slot[s].state != EMPTY -> s++
	:: s == SLOTS -> s = 0; break
	od;
#endif
end:	do
	:: atomic { demand != 0 -> take_demand(EXPERTS) }
	:: atomic { wanted != 0 && !absent(wanted - 1) -> wanted = 0 }
	/* A load takes an EMPTY slot while the budget has room. A demand goes first. */
	:: atomic { in_use < budget && slot[0].state == EMPTY && absent(0) && wanted != 2 -> s = 0; e = 0; goto load }
	:: atomic { in_use < budget && slot[0].state == EMPTY && absent(1) && wanted != 1 -> s = 0; e = 1; goto load }
	:: atomic { in_use < budget && slot[1].state == EMPTY && absent(0) && wanted != 2 -> s = 1; e = 0; goto load }
	:: atomic { in_use < budget && slot[1].state == EMPTY && absent(1) && wanted != 1 -> s = 1; e = 1; goto load }
	/* Else a victim's. */
	:: atomic { in_use >= budget && evictable(0) -> s = 0; shrinks = 0; goto evict }
	:: atomic { in_use >= budget && evictable(1) -> s = 1; shrinks = 0; goto evict }
	/* [shrink] */
	:: atomic { in_use > budget && evictable(0) -> s = 0; shrinks = 1; goto evict }
	:: atomic { in_use > budget && evictable(1) -> s = 1; shrinks = 1; goto evict }
	:: atomic { packs > 0 && evictable(0) && !slot[0].tiles -> s = 0; goto pack }
	:: atomic { packs > 0 && evictable(1) && !slot[1].tiles -> s = 1; goto pack }
	:: atomic { changes > 0 -> budget = SLOTS + 1 - budget; changes-- }
	:: atomic { cache_deaths > 0 -> goto die }
	/* Whatever it is doing, it ends here with nothing half done. */
	:: atomic { demand == 0 && wanted == 0 &&
		(in_use <= budget || !(evictable(0) || evictable(1))) ->
		assert(slot[0].state == EMPTY || slot[0].state == READY);
		assert(slot[1].state == EMPTY || slot[1].state == READY);
		assert(slot[0].state == READY || !pages[0]);
		assert(slot[1].state == READY || !pages[1]);
		assert(waits == 0 || table[waits - 1] != 0) } -> goto end
	od;
load:	/* [load_begin] */
	atomic {
		demanded = (wanted == e + 1);
		if :: demanded -> wanted = 0 :: else fi;
		slot[s].state = LOADING; slot[s].tag = e; slot[s].pins = 0; slot[s].epoch = 0; slot[s].tiles = 0
	};
	atomic { assert(held[s] == 0); content[s] = NONE; pages[s] = 1; landing[s] = landing[s] | (1 << e) };
	do
#ifdef READY_EARLY
	:: break
#else
	:: (landing[s] & (1 << e)) == 0 -> break
#endif
	:: atomic { demand != 0 -> take_demand(e) }
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	if
	:: /* [load_fail] */ slot[s].state = EMPTY;
		atomic { give_back(s);
			/* [refuse] */
			if :: demanded && table[e] == 0 -> table[e] = REFUSED :: else fi;
			demanded = 0; forget(); goto end }
	:: /* [load_end] the table word, then the state: who has pinned it finds it in the table. */
#ifdef READY_FIRST
		atomic { slot[s].state = READY; assert(invariant) }
#else
		table[e] = s + 1
#endif
	fi;
	do
#ifdef READY_FIRST
	:: table[e] = s + 1; break
#else
	:: atomic { slot[s].state = READY; assert(invariant) }; break
#endif
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	atomic { demanded = 0; forget(); goto end };
evict:	/* [evict] the word, then the header's epoch, then the compare-and-swap. */
#ifdef PUNCH_FIRST
	atomic { if :: shrinks -> give_back(s) :: else fi };
#endif
#ifdef EPOCH_FIRST
	e = header_epoch;
#endif
	atomic { load_word(s) };
#ifndef EPOCH_FIRST
	e = header_epoch;
#endif
	atomic {
		if
		:: w_pins > 0 && w_epoch == e -> shrinks = 0; forget(); goto end
		:: else
		fi
	};
	atomic {
		if
#ifdef EVICT_BLIND
		:: slot[s].state == READY ->
#else
		:: same_word(s) ->
#endif
			assert(held[s] == 0);
			slot[s].state = EVICTING; slot[s].pins = 0; slot[s].epoch = 0
		:: else -> shrinks = 0; forget(); goto end
		fi
	};
	do
	:: table[w_tag] = 0; break
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	do
	:: atomic { slot[s].state = EMPTY; w_state = 0; w_pins = 0; w_epoch = 0; w_tag = 0; e = 0 }; break
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	/* The slot is for another expert, or [give_back]. */
	do
	:: atomic { !shrinks && absent(0) && wanted != 2 -> e = 0; goto load }
	:: atomic { !shrinks && absent(1) && wanted != 1 -> e = 1; goto load }
	:: atomic { shrinks -> give_back(s); shrinks = 0; forget(); goto end }
	:: atomic { cache_deaths > 0 -> goto die }
	od;
pack:	/* [pack_begin] as the eviction, but that the slot stays in the table. */
	atomic { packs--; load_word(s); e = w_tag };
	atomic {
		if
		:: w_pins > 0 && w_epoch == header_epoch -> forget(); goto end
		:: else
		fi
	};
	atomic {
		if
#ifdef PACK_BLIND
		:: slot[s].state == READY ->
#else
		:: same_word(s) ->
#endif
			assert(held[s] == 0);
			slot[s].state = LOADING; slot[s].pins = 0; slot[s].epoch = 0;
			content[s] = NONE; w_state = 0; w_pins = 0; w_epoch = 0; w_tag = 0
		:: else -> forget(); goto end
		fi
	};
	/* Another thread packs; demands are taken. */
	do
	:: atomic { content[s] = e; packed[s] = 1 }; break
	:: atomic { demand != 0 -> take_demand(EXPERTS) }
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	/* [load_end] */
	do
	:: table[e] = s + 1; break
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	do
#ifndef PACK_UNSAID
	:: atomic { slot[s].state = READY; slot[s].tiles = 1; assert(invariant) }; break
#else
	:: atomic { slot[s].state = READY; assert(invariant) }; break
#endif
	:: atomic { cache_deaths > 0 -> goto die }
	od;
	atomic { forget(); goto end };
die:	/* The verifier learns of it by the end of the link, or waits no longer than its patience. */
	atomic {
		cache_deaths--; demanded = 0; shrinks = 0; taken = 0; wanted = 0; demand = 0; waits = 0;
		forget(); goto adopt
	}
}
