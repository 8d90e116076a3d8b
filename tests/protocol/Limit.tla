------------------------------- MODULE Limit -------------------------------
\* The limit of a whole queue: reads that count what is leased while they hold the queue's lock
\* (ddl/whole_queue.sql), beside handlers that ack, retry and extend, an operator who changes the
\* limit, and leases that expire.
\*
\* READ COMMITTED in small: pgqueue_admit and pgqueue_admitted are called by one statement, read.sql.
\* It has the snapshot of its beginning, and each statement inside the functions has one of its own.
\* A row lock lasts until the commit; all but the queue's lock and the locks of handlers are only
\* tried (SKIP LOCKED). Writes are seen by others when the transaction commits. Each step below is
\* what happens between two points at which another transaction may do something that matters.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Messages,   \* 1..n, in the order of their ids
    Readers,
    Handlers,   \* each settles or extends one lease at a time
    Qty,        \* that a read asks for
    Limits,     \* to which an operator may change the limit
    Changes,    \* of the limit, at most
    Expiries, Extensions, Cuts, Retries, Rollbacks, \* the most of each in a behaviour
    Bug         \* "none" is ours; the others are planted bugs

FirstLimit == 2
Unlocked == "unlocked"
Nobody == 0
Processes == Readers \cup Handlers

VARIABLES
    \* What is committed
    ready,      \* pgqueue_ready
    leased,     \* pgqueue_deferred, state PROCESSING: each has one valid receipt
    again,      \* pgqueue_deferred, RETRYABLE and due
    done,       \* archived
    expired,    \* the leased ones whose lease has run out
    limit,
    \* Locks
    queueLock,  \* who holds the row of the whole queue
    rowLock,    \* of each message: who holds its row
    \* Of each process
    at,         \* the step before which it is
    \* Of each reader
    due,        \* the rows of deferred whose vt is not after the time of its statement
    unseen,     \* the rows that changed after the statement's snapshot
    most,       \* the limit that it has read
    count,      \* how many it has counted as leased
    number,     \* how many it may lease
    reused,     \* whether that counts on expired leases
    taken,      \* what it leases
    ended,      \* the leases that it ends
    allowed,    \* for the property: the highest limit since the read began
    alone,      \* for the property: whether nothing else has happened since
    \* Of each handler
    subject, act, \* the message, and what it does
    lost,       \* whether its receipt became invalid
    spent       \* of each budget

committed == <<ready, leased, again, done, expired>>
locks == <<queueLock, rowLock>>
reading == <<due, unseen, most, count, number, reused, taken, ended>>
handling == <<subject, act, lost>>
vars == <<committed, limit, locks, at, reading, allowed, alone, handling, spent>>

Budgets == [change |-> Changes, expire |-> Expiries, extend |-> Extensions, cut |-> Cuts,
            retry |-> Retries, rollback |-> Rollbacks]
Least(a, b) == IF a < b THEN a ELSE b
Less(a, b) == IF a > b THEN a - b ELSE 0
\* The first n of a set
First(n, set) == {m \in set : Cardinality({o \in set : o < m}) < n}

Init ==
    /\ ready = Messages
    /\ leased = {} /\ again = {} /\ done = {} /\ expired = {}
    /\ limit = FirstLimit
    /\ queueLock = Unlocked
    /\ rowLock = [m \in Messages |-> Unlocked]
    /\ at = [p \in Processes |-> "idle"]
    /\ due = [r \in Readers |-> {}]
    /\ unseen = [r \in Readers |-> {}]
    /\ most = [r \in Readers |-> 0]
    /\ count = [r \in Readers |-> 0]
    /\ number = [r \in Readers |-> 0]
    /\ reused = [r \in Readers |-> FALSE]
    /\ taken = [r \in Readers |-> {}]
    /\ ended = [r \in Readers |-> {}]
    /\ allowed = [r \in Readers |-> 0]
    /\ alone = [r \in Readers |-> FALSE]
    /\ subject = [h \in Handlers |-> Nobody]
    /\ act = [h \in Handlers |-> "ack"]
    /\ lost = [h \in Handlers |-> FALSE]
    /\ spent = [b \in DOMAIN Budgets |-> 0]

Spend(budget) ==
    /\ spent[budget] < Budgets[budget]
    /\ spent' = [spent EXCEPT ![budget] = @ + 1]

Go(p, step) == at' = [at EXCEPT ![p] = step]
Free(p, m) == rowLock[m] \in {Unlocked, p}
Lock(p, set) == rowLock' = [m \in Messages |-> IF m \in set THEN p ELSE rowLock[m]]
\* Something happened that was not a step of reader p.
Beside(p) == alone' = [r \in Readers |-> alone[r] /\ r = p]

\* A read whose snapshot still matters
Looks(r) == at[r] \notin {"idle", "admitted", "commit"}

-----------------------------------------------------------------------------
\* A read

\* read.sql begins: its time, and its snapshot. It runs if there may be something to take.
Begin(r) ==
    /\ at[r] = "idle"
    /\ ready \cup again \cup expired # {}
    /\ due' = [due EXCEPT ![r] = again \cup expired]
    /\ unseen' = [unseen EXCEPT ![r] = {}]
    /\ count' = [count EXCEPT ![r] = IF Bug = "the count is before the lock"
                                     THEN Cardinality(leased) ELSE 0]
    /\ allowed' = [allowed EXCEPT ![r] = limit]
    /\ alone' = [q \in Readers |-> q = r /\ \A p \in Processes \ {r} : at[p] = "idle"]
    /\ Go(r, "lock")
    /\ UNCHANGED <<committed, limit, locks, most, number, reused, taken, ended, handling, spent>>

\* pgqueue_admit waits for the read before it.
LockQueue(r) ==
    /\ at[r] = "lock"
    /\ IF Bug = "reads do not lock the queue" THEN UNCHANGED queueLock
       ELSE queueLock = Unlocked /\ queueLock' = r
    /\ Go(r, "settings")
    /\ Beside(r)
    /\ UNCHANGED <<committed, limit, rowLock, reading, allowed, handling, spent>>

Settings(r) ==
    /\ at[r] = "settings"
    /\ most' = [most EXCEPT ![r] = limit]
    /\ Go(r, "count")
    /\ Beside(r)
    /\ UNCHANGED <<committed, limit, locks, due, unseen, count, number, reused, taken, ended,
                   allowed, handling, spent>>

Count(r) ==
    /\ at[r] = "count"
    /\ IF Bug = "the count is before the lock" THEN UNCHANGED count
       ELSE count' = [count EXCEPT ![r] = Cardinality(leased)]
    /\ Go(r, "expired")
    /\ Beside(r)
    /\ UNCHANGED <<committed, limit, locks, due, unseen, most, number, reused, taken, ended,
                   allowed, handling, spent>>

\* Expired leases do not count, if the read can lock them. A locked one may be extended.
Expired(r) ==
    /\ at[r] = "expired"
    /\ LET over == {m \in leased \cap due[r] : Free(r, m)}
           found == IF Bug = "expired leases that others have locked do not count"
                    THEN leased \cap due[r] ELSE over
           room == Less(most[r] + Cardinality(found), count[r])
       IN IF count[r] + Qty > most[r]
          THEN /\ Lock(r, IF Bug = "expired leases are not locked" THEN {} ELSE over)
               /\ reused' = [reused EXCEPT ![r] = found # {}]
               /\ number' = [number EXCEPT ![r] = Least(Qty, room)]
          ELSE /\ reused' = [reused EXCEPT ![r] = FALSE]
               /\ number' = [number EXCEPT ![r] = Qty]
               /\ UNCHANGED rowLock
    /\ most' = [most EXCEPT ![r] = 0]
    /\ count' = [count EXCEPT ![r] = 0]
    /\ Go(r, "take")
    /\ Beside(r)
    /\ UNCHANGED <<committed, limit, queueLock, due, unseen, taken, ended, allowed, handling, spent>>

\* read.sql goes on, with its snapshot: it takes due rows, then ready ones. A row that changed since
\* the snapshot is not updated, even if it is due.
Take(r) ==
    /\ at[r] = "take"
    /\ LET old == {m \in ((leased \cup again) \cap due[r]) \ unseen[r] : Free(r, m)}
           new == {m \in ready : Free(r, m)}
           first == First(number[r], old)
           next == First(number[r] - Cardinality(first), new)
       IN /\ taken' = [taken EXCEPT ![r] = first \cup next]
          /\ Lock(r, first \cup next)
    /\ number' = [number EXCEPT ![r] = 0]
    /\ unseen' = [unseen EXCEPT ![r] = {}]
    /\ Go(r, "admitted")
    /\ Beside(r)
    /\ UNCHANGED <<committed, limit, queueLock, due, most, count, reused, ended, allowed, handling,
                   spent>>

\* pgqueue_admitted ends the expired leases that are not delivered again.
Admitted(r) ==
    /\ at[r] = "admitted"
    /\ LET over == {m \in (leased \cap due[r]) \ taken[r] : Free(r, m)}
           ends == IF reused[r] /\ Bug # "expired leases are not ended" THEN over ELSE {}
       IN /\ ended' = [ended EXCEPT ![r] = ends]
          /\ Lock(r, ends)
    /\ due' = [due EXCEPT ![r] = {}]
    /\ reused' = [reused EXCEPT ![r] = FALSE]
    /\ Go(r, "commit")
    /\ Beside(r)
    /\ UNCHANGED <<committed, limit, queueLock, unseen, most, count, number, taken, allowed, handling,
                   spent>>

\* The locks of a process are free, and its row of each variable is as at the start.
Leave(p) ==
    /\ Go(p, "idle")
    /\ queueLock' = IF queueLock = p THEN Unlocked ELSE queueLock
    /\ rowLock' = [m \in Messages |-> IF rowLock[m] = p THEN Unlocked ELSE rowLock[m]]

Forget(r) ==
    /\ taken' = [taken EXCEPT ![r] = {}]
    /\ ended' = [ended EXCEPT ![r] = {}]
    /\ allowed' = [allowed EXCEPT ![r] = 0]
    /\ alone' = [q \in Readers |-> FALSE]

\* A row with a new vt is not due for a read that runs; one that keeps its vt may be.
Commit(r) ==
    /\ at[r] = "commit"
    /\ ready' = ready \ taken[r]
    /\ leased' = (leased \ ended[r]) \cup taken[r]
    /\ again' = (again \ taken[r]) \cup ended[r]
    /\ expired' = expired \ (taken[r] \cup ended[r])
    /\ due' = [q \in Readers |-> due[q] \ taken[r]]
    /\ unseen' = [q \in Readers |-> IF Looks(q) THEN unseen[q] \cup taken[r] \cup ended[r] ELSE {}]
    /\ lost' = [h \in Handlers |-> lost[h] \/ subject[h] \in taken[r] \cup ended[r]]
    /\ Leave(r)
    /\ Forget(r)
    /\ UNCHANGED <<done, limit, most, count, number, reused, subject, act, spent>>

RollbackRead(r) ==
    /\ at[r] \notin {"idle", "lock", "commit"}
    /\ Spend("rollback")
    /\ due' = [due EXCEPT ![r] = {}]
    /\ unseen' = [unseen EXCEPT ![r] = {}]
    /\ most' = [most EXCEPT ![r] = 0]
    /\ count' = [count EXCEPT ![r] = 0]
    /\ number' = [number EXCEPT ![r] = 0]
    /\ reused' = [reused EXCEPT ![r] = FALSE]
    /\ Leave(r)
    /\ Forget(r)
    /\ UNCHANGED <<committed, limit, handling>>

-----------------------------------------------------------------------------
\* Handlers use a valid receipt, before or after the lease has expired. Later ones match no row.

Use(h, does) ==
    /\ at[h] = "idle"
    /\ \E m \in leased :
        /\ \A other \in Handlers : subject[other] # m
        /\ subject' = [subject EXCEPT ![h] = m]
    /\ act' = [act EXCEPT ![h] = does]
    /\ lost' = [lost EXCEPT ![h] = FALSE]
    /\ Go(h, "settle")
    /\ Beside(h)
    /\ UNCHANGED <<committed, limit, locks, reading, allowed>>

Ack(h) == Use(h, "ack") /\ UNCHANGED spent
Retry(h) == Use(h, "retry") /\ Spend("retry")
Extend(h) == Use(h, "extend") /\ Spend("extend")
\* An extension by no time: the lease has expired at once.
Cut(h) == Use(h, "cut") /\ Spend("cut")

\* The statement waits for the row, and compares the receipt with the row as it is then.
Settle(h) ==
    /\ at[h] = "settle"
    /\ rowLock[subject[h]] = Unlocked
    /\ IF lost[h]
       THEN /\ Go(h, "idle")
            /\ subject' = [subject EXCEPT ![h] = Nobody]
            /\ act' = [act EXCEPT ![h] = "ack"]
            /\ lost' = [lost EXCEPT ![h] = FALSE]
            /\ UNCHANGED rowLock
       ELSE Go(h, "commit") /\ Lock(h, {subject[h]}) /\ UNCHANGED handling
    /\ Beside(h)
    /\ UNCHANGED <<committed, limit, queueLock, reading, allowed, spent>>

End(h) ==
    /\ Leave(h)
    /\ subject' = [subject EXCEPT ![h] = Nobody]
    /\ act' = [act EXCEPT ![h] = "ack"]
    /\ lost' = [lost EXCEPT ![h] = FALSE]
    /\ Beside(h)
    /\ UNCHANGED <<ready, limit, most, count, number, reused, taken, ended, allowed>>

\* The times of statements are not in the order of their commits: a read that runs may find due what
\* was given back meanwhile.
Settled(h) ==
    /\ at[h] = "commit"
    /\ LET m == subject[h] IN
        /\ leased' = IF act[h] \in {"ack", "retry"} THEN leased \ {m} ELSE leased
        /\ again' = IF act[h] = "retry" THEN again \cup {m} ELSE again
        /\ done' = IF act[h] = "ack" THEN done \cup {m} ELSE done
        /\ expired' = IF act[h] = "cut" THEN expired \cup {m} ELSE expired \ {m}
        /\ \E early \in IF act[h] \in {"cut", "retry"} THEN BOOLEAN ELSE {FALSE} :
            due' = [r \in Readers |-> IF early /\ at[r] \notin {"idle", "commit"} THEN due[r] \cup {m}
                                      ELSE due[r] \ {m}]
        /\ unseen' = [r \in Readers |-> IF Looks(r) THEN unseen[r] \cup {m} ELSE {}]
    /\ End(h)
    /\ UNCHANGED spent

Rollback(h) ==
    /\ at[h] = "commit"
    /\ Spend("rollback")
    /\ End(h)
    /\ UNCHANGED <<leased, again, done, expired, due, unseen>>

-----------------------------------------------------------------------------

Expire(m) ==
    /\ m \in leased \ expired
    /\ Spend("expire")
    /\ expired' = expired \cup {m}
    /\ Beside("nobody")
    /\ UNCHANGED <<ready, leased, again, done, limit, locks, at, reading, allowed, handling>>

Change ==
    /\ Spend("change")
    /\ \E new \in Limits \ {limit} :
        /\ limit' = new
        /\ allowed' = [r \in Readers |-> IF at[r] # "idle" /\ new > allowed[r] THEN new
                                         ELSE allowed[r]]
    /\ Beside("nobody")
    /\ UNCHANGED <<committed, locks, at, reading, handling>>

Read(r) == \/ Begin(r) \/ LockQueue(r) \/ Settings(r) \/ Count(r) \/ Expired(r)
           \/ Take(r) \/ Admitted(r) \/ Commit(r)
Handle(h) == Ack(h) \/ Settle(h) \/ Settled(h)

Next ==
    \/ \E r \in Readers : Read(r) \/ RollbackRead(r)
    \/ \E h \in Handlers : Handle(h) \/ Retry(h) \/ Extend(h) \/ Cut(h) \/ Rollback(h)
    \/ \E m \in Messages : Expire(m)
    \/ Change

\* Readers go on reading, a handler comes to its end, a statement ends and a transaction commits.
Fairness == (\A r \in Readers : WF_vars(Read(r))) /\ (\A h \in Handlers : WF_vars(Handle(h)))

Spec == Init /\ [][Next]_vars /\ Fairness

OnePlace ==
    LET places == <<ready, leased, again, done>> IN
    /\ UNION {places[n] : n \in 1..4} = Messages
    /\ \A n, other \in 1..4 : n # other => places[n] \cap places[other] = {}
    /\ expired \subseteq leased

\* No two reads lease the same message, and none leases one whose lease is good.
LeasedOnce == \A r \in Readers :
    /\ \A other \in Readers \ {r} : taken[r] \cap taken[other] = {}
    /\ taken[r] \subseteq ready \cup again \cup expired

\* A handler that has locked its message has the receipt of the last delivery.
Fenced == \A h \in Handlers : at[h] = "commit" => subject[h] \in leased /\ ~lost[h]

Commits(r) == at[r] = "commit" /\ at'[r] = "idle"

\* After a read that starts something, no more receipts are valid than the limit permits. Nothing
\* else makes their number larger, extensions neither. So a lowered limit lets nothing start before
\* fewer are in flight.
Within == [][\A r \in Readers : 
    Commits(r) /\ taken[r] # {} => Cardinality(leased') <= allowed[r]]_vars

\* A read beside which nothing happens takes as much as the limit permits.
Used == [][\A r \in Readers : Commits(r) /\ alone[r] =>
    Cardinality(taken[r]) = Least(Least(Qty, Less(limit, Cardinality(leased \ expired))),
                                  Cardinality(ready \cup again \cup expired))]_vars

\* Every message is delivered, and comes to its end.
Ends == \A m \in Messages : <>(m \in done)

=============================================================================
