/*
 * shared/spec/hidden.c: a log of rows that wraps. A pass of one or two rows raises `begin` above what it overwrites, writes the
 * rows, tags them when their drafts are accepted, and then moves `end`. The writer may die anywhere in a pass; its successor goes
 * on at `end`. A reader copies a row below `end` and looks at `begin` again.
 *
 * Checked: what a reader takes for row n is row n, with its tag: both words and the tag are those of one write.
 *
 * breaks: -DNO_SECOND_LOOK   the reader does not look at `begin` after copying
 * breaks: -DBEGIN_LATE       `begin` is raised after a row was overwritten (hidden_reserve without its fence)
 * breaks: -DEND_EARLY        `end` moves before the tags are there (hidden_publish without release)
 * breaks: -DNOT_ALL          `begin` is raised for one row, where the pass overwrites two
 */
#define ROWS 3
#define LAST 6 /* rows that are published in all, at least */
#define TRIES 3

byte begin, end;
byte first[ROWS], second[ROWS], tag[ROWS]; /* 1 + the number of the row; a tag may be empty, too: 0 */
byte deaths;

inline raise()
{
#ifdef NOT_ALL
	if
	:: end + 1 > ROWS && end + 1 - ROWS > begin -> begin = end + 1 - ROWS
	:: else -> skip
	fi
#else
	if
	:: end + n > ROWS && end + n - ROWS > begin -> begin = end + n - ROWS
	:: else -> skip
	fi
#endif
}

proctype writer()
{
	byte n, i;

	do
	:: end >= LAST -> break
	:: end < LAST ->
		if
		:: n = 1
		:: n = 2
		fi;
#ifndef BEGIN_LATE
		raise();
#endif
		i = 0;
		do
		:: i == n -> break
		:: i < n ->
			tag[(end + i) % ROWS] = 0; /* what is there is nobody's, until it is tagged */
			first[(end + i) % ROWS] = end + i + 1;
			second[(end + i) % ROWS] = end + i + 1;
			i++
		od;
#ifdef BEGIN_LATE
		raise();
#endif
		if
		:: deaths < 1 -> deaths++; goto next
		:: skip
		fi;
#ifdef END_EARLY
		end = end + n;
		i = 0;
		do
		:: i == n -> break
		:: i < n -> tag[(end - n + i) % ROWS] = end - n + i + 1; i++
		od;
#else
		i = 0;
		do
		:: i == n -> break
		:: i < n -> tag[(end + i) % ROWS] = end + i + 1; i++
		od;
		end = end + n;
#endif
next:		skip
	od
}

proctype reader()
{
	byte from, to, row, a, b, t, tries;

	do
	:: tries == TRIES -> break
	:: tries < TRIES ->
		tries++;
		from = begin;
		to = end;
		if
		:: to - from > ROWS -> from = to - ROWS
		:: else -> skip
		fi;
		if
		:: to == from -> goto again
		:: else -> row = from
		fi;
		do
		:: row + 1 < to -> row++
		:: break
		od;
		t = tag[row % ROWS];
		a = first[row % ROWS];
		b = second[row % ROWS];
		if
#ifdef NO_SECOND_LOOK
		:: true ->
#else
		:: begin <= row ->
#endif
			assert(t == row + 1);
			assert(a == row + 1);
			assert(b == row + 1)
#ifndef NO_SECOND_LOOK
		:: begin > row -> skip
#endif
		fi;
again:		skip
	od
}

init
{
	atomic {
		run writer();
		run reader()
	}
}
