------------------------------- MODULE Slots -------------------------------
\* The slots of one group with a limit (ddl/slots.sql): acks that fill the slot they free
\* (pgqueue_slots_freed), readers that start heads (pgqueue_may_start), settle rechecks
\* (engine/groups/promote.sql) and set back (engine/groups/set_back.sql), retries that give up a slot,
\* leases that expire, and an operator who lowers and raises the limit (pgqueue_apply_limits).
\*
\* READ COMMITTED in small, as in Groups.tla: each step of pgqueue_fill_slots has a snapshot of
\* its own, the locks of rows are only tried (SKIP LOCKED) except by an UPDATE, and writes are seen by
\* others when the transaction commits; by their own transaction at once.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Messages,   \* 1..n, in the order of their ids
    Late,       \* those that are sent later
    Readers,
    Limits,     \* to which an operator changes the limit, at first 2
    Changes, Retries, Expiries, Rollbacks, \* the most of each in a behaviour
    AtOnce,     \* whether a lowered limit should be in force before its recheck is settled
    Bug         \* "none" is ours; the others are planted bugs

FirstLimit == 2
Numbers == 0..1    \* of slots
NoRow == 0         \* there is no such slot
None == 0          \* no message
Unlocked == "unlocked"
Operator == "operator"
Acker == "acker"
Fillers == Readers \cup {Acker, Operator}

VARIABLES
    \* What is committed
    place,      \* of each message
    delivered,  \* the messages that were
    slot,       \* of each number: its head, or NoRow
    surplus,    \* the slots whose free_at is infinity: their heads do not start again
    rechecks,   \* pgqueue_recheck: numbers
    limit,
    \* Locks
    slotLock, rowLock, markLock,
    alone,      \* who holds the advisory lock of the group
    \* Of each process
    at,         \* the step before which it is
    known,      \* the limit that it has read
    held,       \* the slots that it has locked since their heads may give them up
    tried,      \* whether it has tried to
    free,       \* the slots that it found free
    taken,      \* how many it found not free
    undone,     \* whether it found something that it has to do again
    back,       \* heads that it puts back in waiting
    given,      \* of each slot: the message that it makes the head, or None
    marks,      \* the rechecks that it holds
    settled,    \* whether they go, and whether no recheck is left
    subject,    \* the message that it acks, or the limit that it sets
    \* Of each reader
    ready, due, \* the heads that its snapshot shows
    noted,      \* whether it shows a recheck that it heeds
    started,    \* the messages that it leases
    news,       \* for the property: the recheck of the last change, while it is there
    permitted,  \* for the property: the highest limit that may be in force
    allowed,    \* for the property: the highest of those since the read began
    spent       \* of each budget

committed == <<place, delivered, slot, surplus, rechecks, limit>>
locks == <<slotLock, rowLock, markLock, alone>>
filling == <<known, held, tried, free, taken, undone, back, given, marks, settled, subject>>
reading == <<ready, due, noted, started>>
ghosts == <<news, permitted, allowed>>
vars == <<committed, locks, at, filling, reading, ghosts, spent>>

Budgets == [change |-> Changes, retry |-> Retries, expire |-> Expiries, rollback |-> Rollbacks]
Marks == 1..(Cardinality(Readers) + 1)
Leased == {"leased", "expired"}  \* state PROCESSING
Put == {"off", "due"}            \* RETRYABLE, before its time and after
In(places) == {m \in Messages : place[m] \in places}
Rows == {n \in Numbers : slot[n] # NoRow}
Heads == {slot[n] : n \in Rows}
First(n, set) == {m \in set : Cardinality({o \in set : o < m}) < n}

Init ==
    /\ place = [m \in Messages |-> IF m \in Late THEN "unsent" ELSE "waiting"]
    /\ delivered = {}
    /\ slot = [n \in Numbers |-> NoRow]
    /\ surplus = {}
    /\ rechecks = {1}
    /\ limit = FirstLimit
    /\ slotLock = [n \in Numbers |-> Unlocked]
    /\ rowLock = [m \in Messages |-> Unlocked]
    /\ markLock = [k \in Marks |-> Unlocked]
    /\ alone = Unlocked
    /\ at = [p \in Fillers |-> "idle"]
    /\ known = [p \in Fillers |-> 0]
    /\ held = [p \in Fillers |-> {}]
    /\ tried = [p \in Fillers |-> FALSE]
    /\ free = [p \in Fillers |-> {}]
    /\ taken = [p \in Fillers |-> 0]
    /\ undone = [p \in Fillers |-> FALSE]
    /\ back = [p \in Fillers |-> {}]
    /\ given = [p \in Fillers |-> [n \in Numbers |-> None]]
    /\ marks = [p \in Fillers |-> {}]
    /\ settled = [p \in Fillers |-> FALSE]
    /\ subject = [p \in Fillers |-> None]
    /\ ready = [r \in Readers |-> {}]
    /\ due = [r \in Readers |-> {}]
    /\ noted = [r \in Readers |-> "none"]
    /\ started = [r \in Readers |-> {}]
    /\ news = None
    /\ permitted = FirstLimit
    /\ allowed = [r \in Readers |-> 0]
    /\ spent = [b \in DOMAIN Budgets |-> 0]

Spend(budget) ==
    /\ spent[budget] < Budgets[budget]
    /\ spent' = [spent EXCEPT ![budget] = @ + 1]

Go(p, step) == at' = [at EXCEPT ![p] = step]
CanLockSlot(p, n) == slotLock[n] \in {Unlocked, p}
CanLockRow(p, m) == rowLock[m] \in {Unlocked, p}
LockSlots(p, set) == slotLock' = [n \in Numbers |-> IF n \in set THEN p ELSE slotLock[n]]
LockRows(p, set) == rowLock' = [m \in Messages |-> IF m \in set THEN p ELSE rowLock[m]]
\* One more row. Those that no reader has locked are as one.
Fresh == CHOOSE k \in Marks : IF \E o \in rechecks : markLock[o] = Unlocked
                              THEN k \in rechecks /\ markLock[k] = Unlocked ELSE k \notin rechecks

-----------------------------------------------------------------------------
\* pgqueue_fill_slots(opening), by a reader, an ack or a change of the limit

\* What the process sees of its own transaction
Seen(p, m) == CASE p = Acker /\ subject[p] = m -> "done"
                [] m \in back[p] -> "waiting"
                [] OTHER -> place[m]
Line(p) == {m \in Messages : Seen(p, m) = "waiting"}

\* pgqueue_lock_slots: the row with the lowest slot is the group's lock.
LockGroup(p) ==
    /\ at[p] = "lock"
    /\ LET lowest == CHOOSE n \in Rows : \A o \in Rows : n <= o
           got == IF Rows = {} THEN p \in Readers ELSE CanLockSlot(p, lowest)
       IN IF Bug = "the group is not locked"
          THEN Go(p, IF Rows = {} /\ p \notin Readers THEN "commit" ELSE "look") /\ UNCHANGED slotLock
          ELSE /\ Go(p, IF got THEN "look" ELSE "commit")
               /\ LockSlots(p, IF got /\ Rows # {} THEN {lowest} ELSE {})
    /\ UNCHANGED <<committed, rowLock, markLock, alone, filling, reading, ghosts, spent>>

\* pgqueue_look_at_slots: the rule, and a look at the heads. A slot whose head is put off has to be locked first, since a
\* read may start the head.
Look(p) ==
    /\ at[p] = "look"
    /\ LET most == IF p = Operator THEN subject[p] ELSE limit
           isFifo == most = 1
           maybe == {n \in Rows : \/ Seen(p, slot[n]) \in {"waiting", "done"}
                                  \/ Seen(p, slot[n]) = "off" /\ ~isFifo}
           unsure == {n \in maybe : Seen(p, slot[n]) = "off" /\ n \notin held[p]
                                    /\ Bug # "a slot is given away unlocked"}
           kept == Rows \ (maybe \ unsure)
           isLate == /\ Cardinality(kept) > most
                     /\ \E n \in kept : Seen(p, slot[n]) \in {"ready"} \cup Put
                     /\ Bug # "a lowered limit is ignored"
       IN IF unsure # {} /\ ~tried[p]
          THEN LET got == {n \in unsure : CanLockSlot(p, n)} IN
               /\ held' = [held EXCEPT ![p] = got]
               /\ tried' = [tried EXCEPT ![p] = TRUE]
               /\ LockSlots(p, got)
               /\ UNCHANGED <<at, known, free, taken, undone>>
          ELSE /\ known' = [known EXCEPT ![p] = most]
               /\ free' = [free EXCEPT ![p] = maybe \ unsure]
               /\ taken' = [taken EXCEPT ![p] = Cardinality(kept)]
               /\ undone' = [undone EXCEPT ![p] = unsure # {} \/ isLate]
               /\ Go(p, IF isLate /\ back[p] = {} THEN "empty" ELSE "give")
               /\ UNCHANGED <<held, tried, slotLock>>
    /\ UNCHANGED <<committed, rowLock, markLock, alone, back, given, marks, settled, subject, reading,
                   ghosts, spent>>

\* pgqueue_empty_slots: unstarted heads go back, unless another transaction has locked them.
Empty(p) ==
    /\ at[p] = "empty"
    /\ LET emptied == {n \in Rows : /\ Seen(p, slot[n]) \in {"ready"} \cup Put
                                    /\ CanLockRow(p, slot[n])}
       IN /\ \A n \in emptied : CanLockSlot(p, n)
          /\ back' = [back EXCEPT ![p] = {slot[n] : n \in emptied}]
          /\ LockRows(p, {slot[n] : n \in emptied})
          /\ LockSlots(p, emptied)
          /\ Go(p, IF emptied = {} THEN "give" ELSE "look")
    /\ UNCHANGED <<committed, markLock, alone, known, held, tried, free, taken, undone, given, marks,
                   settled, subject, reading, ghosts, spent>>

\* pgqueue_give_slots: the first messages of the line become heads. A FIFO group waits for its first
\* message. pgqueue_end_slots, in the same step: the other free slots end, under the group's lock.
Give(p) ==
    /\ at[p] = "give"
    /\ LET room == IF known[p] > taken[p] THEN known[p] - taken[p] ELSE 0
           next == {m \in First(room, {o \in Line(p) : CanLockRow(p, o)}) :
                        known[p] > 1 \/ \A o \in Line(p) : m <= o}
           empty == {n \in Numbers : n \in free[p] \/ slot[n] = NoRow}
           nth == [n \in Numbers |-> Cardinality({o \in empty : o < n})]
           of == [n \in Numbers |-> IF n \in empty /\ nth[n] < Cardinality(next)
                                    THEN CHOOSE m \in next : Cardinality({o \in next : o < m}) = nth[n]
                                    ELSE None]
       IN /\ \A n \in free[p] : CanLockSlot(p, n)
          /\ given' = [given EXCEPT ![p] = of]
          /\ LockSlots(p, {n \in Numbers : of[n] # None} \cup free[p])
          /\ LockRows(p, next)
          /\ settled' = [settled EXCEPT ![p] =
                ~undone[p] /\ (Cardinality(next) = room \/ Line(p) \ next = {})]
          /\ Go(p, IF taken[p] > known[p] /\ Bug # "a lowered limit is ignored"
                   THEN "surplus" ELSE "commit")
    /\ UNCHANGED <<committed, markLock, alone, known, held, tried, free, taken, undone, back, marks,
                   subject, reading, ghosts, spent>>

\* pgqueue_close_slots: heads in flight keep their slots, but do not start in them again. The UPDATE
\* waits for locks.
Surplus(p) ==
    /\ at[p] = "surplus"
    /\ \A n \in Rows : CanLockSlot(p, n)
    /\ LockSlots(p, Rows)
    /\ Go(p, "commit")
    /\ UNCHANGED <<committed, rowLock, markLock, alone, filling, reading, ghosts, spent>>

Fill(p) == LockGroup(p) \/ Look(p) \/ Empty(p) \/ Give(p) \/ Surplus(p)

\* What a filler commits, and the end of its transaction
Place(p, m) ==
    IF \E n \in Numbers : given[p][n] = m THEN (IF m \in delivered THEN "due" ELSE "ready")
    ELSE Seen(p, m)
Filled(p) ==
    /\ place' = [m \in Messages |-> Place(p, m)]
    /\ slot' = [n \in Numbers |-> IF given[p][n] # None THEN given[p][n]
                                  ELSE IF n \in free[p] THEN NoRow ELSE slot[n]]
    /\ surplus' = {n \in Numbers : /\ given[p][n] = None /\ n \notin free[p] /\ slot[n] # NoRow
                                   /\ n \in surplus \/ taken[p] > known[p]}

Leave(p) ==
    /\ slotLock' = [n \in Numbers |-> IF slotLock[n] = p THEN Unlocked ELSE slotLock[n]]
    /\ rowLock' = [m \in Messages |-> IF rowLock[m] = p THEN Unlocked ELSE rowLock[m]]
    /\ markLock' = [k \in Marks |-> IF markLock[k] = p THEN Unlocked ELSE markLock[k]]
    /\ alone' = IF alone = p THEN Unlocked ELSE alone
    /\ known' = [known EXCEPT ![p] = 0]
    /\ held' = [held EXCEPT ![p] = {}]
    /\ tried' = [tried EXCEPT ![p] = FALSE]
    /\ free' = [free EXCEPT ![p] = {}]
    /\ taken' = [taken EXCEPT ![p] = 0]
    /\ undone' = [undone EXCEPT ![p] = FALSE]
    /\ back' = [back EXCEPT ![p] = {}]
    /\ given' = [given EXCEPT ![p] = [n \in Numbers |-> None]]
    /\ marks' = [marks EXCEPT ![p] = {}]
    /\ settled' = [settled EXCEPT ![p] = FALSE]
    /\ subject' = [subject EXCEPT ![p] = None]

-----------------------------------------------------------------------------
\* A read: read.sql, then set_back.sql for blocked messages and promote.sql for rechecks, and read.sql
\* again, which does not heed the rechecks that are left.

Begin(r) ==
    /\ at[r] \in {"idle", "again"}
    /\ at[r] = "idle" => rechecks # {} \/ In({"ready", "due", "expired"}) # {}
    /\ LET heeds == at[r] = "idle" /\ rechecks # {} IN
        /\ due' = [due EXCEPT ![r] = In({"due", "expired"})]
        /\ ready' = [ready EXCEPT ![r] = IF heeds THEN {} ELSE In({"ready"})]
        /\ noted' = [noted EXCEPT ![r] = IF heeds THEN "recheck" ELSE "none"]
    /\ allowed' = IF at[r] = "idle" THEN [allowed EXCEPT ![r] = permitted] ELSE allowed
    /\ Go(r, "start")
    /\ UNCHANGED <<committed, locks, filling, started, news, permitted, spent>>

\* pgqueue_may_start locks the slot of a head that is due. Due messages without one are blocked.
Start(r) ==
    /\ at[r] = "start"
    /\ LET mine == {n \in Rows \ surplus : /\ slot[n] \in due[r] /\ CanLockSlot(r, n)
                                           /\ place[slot[n]] \in {"due", "expired"}}
           heads == {slot[n] : n \in mine}
           those == heads \cup (ready[r] \cap In({"ready"}))
       IN /\ started' = [started EXCEPT ![r] = {m \in those : CanLockRow(r, m)}]
          /\ due' = [due EXCEPT ![r] = {m \in (@ \ heads) \cap In({"due", "expired"}) :
                                            CanLockRow(r, m)}]  \* the blocked ones
          /\ LockSlots(r, mine)
          /\ LockRows(r, {m \in those : CanLockRow(r, m)})
    /\ Go(r, "read")
    /\ ready' = [ready EXCEPT ![r] = {}]
    /\ UNCHANGED <<committed, markLock, alone, filling, noted, ghosts, spent>>

EndRead(r) ==
    /\ at[r] = "read"
    /\ place' = [m \in Messages |-> IF m \in started[r] THEN "leased" ELSE place[m]]
    /\ delivered' = delivered \cup started[r]
    /\ started' = [started EXCEPT ![r] = {}]
    /\ due' = [due EXCEPT ![r] = {}]
    /\ LET next == IF due[r] # {} THEN "set back" ELSE IF noted[r] = "recheck" THEN "promote" ELSE "idle"
       IN /\ Go(r, next)
          /\ allowed' = IF next = "idle" THEN [allowed EXCEPT ![r] = 0] ELSE allowed
    /\ Leave(r)
    /\ UNCHANGED <<slot, surplus, rechecks, limit, ready, noted, news, permitted, spent>>

\* Due messages without a slot wait for one by their id. (Their DELETE fills slots, too. Here it leaves
\* a recheck only.)
SetBack(r) ==
    /\ at[r] = "set back"
    /\ LET blocked == {m \in In({"due", "expired"}) :
                           CanLockRow(r, m) /\ \A n \in Rows \ surplus : slot[n] # m}
       IN /\ place' = [m \in Messages |-> IF m \in blocked THEN "waiting" ELSE place[m]]
          /\ rechecks' = IF blocked = {} THEN rechecks ELSE rechecks \cup {Fresh}
    /\ Go(r, IF noted[r] = "recheck" THEN "promote" ELSE "again")
    /\ UNCHANGED <<delivered, slot, surplus, limit, locks, filling, reading, ghosts, spent>>

Promote(r) ==
    /\ at[r] = "promote"
    /\ LET mine == {k \in rechecks : markLock[k] = Unlocked} IN
        /\ marks' = [marks EXCEPT ![r] = mine]
        /\ markLock' = [k \in Marks |-> IF k \in mine THEN r ELSE markLock[k]]
        /\ Go(r, IF mine # {} /\ alone = Unlocked THEN "lock" ELSE "commit")
        /\ alone' = IF mine # {} /\ alone = Unlocked THEN r ELSE alone
    /\ UNCHANGED <<committed, slotLock, rowLock, known, held, tried, free, taken, undone, back, given,
                   settled, subject, reading, ghosts, spent>>

Promoted(r) ==
    /\ at[r] = "commit" /\ r \in Readers
    /\ Filled(r)
    /\ LET those == {k \in rechecks : markLock[k] \in {Unlocked, r}}
           one == {k \in those : \A o \in those : k <= o}
       IN IF settled[r]
          THEN /\ rechecks' = rechecks \ marks[r]
               /\ news' = IF news \in marks[r] THEN None ELSE news
               /\ permitted' = IF news \in marks[r] THEN limit ELSE permitted
               /\ allowed' = IF news \in marks[r] THEN [allowed EXCEPT ![r] = limit] ELSE allowed
          ELSE /\ rechecks' = (rechecks \ those) \cup one
               /\ news' = IF news \in those THEN CHOOSE k \in one : TRUE ELSE news
               /\ UNCHANGED <<permitted, allowed>>
    /\ Leave(r)
    /\ Go(r, "again")
    /\ UNCHANGED <<delivered, limit, reading, spent>>

-----------------------------------------------------------------------------
\* An ack, in a transaction that may last

Ack ==
    /\ at[Acker] = "idle"
    /\ \E m \in In(Leased) :
        /\ rowLock[m] = Unlocked
        /\ LockRows(Acker, {m})
        /\ subject' = [subject EXCEPT ![Acker] = m]
        /\ Go(Acker, IF m \in Heads THEN "lock" ELSE "commit")
        /\ settled' = [settled EXCEPT ![Acker] = m \notin Heads]
    /\ UNCHANGED <<committed, slotLock, markLock, alone, known, held, tried, free, taken, undone, back,
                   given, marks, reading, ghosts, spent>>

Acked ==
    /\ at[Acker] = "commit"
    /\ Filled(Acker)
    /\ rechecks' = IF settled[Acker] \/ Bug = "an ack leaves no recheck" THEN rechecks
                   ELSE rechecks \cup {Fresh}
    /\ Leave(Acker)
    /\ Go(Acker, "idle")
    /\ UNCHANGED <<delivered, limit, reading, ghosts, spent>>

Rollback ==
    /\ at[Acker] = "commit"
    /\ Spend("rollback")
    /\ Leave(Acker)
    /\ Go(Acker, "idle")
    /\ UNCHANGED <<committed, reading, ghosts>>

-----------------------------------------------------------------------------
\* A change of the limit: its trigger fills or empties slots, and leaves a recheck.

Change ==
    /\ at[Operator] = "idle"
    /\ Spend("change")
    /\ \E new \in Limits \ {limit} : subject' = [subject EXCEPT ![Operator] = new]
    /\ Go(Operator, "lock")
    /\ UNCHANGED <<committed, locks, known, held, tried, free, taken, undone, back, given, marks,
                   settled, reading, ghosts>>

Changed ==
    /\ at[Operator] = "commit"
    /\ Filled(Operator)
    /\ rechecks' = rechecks \cup {Fresh}
    /\ limit' = subject[Operator]
    /\ news' = Fresh
    /\ permitted' = IF AtOnce \/ limit' > permitted THEN limit' ELSE permitted
    /\ allowed' = [r \in Readers |-> IF at[r] # "idle" /\ limit' > allowed[r] THEN limit'
                                     ELSE allowed[r]]
    /\ Leave(Operator)
    /\ Go(Operator, "idle")
    /\ UNCHANGED <<delivered, reading, spent>>

-----------------------------------------------------------------------------

Send(m) ==
    /\ place[m] = "unsent"
    /\ place' = [place EXCEPT ![m] = "waiting"]
    /\ rechecks' = rechecks \cup {Fresh}
    /\ UNCHANGED <<delivered, slot, surplus, limit, locks, at, filling, reading, ghosts, spent>>

\* A retry, and the recheck after it. The message is due some time later.
Retry(m) ==
    /\ place[m] \in Leased /\ rowLock[m] = Unlocked
    /\ Spend("retry")
    /\ place' = [place EXCEPT ![m] = "off"]
    /\ rechecks' = rechecks \cup {Fresh}
    /\ UNCHANGED <<delivered, slot, surplus, limit, locks, at, filling, reading, ghosts>>

Due(m) ==
    /\ place[m] = "off"
    /\ place' = [place EXCEPT ![m] = "due"]
    /\ UNCHANGED <<delivered, slot, surplus, rechecks, limit, locks, at, filling, reading, ghosts,
                   spent>>

Expire(m) ==
    /\ place[m] = "leased"
    /\ Spend("expire")
    /\ place' = [place EXCEPT ![m] = "expired"]
    /\ UNCHANGED <<delivered, slot, surplus, rechecks, limit, locks, at, filling, reading, ghosts>>

Read(r) == Begin(r) \/ Start(r) \/ EndRead(r) \/ SetBack(r) \/ Promote(r) \/ Fill(r) \/ Promoted(r)
Settle == Ack \/ Fill(Acker) \/ Acked
Set == Fill(Operator) \/ Changed

Next ==
    \/ \E r \in Readers : Read(r)
    \/ Settle \/ Rollback
    \/ Change \/ Set
    \/ \E m \in Messages : Send(m) \/ Retry(m) \/ Due(m) \/ Expire(m)

Fairness ==
    /\ \A r \in Readers : WF_vars(Read(r))
    /\ SF_vars(Settle) /\ SF_vars(Set)  \* one that waits for a lock gets it
    /\ \A m \in Messages : WF_vars(Send(m) \/ Due(m))

Spec == Init /\ [][Next]_vars /\ Fairness

\* No message is in two slots, and none is ready or in flight without one.
InSlots ==
    /\ \A n, o \in Rows : n # o => slot[n] # slot[o]
    /\ In({"ready"} \cup Leased) \subseteq Heads

Starts(r) == at[r] = "read" /\ started[r] # {}

\* After a read that starts a message, no more are in flight than a limit that was in force since the
\* read began: a lowered one is, once its recheck is settled. So it lets nothing start before fewer
\* are in flight.
Within == [][\A r \in Readers : Starts(r) /\ at'[r] # "read" =>
                Cardinality({m \in Messages : place'[m] \in Leased}) <= allowed[r]]_vars

\* No message is stranded.
Ends == \A m \in Messages : <>(place[m] = "done")

=============================================================================
