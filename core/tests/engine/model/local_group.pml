// How the ranks of one machine carry out collectives in control memory, break, and form the group anew: the protocol of
// core/src/engine/local and core/src/shm, for spin (model_test.cpp). docs/collectives.md ("The model") says what it leaves
// out. Names of functions, and of files without a folder, are those of core/src/engine/local.
//
// Each statement is one step, except in `atomic` and `d_step`. A rank may die before each of its steps, and another thread
// of it may abort the group between any two. Memory is sequentially consistent here: docs/atomics.md pairs the stores and
// loads for processors whose order is weaker.
//
// N: ranks, 2 or 3. OPS: collectives of each group. RING: slots (kRing, control.h). DEATHS, ABORTS: whether a rank dies,
// and whether one aborts. ENDS: survivors form no new group. INLINE: no collective has
// tickets. SEED_...: a mistake, which spin must find.
#define CLOSED 8     // of a claim word: kClosed, collective.cpp
#define CALLER 7     // the reason of abort(); all others are 1 + the rank that was lost
#define NOBODY 255

#if N == 3
#define EACH(f) f(0); f(1); f(2)
#define EACH_OR_ALL(f) atomic { EACH(f) }        // with three ranks in one step: fewer states
#define ALL(f) (f(0) && f(1) && f(2))
#define SUM(f) (f(0) + f(1) + f(2))
#else
#define EACH(f) f(0); f(1)
#define EACH_OR_ALL(f) EACH(f)
#define ALL(f) (f(0) && f(1))
#define SUM(f) (f(0) + f(1))
#endif
#define TOKEN (odd * OPS + s)            // what memory holds for collective s of this group; never 0
#define MEMBER(r) ((members >> (r)) & 1)
#define STATE(r) control[r].state[s % RING]
#define KIND(r) control[r].kind[s % RING]
#define PAYLOAD(r) control[r].payload[s % RING]
#define CLAIM(r) control[r].claim[s % RING]
#define DONE(r) control[r].done[s % RING]
#define INSIDE(r) control[r].inside[s % RING]
#define COUNT(word) ((word) / 16 == s) * ((word) % CLOSED)  // count_of(), collective.cpp

// What a rank writes in the control memory of the present group (control.h). A new group has new memory, all zero
// (make_memory_file() in Host::prepare(), shm/hand_over_host.cpp).
typedef Control {
  byte state[RING];    // Post::state: 2 * sequence + 1
  bool kind[RING];     // Post::kind: false is inline, true has tickets
  byte payload[RING];  // GroupMemory::payload()
  byte claim[RING];    // Counter: 16 * sequence + CLOSED + count
  byte done[RING];
  byte inside[RING];   // Counter::inside of `done`: the sequence while the rank may hold tickets
  byte completed;      // RankState::completed
  bool left;           // RankState::left
  byte reason          // AbortReason
}
Control control[N];
byte aborted_by;       // Header::aborted_by
// A rank's arena: the input and the output of its collective, and what the caller has lent them for. There are tickets for
// each owner, one of them.
typedef Arena {
  byte input;
  byte output[N];
  byte lent;           // 0: the caller has its memory back
  bool withdrawn       // SharedArena::withdraw(): what others store does not arrive any more
}
Arena arena[N];
// The store of a rank (store/membership/survivors.cpp), and what passes through the sockets of a hand-over (shm).
typedef Store {
  bool came[N];        // to this rank's store
  bool told[N];        // by this rank, of the new group
  bool introduced;     // this rank, to the host
  byte verdict         // for this rank: 1, the group exists; 2, it does not
}
Store store[N];

byte members;          // of the present group, a bit for each
bool odd;              // the number of the present group, modulo 2
byte groups;           // formed so far
bool dead[N];          // Peer::is_gone(), shm/peer.cpp
bool aborting[N];      // Waiting::abort_mutex_
byte kinds;            // the kind of collective s is bit s
byte other = NOBODY;   // this rank calls another kind as collective 1 of the first group
byte killed = NOBODY;
bool abort_called;
byte outcome[OPS + 1]; // bit 0: some rank has the result of collective s; bit 1: some rank has kMismatch
byte ended;            // ranks that have ended, a bit for each

#define POSTED(r) (STATE(r) / 2 >= s)    // has_posted(), local_failure_watch.cpp
#define OTHER(r) (r != me && MEMBER(r) && !((cleared >> r) & 1))
#ifdef SEED_ORDER                        // looks at the post first
#define SUSPECT(r) (OTHER(r) && !POSTED(r))
#else
#define SUSPECT(r) (OTHER(r) && (dead[r] || control[r].left))
#endif

// Waiting::abort(), waiting.cpp: the reason is there before the word is. The first one stays.
inline abort_group(why) {
  atomic { !aborting[me] -> aborting[me] = true }
  if
  :: aborted_by || mine != odd
  :: else ->
#ifdef SEED_REASON
     d_step { if :: !aborted_by && mine == odd -> aborted_by = 1 + me :: else fi }
     control[me].reason = why
#else
     d_step { if :: mine == odd -> control[me].reason = why :: else fi }
     d_step { if :: !aborted_by && mine == odd -> aborted_by = 1 + me :: else fi }
#endif
  fi;
  aborting[me] = false
}

// LocalFailureWatch::check(), local_failure_watch.cpp. The order matters: what is gone or has left posts no more.
inline look_at(r) {
#ifdef SEED_ORDER
  posted = false;
#else
  posted = POSTED(r);
#endif
  if
  :: posted && control[r].left -> cleared = cleared | (1 << r)  // it has done its part
  :: !control[r].left && !dead[r]                               // with SEED_ORDER alone
  :: else -> abort_group(1 + r); goto failed                    // a rank that has posted, and died: after kDeadTicket
  fi
}

// wait_until(), waiting.h. A sleep ends by itself after kCheckEvery, so who wakes whom is not in this model.
inline wait_until(condition) {
  do
  :: condition -> break
  :: aborted_by -> goto failed
  :: SUSPECT(0) -> look_at(0)
  :: SUSPECT(1) -> look_at(1)
#if N == 3
  :: SUSPECT(2) -> look_at(2)
#endif
  od
}

#ifdef SEED_CLAIMS  // neither is the abort looked at again, nor are the claims closed
#define LATE false
#define CLOSE(r) claimed = claimed + MEMBER(r) * COUNT(CLAIM(r))
#else
#define LATE aborted_by
#define CLOSE(r)                                            \
  d_step {                                                  \
    if                                                      \
    :: MEMBER(r) ->                                         \
       claimed = claimed + COUNT(CLAIM(r));                 \
       CLAIM(r) = 16 * s + CLOSED + COUNT(CLAIM(r))         \
    :: else                                                 \
    fi                                                      \
  }
#endif
#define READ(r) right = right && (!MEMBER(r) || arena[r].input == TOKEN)
#define STORE(r)                                                                              \
  atomic {                                                                                    \
    if                                                                                        \
    :: !MEMBER(r) || arena[r].withdrawn                                                       \
    :: else -> assert(arena[r].lent == TOKEN); arena[r].output[owner] = (right -> TOKEN : 0)  \
    fi                                                                                        \
  }
// run() in Collective::work(), collective.cpp: claims the ticket of `o`, and does it (Plan::execute(), plan.cpp).
inline run_ticket(o) {
  if
  :: aborted_by || !MEMBER(o)
  :: else ->
#ifndef SEED_INSIDE
     INSIDE(me) = s;
#endif
     if                                          // claim()
     :: atomic { COUNT(CLAIM(o)) == 0 && CLAIM(o) != 16 * s + CLOSED -> CLAIM(o) = 16 * s + 1; my_done++ }
        if :: LATE :: else -> atomic { owner = o; right = true }; EACH_OR_ALL(READ); EACH_OR_ALL(STORE) fi
     :: else
     fi
  fi
}

#define TICKETS_DONE(r) COUNT(DONE(r))
#define WORKS(r) (!dead[r] && INSIDE(r) == s)    // Collective::somebody_works()
// LocalGroup::forget(): Collective::quiesce(), whose deadline may pass at any time; then Collective::abandon().
inline forget() {
  EACH_OR_ALL(CLOSE);
  if
  :: SUM(TICKETS_DONE) >= claimed
  :: !SUM(WORKS)                                 // whoever has claimed the others has died
  :: arena[me].withdrawn = true
  fi
}

#define CLEAR_OUTPUT(r) arena[me].output[r] = 0
// The caller may use its memory for anything. Locals that are not needed any more are cleared, so that states are equal.
inline give_back() {
  d_step {
    arena[me].lent = 0; arena[me].input = 0; EACH(CLEAR_OUTPUT);
    lends = false; my_done = 0; claimed = 0; owner = 0; right = false; posted = false
  }
}

#define IS_FREE(r) (!MEMBER(r) || control[r].completed + RING >= s)
#define HAS_POSTED(r) (!MEMBER(r) || STATE(r) / 2 == s)
#define SAME(r) (!MEMBER(r) || KIND(r) == kind)
#define FETCH(r) assert(!MEMBER(r) || PAYLOAD(r) == TOKEN)
#define RESULT(r) (!MEMBER(r) || arena[me].output[r] == TOKEN)
#ifdef SEED_COMPLETED
#define ADMIT(r) skip
#else
#define ADMIT(r) wait_until(IS_FREE(r))          // CollectiveQueue::slot_is_free()
#endif
#define EXPECT(r) wait_until(HAS_POSTED(r))      // Collective::everyone_posted()

// The leader waits until each rank has come, or is gone. One value in its store tells those who have come, who they are.
// No rank is in an earlier group any more.
#define LOOK_OUT(r) if :: store[me].came[r] :: dead[r] fi
#define COUNT_IN(r) members = members | (store[me].came[r] << r); store[me].told[r] = store[me].came[r]
#define FORGET(r)                                                                                              \
  for (slot : 0 .. N - 1) { store[r].came[slot] = false }                                                      \
  store[r].introduced = false; store[r].verdict = 0; arena[r].withdrawn = false; FRESH(r)
#ifdef SEED_GENERATION                           // the new group has the memory of the earlier one, as it was
#define FRESH(r) control[r].left = false
#else
#define FRESH(r)                                                                                               \
  for (slot : 0 .. RING - 1) {                                                                                 \
    control[r].state[slot] = 0; control[r].kind[slot] = 0; control[r].payload[slot] = 0;                       \
    control[r].claim[slot] = 0; control[r].done[slot] = 0; control[r].inside[slot] = 0                         \
  }                                                                                                            \
  control[r].completed = 0; control[r].left = false; control[r].reason = 0
#endif
inline publish() {
  d_step {
    groups++;
    assert(groups < MOST_GROUPS);                // they do not meet again and again
    odd = !odd;
    members = 0;
    aborted_by = 0;
    EACH(COUNT_IN);
    EACH(FORGET);
    for (slot : 1 .. OPS) { outcome[slot] = 0 }
    slot = 0
  }
}
#define RECEIVE(r) if :: r == me || !MEMBER(r) || store[r].introduced :: r != me && MEMBER(r) && dead[r] -> verdict = 2 fi
#define TELL(r) if :: r != me && MEMBER(r) -> store[r].verdict = verdict :: else fi   // Host::tell_verdict()

proctype Rank(byte me) provided (!dead[me]) {
  byte s, slot, i, owner, my_done, claimed, cleared, verdict;
  bool mine, kind, lends, right, posted;
work:
  s = 1;
  do
  :: s > OPS -> break
  :: else ->
     EACH(ADMIT);
     atomic {
       kind = ((kinds >> s) & 1) ^ (me == other && s == 1 && groups == 0);
       lends = kind;
       if :: kind -> arena[me].lent = TOKEN; arena[me].input = TOKEN :: else fi
     }
     KIND(me) = kind;
     if :: kind :: else -> PAYLOAD(me) = TOKEN fi;
     STATE(me) = 2 * s + 1;                      // Collective::post(), SmallCall::post()
     EACH(EXPECT);
     if
     :: !ALL(SAME) ->                            // Plan::agreement()
        outcome[s] = outcome[s] | 2
     :: ALL(SAME) && !kind ->                    // SmallCall::fetch()
        EACH_OR_ALL(FETCH);
        outcome[s] = outcome[s] | 1
     :: ALL(SAME) && kind ->                     // Collective::work()
        run_ticket(me);
        DONE(me) = 16 * s + my_done;             // publish_done()
        run_ticket((me + 1) % N);
#if N == 3
        run_ticket((me + 2) % N);
#endif
        DONE(me) = 16 * s + my_done;
        INSIDE(me) = 0;
#ifndef SEED_NEEDS_ALL
        wait_until(SUM(TICKETS_DONE) == SUM(MEMBER));
#endif
#ifndef SEED_BROKEN
        if :: aborted_by -> lends = false; goto failed :: else fi;  // Waiting::broken_by_now()
#endif
        atomic { assert(ALL(RESULT)); outcome[s] = outcome[s] | 1; give_back() }
     fi;
     atomic {
       assert(outcome[s] != 3);                  // all agree whether all have asked for the same
       give_back();
       cleared = 0;
       control[me].completed = s;                // CollectiveQueue::publish_completed()
       s++
     }
  od;
  control[me].left = true;                       // LocalGroup::close()
  goto over;

failed:                                          // with Waiting::abort_status()
  atomic {
    assert(control[aborted_by - 1].reason == (abort_called -> CALLER : 1 + killed) ||
           control[aborted_by - 1].reason == 1 + killed);
    cleared = 0
  }
  if :: lends -> forget() :: else fi;
  atomic { give_back(); control[me].left = true }

#ifdef ENDS
  goto over;
#endif
meet:                                            // MeetingPlace::find_survivors(): the first that lives leads
  do
  :: atomic { i == me -> store[me].came[me] = true }
     EACH(LOOK_OUT);
     publish();
     break
  :: i != me && !dead[i] && !store[i].came[me] && !store[i].told[me] -> store[i].came[me] = true
  :: i != me && !dead[i] && store[i].told[me] -> break
  :: i != me && dead[i] -> i++
  od;
  // The hand-over: the member with the lowest number is the host (hand_over_host.cpp), the others are guests.
  atomic {
    mine = odd;
    store[i].told[me] = false;
    verdict = 1;
    i = 0;
    do :: MEMBER(i) -> break :: else -> i++ od
  }
  if
  :: i == me ->
     EACH(RECEIVE);
     EACH(TELL)
  :: else ->
     store[me].introduced = true;
     if
     :: store[me].verdict == 1
     :: store[me].verdict == 2 || dead[i] && !store[me].verdict -> verdict = 2
     fi
  fi;
  atomic {                                       // Reconfiguration::run(), c10d/world/reconfigure.cpp
    i = 0;
    if :: verdict == 1 -> verdict = 0; goto work :: else -> verdict = 0; goto meet fi
  }

over:
  atomic { ended = ended | (1 << me); dead[me] = true }         // its process ends
}

// LocalGroup::abort(), by another thread of rank `me`.
proctype Abort(byte me) provided (!dead[me]) {
  bool mine;
  atomic { mine = odd; abort_called = true }
  abort_group(CALLER)
}

proctype Kill(byte who) {
  atomic { !dead[who] -> killed = who; dead[who] = true }
}

init {
  byte r;
  atomic {
    members = (1 << N) - 1;
#ifdef INLINE
    kinds = 0;
#else
    select (kinds : 0 .. (1 << OPS) - 1);
    kinds = kinds << 1;
#endif
#ifdef DIFFERS
    other = 0;
#endif
    for (r : 0 .. N - 1) { run Rank(r) }
#if DEATHS
    select (r : 0 .. N - 1);
    run Kill(r);
#endif
#if ABORTS
    select (r : 0 .. N - 1);
    run Abort(r);
#endif
  }
  timeout;                                       // nothing moves any more
  for (r : 0 .. N - 1) { assert(killed == r || ((ended >> r) & 1)) }
}
