------------------------------- MODULE Groups -------------------------------
\* The messages of one FIFO group, and how the next of them becomes its head: sends that leave a
\* recheck, acks that bring up the next head (pgqueue_go_on and pgqueue_next_heads of
\* ddl/groups.sql), readers that settle rechecks (engine/groups/promote.sql), in transactions of their
\* own or in longer ones, an operator who takes a message out.
\*
\* READ COMMITTED in small: a statement sees what was committed when it began, its snapshot; locks are
\* only tried (SKIP LOCKED), except for a unique key; writes are seen by others when the transaction
\* commits. Each step below is what happens between two points at which another
\* transaction may do something that matters.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Messages,   \* 1..n, in the order of their ids
    Readers,    \* processes that promote
    Removals,   \* messages that an operator takes out of the line, at most
    Rollbacks,  \* of acks and reads, at most
    InTurn,     \* whether sends commit in the order of their ids
    Bug         \* "none" is ours; the others are planted bugs

None == 0          \* no message
Unlocked == "unlocked"
Operator == "operator"
Acker == "acker"
Processes == Readers \cup {Acker, Operator}

VARIABLES
    \* What is committed
    unsent,     \* messages whose transaction has not committed
    waiting,    \* pgqueue_waiting
    ready,      \* heads in pgqueue_ready
    leased,     \* heads in pgqueue_deferred
    done,       \* archived, or taken out
    group,      \* the head that pgqueue_group names; None: there is no row
    rechecks,   \* pgqueue_recheck, by who left each
    \* Locks
    groupLock,  \* who holds the row of pgqueue_group
    rowLock,    \* of each message: who holds its row of pgqueue_waiting
    markLock,   \* of each recheck: who holds it
    alone,      \* who holds the queue's advisory lock
    \* Of each process
    at,         \* the step before which it is
    seen,       \* by its snapshot: the first message of the line, and whether the head is alive
    stale,      \* whether the group's row has changed since that snapshot
    marks,      \* the rechecks it holds
    write,      \* what it commits: head, the message that it makes the head; group; recheck; settled
    subject,    \* the message that the acker or the operator works on
    removed, rolledBack

committed == <<unsent, waiting, ready, leased, done, group, rechecks>>
locks == <<groupLock, rowLock, markLock, alone>>
private == <<at, seen, stale, marks, write, subject>>
vars == <<committed, locks, private, removed, rolledBack>>

Marks == {"send", "ack"} \X Messages
Nothing == [head |-> None, writesGroup |-> FALSE, recheck |-> FALSE, settled |-> FALSE]
Blank == [first |-> None, alive |-> FALSE]
Heads == ready \cup leased

First == IF waiting = {} THEN None ELSE CHOOSE m \in waiting : \A other \in waiting : m <= other

Init ==
    /\ unsent = Messages
    /\ waiting = {} /\ ready = {} /\ leased = {} /\ done = {} /\ rechecks = {}
    /\ group = None
    /\ groupLock = Unlocked
    /\ rowLock = [m \in Messages |-> Unlocked]
    /\ markLock = [k \in Marks |-> Unlocked]
    /\ alone = Unlocked
    /\ at = [p \in Processes |-> "idle"]
    /\ seen = [p \in Processes |-> Blank]
    /\ stale = [p \in Processes |-> FALSE]
    /\ marks = [p \in Readers |-> {}]
    /\ write = [p \in Processes |-> Nothing]
    /\ subject = [p \in {Acker, Operator} |-> None]
    /\ removed = 0
    /\ rolledBack = 0

Go(p, step) == at' = [at EXCEPT ![p] = step]
Look(p) == seen' = [seen EXCEPT ![p] = [first |-> First, alive |-> group \in Heads]]

\* A send: its message waits, and a recheck says that the group may need a head. Transactions commit
\* in any order of their ids.
Send(m) ==
    /\ m \in unsent
    /\ InTurn => \A other \in unsent : m <= other
    /\ unsent' = unsent \ {m}
    /\ waiting' = waiting \cup {m}
    /\ rechecks' = IF Bug = "send leaves no recheck" THEN rechecks
                   ELSE rechecks \cup {<<"send", m>>}
    /\ UNCHANGED <<ready, leased, done, group, locks, private, removed, rolledBack>>

\* A read takes the head. A lease that runs out leaves it in pgqueue_deferred: nothing changes here.
Lease ==
    /\ \E m \in ready : ready' = ready \ {m} /\ leased' = leased \cup {m}
    /\ UNCHANGED <<unsent, waiting, done, group, rechecks, locks, private, removed, rolledBack>>

-----------------------------------------------------------------------------
\* A reader settles rechecks

\* The statement begins: its snapshot, the rechecks that are not locked, the advisory lock if free.
Begin(p) ==
    /\ at[p] = "idle"
    /\ LET free == {k \in rechecks : markLock[k] = Unlocked} IN
        /\ free # {}
        /\ marks' = [marks EXCEPT ![p] = free]
        /\ markLock' = [k \in Marks |-> IF k \in free THEN p ELSE markLock[k]]
    /\ alone' = IF alone = Unlocked THEN p ELSE alone
    /\ Look(p)
    /\ stale' = [stale EXCEPT ![p] = FALSE]
    /\ Go(p, IF group = None THEN "unknown" ELSE "known")
    /\ UNCHANGED <<committed, groupLock, rowLock, write, subject, removed, rolledBack>>

\* The group has a row: its lock makes the look at the head final. One that changed is left alone.
Known(p) ==
    /\ at[p] = "known"
    /\ LET got == groupLock = Unlocked /\ ~stale[p]
           alive == seen[p].alive
       IN CASE Bug = "the head is looked at without a lock" ->
                /\ write' = [write EXCEPT ![p].settled = alive]
                /\ Go(p, IF alive \/ ~got THEN "commit" ELSE "next")
                /\ groupLock' = IF ~alive /\ got THEN p ELSE groupLock
            [] OTHER ->
                /\ groupLock' = IF got THEN p ELSE groupLock
                /\ write' = [write EXCEPT ![p].settled =
                        ~got /\ Bug = "a recheck goes although the row is locked"]
                /\ Go(p, IF ~got THEN "commit" ELSE IF alive THEN "alive" ELSE "next")
    /\ UNCHANGED <<committed, rowLock, markLock, alone, seen, stale, marks, subject,
                   removed, rolledBack>>

\* A head that seemed alive: a look in a snapshot of its own (pgqueue_alive_groups). The lock ends with
\* it, so that no reader keeps the lock from the ack of this head.
Alive(p) ==
    /\ at[p] = "alive"
    /\ Look(p)
    /\ write' = [write EXCEPT ![p].settled = group \in Heads]
    /\ groupLock' = Unlocked
    /\ Go(p, "commit")
    /\ UNCHANGED <<committed, rowLock, markLock, alone, stale, marks, subject, removed, rolledBack>>

\* It has none: the first message of the line becomes the head, unless another process began the group meanwhile.
Unknown(p) ==
    /\ at[p] = "unknown"
    /\ IF seen[p].first = None
       THEN /\ write' = [write EXCEPT ![p].settled = TRUE]
            /\ Go(p, "commit")
            /\ UNCHANGED rowLock
       ELSE LET m == seen[p].first
                may == alone = p \/ Bug = "groups are begun without the queue's lock"
                got == may /\ rowLock[m] = Unlocked /\ m \in waiting
            IN /\ rowLock' = IF got THEN [rowLock EXCEPT ![m] = p] ELSE rowLock
               /\ write' = IF got THEN [write EXCEPT ![p].head = m] ELSE write
               /\ Go(p, IF got THEN "insert" ELSE "commit")
    /\ UNCHANGED <<committed, groupLock, markLock, alone, seen, stale, marks, subject,
                   removed, rolledBack>>

\* INSERT … ON CONFLICT DO NOTHING: it waits for a transaction that inserted the same key.
Insert(p) ==
    /\ at[p] = "insert"
    /\ groupLock = Unlocked
    /\ IF group = None
       THEN /\ groupLock' = p
            /\ write' = [write EXCEPT ![p].writesGroup = TRUE, ![p].settled = TRUE]
       ELSE /\ write' = [write EXCEPT ![p].head = None]
            /\ UNCHANGED groupLock
    /\ Go(p, "commit")
    /\ UNCHANGED <<committed, rowLock, markLock, alone, seen, stale, marks, subject,
                   removed, rolledBack>>

-----------------------------------------------------------------------------
\* pgqueue_next_heads, by a process that holds the group's row: a snapshot of its own, then the lock of
\* the first message. An ack that does not get it leaves a recheck, a reader leaves the one it had.

Next1(p) ==
    /\ at[p] = "next"
    /\ Look(p)
    /\ IF waiting = {}
       THEN write' = [write EXCEPT ![p].writesGroup = TRUE, ![p].settled = TRUE] /\ Go(p, "commit")
       ELSE Go(p, "delete") /\ UNCHANGED write
    /\ UNCHANGED <<committed, locks, stale, marks, subject, removed, rolledBack>>

Next2(p) ==
    /\ at[p] = "delete"
    /\ LET m == seen[p].first IN
        IF rowLock[m] = Unlocked /\ m \in waiting
        THEN /\ rowLock' = [rowLock EXCEPT ![m] = p]
             /\ write' = [write EXCEPT ![p].head = m, ![p].writesGroup = TRUE,
                                       ![p].settled = TRUE]
        ELSE /\ write' = [write EXCEPT ![p].recheck =
                    p = Acker /\ Bug # "an ack that finds the next message locked leaves no recheck"]
             /\ UNCHANGED rowLock
    /\ Go(p, "commit")
    /\ UNCHANGED <<committed, groupLock, markLock, alone, seen, stale, marks, subject,
                   removed, rolledBack>>

-----------------------------------------------------------------------------
\* An ack, in a transaction that may last: it removes the head, and its trigger brings up the next.

Ack ==
    /\ at[Acker] = "idle"
    /\ \E m \in leased : subject' = [subject EXCEPT ![Acker] = m]
    /\ Go(Acker, "trigger")
    /\ UNCHANGED <<committed, locks, seen, stale, marks, write, removed, rolledBack>>

Trigger ==
    /\ at[Acker] = "trigger"
    /\ IF groupLock = Unlocked
       THEN /\ groupLock' = IF group = None THEN Unlocked ELSE Acker
            /\ Go(Acker, IF group = subject[Acker] THEN "next" ELSE "commit")
            /\ UNCHANGED write
       ELSE /\ write' = [write EXCEPT ![Acker].recheck =
                    group # None /\ Bug # "an ack leaves no recheck"]
            /\ Go(Acker, "commit")
            /\ UNCHANGED groupLock
    /\ UNCHANGED <<committed, rowLock, markLock, alone, seen, stale, marks, subject,
                   removed, rolledBack>>

-----------------------------------------------------------------------------
\* An operator takes a message out of the line

Remove ==
    /\ at[Operator] = "idle"
    /\ removed < Removals
    /\ \E m \in waiting :
        /\ rowLock[m] = Unlocked
        /\ rowLock' = [rowLock EXCEPT ![m] = Operator]
        /\ subject' = [subject EXCEPT ![Operator] = m]
    /\ removed' = removed + 1
    /\ Go(Operator, "commit")
    /\ UNCHANGED <<committed, groupLock, markLock, alone, seen, stale, marks, write, rolledBack>>

-----------------------------------------------------------------------------
\* The end of a transaction: its writes are there at once, and its locks are free.

Free(p) ==
    /\ groupLock' = IF groupLock = p THEN Unlocked ELSE groupLock
    /\ rowLock' = [m \in Messages |-> IF rowLock[m] = p THEN Unlocked ELSE rowLock[m]]
    /\ markLock' = [k \in Marks |-> IF markLock[k] = p THEN Unlocked ELSE markLock[k]]
    /\ alone' = IF alone = p THEN Unlocked ELSE alone
    /\ Go(p, "idle")
    /\ marks' = [q \in Readers |-> IF q = p THEN {} ELSE marks[q]]
    /\ write' = [write EXCEPT ![p] = Nothing]
    /\ seen' = [seen EXCEPT ![p] = Blank]

Commit(p) ==
    /\ at[p] = "commit"
    /\ LET w == write[p]
           gone == IF p \in {Acker, Operator} THEN {subject[p]} ELSE {}
       IN /\ waiting' = waiting \ ({w.head} \cup gone)
          /\ ready' = IF w.head = None THEN ready ELSE ready \cup {w.head}
          /\ leased' = leased \ gone
          /\ done' = done \cup gone
          /\ group' = IF w.writesGroup THEN w.head ELSE group
          /\ stale' = [q \in Processes |-> q # p /\ (stale[q] \/ (w.writesGroup /\ at[q] # "idle"))]
          /\ rechecks' = (IF p \in Readers /\ w.settled THEN rechecks \ marks[p] ELSE rechecks)
                         \cup (IF w.recheck THEN {<<"ack", subject[p]>>} ELSE {})
          /\ subject' = [q \in {Acker, Operator} |-> IF q = p THEN None ELSE subject[q]]
    /\ Free(p)
    /\ UNCHANGED <<unsent, removed, rolledBack>>

Rollback(p) ==
    /\ p # Operator
    /\ at[p] = "commit"
    /\ rolledBack < Rollbacks
    /\ rolledBack' = rolledBack + 1
    /\ subject' = [q \in {Acker, Operator} |-> IF q = p THEN None ELSE subject[q]]
    /\ Free(p)
    /\ UNCHANGED <<committed, stale, removed>>

-----------------------------------------------------------------------------

Step(p) ==
    \/ p \in Readers /\ (Begin(p) \/ Known(p) \/ Alive(p) \/ Unknown(p) \/ Insert(p))
    \/ p = Acker /\ (Ack \/ Trigger)
    \/ p # Operator /\ (Next1(p) \/ Next2(p))
    \/ Commit(p)

Next ==
    \/ \E m \in Messages : Send(m)
    \/ Lease
    \/ \E p \in Processes : Step(p)
    \/ Remove
    \/ \E p \in Processes : Rollback(p)

\* Every process goes on: a statement ends, a transaction commits, a consumer works.
Fairness == WF_vars(Lease) /\ \A p \in Processes : WF_vars(Step(p))

Spec == Init /\ [][Next]_vars /\ Fairness

\* Each message is in one place.
OnePlace ==
    LET places == <<unsent, waiting, ready, leased, done>> IN
    /\ UNION {places[n] : n \in 1..5} = Messages
    /\ \A n, other \in 1..5 : n # other => places[n] \cap places[other] = {}

\* A group has one head at most, and its row names it.
OneHead == Cardinality(Heads) <= 1 /\ (Heads # {} => group \in Heads)

\* In order: where sends commit in turn, a head has no message before it.
InOrder == InTurn => \A m \in Heads : \A other \in Messages : other < m => other \in done

\* No message is stranded.
Ends == \A m \in Messages : m \in waiting ~> m \in done

=============================================================================
