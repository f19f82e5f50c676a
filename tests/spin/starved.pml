/*
 * How an owner without a slot and a verifier that holds all of them come together, without a clock. A word is one step here:
 * what pins and evictions are made of is slots.pml's, and the bells are doorbell.pml's. Names in brackets are the C code's.
 *
 * names in: shared/spec/slots.c shared/spec/slots_source.c services/expert-cache/transfer.c
 *
 * A layer needs more experts than there are slots: the verifier pins what is there, demands the rest, and unpins when it is
 * done with what it had. The owner that finds no slot for a demand says that it starves and looks once more; who unpins
 * looks whether it does, and rings. Slots in which a dead predecessor's reads may still land are nobody's: where there are
 * no others, demands are refused. Both may be killed between any two steps, and have successors. The experts of a layer are
 * not those of the one before; of a verifier that begins again with the very layer that its predecessor died in, and finds
 * there what that one had demanded, only its patience makes sure that it goes on.
 *
 * Checked: nobody sleeps for ever (an invalid end state): a verifier that waits gets its expert, a refusal, or the news that
 * its cache is dead. In C a sleep of STARVED_NS, and the verifier's patience, would cover what is wrong here.
 *
 * breaks: -DLOOK_BEFORE_STARVED  the owner's look at the pins passes its store of starved (no seq_cst)
 * breaks: -DUNPIN_LATE  the verifier's look at starved passes its unpin (no seq_cst)
 * breaks: -DONE_LOOK  the owner does not look again after it has said that it starves
 * breaks: -DSEEN_LATE  the owner reads the bell after its look at the pins
 * breaks: -DFED_EARLY  the owner stops saying that it starves while it still does
 * breaks: -DNO_REFUSE  demands wait for slots that only time sets free
 * breaks: -DRING_FIRST  arrivals is rung before the table says that a demand is refused
 * breaks: -DSTALE_PINS  what a dead verifier had pinned binds its successor's demands
 */
#define SLOTS 2
#define EXPERTS 3
#define LAYERS 2

byte holds[SLOTS]; /* the tag of a READY slot, 0 of an EMPTY one */
bool landing[SLOTS]; /* a dead owner's reads may still land there */
bool pinned[SLOTS], used[SLOTS]; /* used: pinned since it was loaded */
byte epoch_of[SLOTS];
byte refused; /* table words of the layer under way, a bit per expert */
byte header_epoch;
bool starved, ready;
bool work, arrivals; /* rung since the only one who waits there has read the bell */
byte demand, demand_layer, layer; /* the ring: a bit per expert, and which layer's they are */
bool dead; /* the cache died while the verifier was in this layer */
byte verifier_deaths = 1, cache_deaths = 1; /* that may still come */

#define has(set, i) ((set >> (i)) & 1)
#define tag(l, e) (1 + (e) + EXPERTS * (l))
#define expert_of(t) (((t) - 1) % EXPERTS)
#define is_of(t, l) ((t) != 0 && ((t) - 1) / EXPERTS == (l))
#ifdef STALE_PINS
#define bound(s) (pinned[s])
#else
#define bound(s) (pinned[s] && epoch_of[s] == header_epoch)
#endif

/* [pin] What there is of `missing`; what is refused it reads from the file itself. */
inline pin_all()
{
	s = 0;
	do
	:: s < SLOTS && is_of(holds[s], layer) && has(missing, expert_of(holds[s])) ->
		pinned[s] = true; epoch_of[s] = header_epoch; used[s] = true;
		held = held | (1 << s); missing = missing & ~(1 << expert_of(holds[s])); s++
	:: s < SLOTS && !(is_of(holds[s], layer) && has(missing, expert_of(holds[s]))) -> s++
	:: s == SLOTS -> break
	od;
	missing = missing & ~refused; s = 0
}

active proctype verifier()
{
	byte s, layers, held, missing, before; /* bits */
	bool rings;

	ready;
enter:	/* [enter] */
	header_epoch++;
begin:	if
	:: layers == LAYERS -> goto done
	:: layers < LAYERS -> layers++
	fi;
	atomic {
		layer = (layer + 1) % 4; dead = false; refused = 0; missing = (1 << EXPERTS) - 1;
		pin_all()
	};
	atomic { demand = missing; demand_layer = layer };
	work = true;
compute: /* with what it holds */
	if
	:: true
	:: atomic { verifier_deaths > 0 -> goto die }
	fi;
	/* [release] */
#ifdef UNPIN_LATE
	rings = starved && held != 0;
#else
	rings = held != 0;
#endif
	do
	:: atomic { s < SLOTS && has(held, s) -> pinned[s] = false; s++ }
	:: atomic { s < SLOTS && !has(held, s) -> s++ }
	:: atomic { s == SLOTS -> s = 0; held = 0; break }
	od;
#ifndef UNPIN_LATE
	rings = rings && starved;
#endif
	if
	:: atomic { rings -> work = true; rings = false }
	:: !rings
	fi;
wait:	if
	:: missing == 0 -> goto begin
	:: missing != 0
	fi;
	arrivals = false;
	atomic {
		before = missing;
		pin_all();
		if
		:: missing != before -> before = 0; goto compute
		:: missing == before -> before = 0
		fi
	};
	if
	:: arrivals -> goto wait
	:: atomic { dead -> missing = 0; dead = false; goto wait }
	:: atomic { verifier_deaths > 0 -> goto die }
	fi;
die:	atomic {
		verifier_deaths--; s = 0; held = 0; missing = 0; layers = 0; rings = false;
		goto enter
	};
done:	skip
}

/* Where a demand can go: an EMPTY slot, or a victim's. What was demanded stays until it was pinned. */
#define free_for_demand(s) (!landing[s] && (holds[s] == 0 || (!bound(s) && !(has(protects, s) && !used[s]))))

/* The oldest demand first; a step for each slot that is looked at. */
inline look()
{
	do
	:: atomic { wanted != 0 && s < SLOTS && free_for_demand(s) ->
		do
		:: has(wanted, e) -> break
		:: !has(wanted, e) -> e++
		od;
		/* [evict], [load_begin], [load_end]: the bell after the word. */
		holds[s] = tag(taken_layer, e); pinned[s] = false; epoch_of[s] = 0; used[s] = false;
		protects = protects | (1 << s); wanted = wanted & ~(1 << e);
		arrivals = true; s = 0; e = 0 }
	:: atomic { wanted != 0 && s < SLOTS && !free_for_demand(s) -> s++ }
	:: atomic { wanted == 0 || s == SLOTS -> s = 0; break }
	od
}

active proctype cache()
{
	byte e, s, wanted, protects, taken_layer; /* bits */

	/* What a predecessor of the first one left. */
	if
	:: skip
	:: holds[1] = tag(1, 1)
	:: atomic { holds[0] = tag(1, 2); holds[1] = tag(1, 0) }
	:: landing[0] = true
	:: atomic { landing[0] = true; holds[1] = tag(1, 2) }
	:: atomic { landing[0] = true; landing[1] = true }
	fi;
	ready = true;
open:	starved = false;
again:
#ifndef SEEN_LATE
	work = false;
#endif
	atomic {
		if
		:: demand != 0 && demand_layer != taken_layer -> taken_layer = demand_layer; wanted = 0; protects = 0
		:: else
		fi;
		wanted = wanted | demand; demand = 0
	};
	look();
	/* [starve] */
	if
	:: wanted != 0 && !starved ->
#ifdef LOOK_BEFORE_STARVED
		look();
#endif
		starved = true;
#if !defined(ONE_LOOK) && !defined(LOOK_BEFORE_STARVED)
		look()
#endif
	:: else
	fi;
#ifndef NO_REFUSE
	/* [refuse_wanted], and each [refuse]. */
	do
	:: wanted != 0 && landing[0] && landing[1] ->
		do
		:: has(wanted, e) -> break
		:: !has(wanted, e) -> e++
		od;
#ifdef RING_FIRST
		arrivals = true;
#endif
		/* A later layer's words are others. */
		atomic { if :: taken_layer == layer -> refused = refused | (1 << e) :: else fi };
#ifndef RING_FIRST
		arrivals = true;
#endif
		atomic { wanted = wanted & ~(1 << e); e = 0 }
	:: else -> break
	od;
#endif
	if
#ifdef FED_EARLY
	:: starved -> starved = false
	:: !starved
#else
	:: wanted == 0 && starved -> starved = false
	:: !(wanted == 0 && starved)
#endif
	fi;
#ifdef SEEN_LATE
	work = false;
#endif
end:	if
	:: work -> goto again
	:: atomic { cache_deaths > 0 ->
		cache_deaths--; dead = true; wanted = 0; protects = 0; taken_layer = 0; goto open }
	fi
}
