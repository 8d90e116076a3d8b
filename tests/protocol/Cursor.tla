------------------------------- MODULE Cursor -------------------------------
\* The position of a subscription in its source (ddl/subscriptions.sql, engine/subscriptions/): reads of
\* one message each, transactions that commit late or roll back, messages that leave the source in
\* transactions that last, leases that end, and seeks to the first message.
\*
\* A message is named by its transaction's id, and sent with its beginning. A read takes its snapshot in
\* one step and moves the position in another: others may act in between. A snapshot is the set of the
\* transactions that were over.
EXTENDS Integers, FiniteSets

CONSTANTS
    Senders,    \* 1..n: each sends one message
    Readers,
    Leavers,    \* transactions by which one message leaves the source
    Expiries, Seeks, Rollbacks, \* the most of each
    Bug         \* "none" is ours; the others are planted bugs

VARIABLES
    tx,         \* of each sender: "new", "open", "committed", "rolled back"
    source,     \* committed messages that the source has
    \* The position
    number, since, until, after,
    \* Of each reader: the number and the snapshot that it has seen, and what it will lease, or nothing
    looks, saw, target, next,
    leased,     \* what is in flight
    copied,     \* messages in flight that are the subscription's own
    own,        \* the subscription's own messages that nobody has leased
    acked,
    owed,       \* what it must still deliver: all that is committed and not acknowledged
    \* Of each leaver: "new", "deleted" (its message), "counted" (it has decided), "over"
    step, leaves, unread, held,
    spent       \* how many expiries, seeks and rollbacks there were

vars == <<tx, source, number, since, until, after, looks, saw, target, next, leased, copied, own,
          acked, owed, step, leaves, unread, held, spent>>
place == <<number, since, until, after>>
reads == <<looks, saw, target, next>>
leaving == <<step, leaves, unread, held>>

None == 0
NoRound == {-1}

Init ==
    /\ tx = [s \in Senders |-> "new"]
    /\ source = {}
    /\ number = 1 /\ since = {} /\ until = NoRound /\ after = None
    /\ looks = [r \in Readers |-> FALSE]
    /\ saw = [r \in Readers |-> 0]
    /\ target = [r \in Readers |-> {}]
    /\ next = [r \in Readers |-> None]
    /\ leased = {} /\ copied = {} /\ own = {} /\ acked = {} /\ owed = {}
    /\ step = [d \in Leavers |-> "new"]
    /\ leaves = [d \in Leavers |-> None]
    /\ unread = [d \in Leavers |-> FALSE]
    /\ held = [d \in Leavers |-> FALSE]
    /\ spent = [expiries |-> 0, seeks |-> 0, rollbacks |-> 0]

Max(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

Over == {s \in Senders : tx[s] \in {"committed", "rolled back"}}

Passed(m) ==
    IF Bug = "the order is that of ids" THEN m <= after
    ELSE m \in since \/ (until # NoRound /\ m \in until /\ m <= after)

\* What a read of this snapshot finds behind the position.
Ahead(snapshot) ==
    {m \in source : m \in snapshot /\ ~Passed(m)
        /\ (Bug = "late transactions are not looked for" => m > Max(since))}

\* The position's row is locked by a transaction that takes unread messages out of the source.
Locked == \E d \in Leavers : step[d] = "counted" /\ unread[d]
LeaseLocked(m) == \E d \in Leavers : step[d] = "counted" /\ held[d] /\ leaves[d] = m
Taken == {leaves[d] : d \in {d \in Leavers : step[d] \in {"deleted", "counted"}}}

-----------------------------------------------------------------------------
\* Senders

Begin(s) ==
    /\ tx[s] = "new"
    /\ \A t \in Senders : t < s => tx[t] # "new"
    /\ tx' = [tx EXCEPT ![s] = "open"]
    /\ UNCHANGED <<source, place, reads, leased, copied, own, acked, owed, leaving, spent>>

Commit(s) ==
    /\ tx[s] = "open"
    /\ tx' = [tx EXCEPT ![s] = "committed"]
    /\ source' = source \cup {s}
    /\ owed' = owed \cup {s}
    /\ UNCHANGED <<place, reads, leased, copied, own, acked, leaving, spent>>

RollBack(s) ==
    /\ tx[s] = "open" /\ spent.rollbacks < Rollbacks
    /\ spent' = [spent EXCEPT !.rollbacks = @ + 1]
    /\ tx' = [tx EXCEPT ![s] = "rolled back"]
    /\ UNCHANGED <<source, place, reads, leased, copied, own, acked, owed, leaving>>

-----------------------------------------------------------------------------
\* Readers

Look(r) ==
    /\ ~looks[r]
    /\ LET snapshot == IF until = NoRound THEN Over ELSE until
           found == Ahead(snapshot)
       IN
       /\ found # {} \/ until # NoRound
       /\ saw' = [saw EXCEPT ![r] = number]
       /\ target' = [target EXCEPT ![r] = snapshot]
       /\ next' = [next EXCEPT ![r] = IF found = {} THEN None ELSE Min(found)]
    /\ looks' = [looks EXCEPT ![r] = TRUE]
    /\ UNCHANGED <<tx, source, place, leased, copied, own, acked, owed, leaving, spent>>

\* The compare-and-swap. A read that finds another position reads again.
Move(r) ==
    /\ looks[r]
    /\ ~Locked
    /\ looks' = [looks EXCEPT ![r] = FALSE]
    /\ saw' = [saw EXCEPT ![r] = 0]
    /\ target' = [target EXCEPT ![r] = {}]
    /\ next' = [next EXCEPT ![r] = None]
    /\ IF saw[r] # number /\ Bug # "a move does not compare"
       THEN UNCHANGED <<place, leased>>
       ELSE LET ends == next[r] = None \/ Bug = "a round ends with its first read" IN
            /\ number' = number + 1
            /\ since' = IF ends THEN target[r] ELSE since
            /\ until' = IF ends THEN NoRound ELSE target[r]
            /\ after' = IF Bug = "the order is that of ids" THEN Max({after, next[r]})
                        ELSE IF ends THEN None ELSE next[r]
            /\ leased' = leased \cup ({next[r]} \ {None})
    /\ UNCHANGED <<tx, source, copied, own, acked, owed, leaving, spent>>

ReadOwn(m) ==
    /\ m \in own
    /\ own' = own \ {m}
    /\ leased' = leased \cup {m}
    /\ copied' = copied \cup {m}
    /\ UNCHANGED <<tx, source, place, reads, acked, owed, leaving, spent>>

Ack(m) ==
    /\ m \in leased /\ ~LeaseLocked(m)
    /\ leased' = leased \ {m}
    /\ copied' = copied \ {m}
    /\ acked' = acked \cup {m}
    /\ owed' = owed \ {m}
    /\ UNCHANGED <<tx, source, place, reads, own, leaving, spent>>

\* The message becomes the subscription's own, if the source still has it.
Expire(m) ==
    /\ m \in leased /\ ~LeaseLocked(m) /\ spent.expiries < Expiries
    /\ spent' = [spent EXCEPT !.expiries = @ + 1]
    /\ leased' = leased \ {m}
    /\ copied' = copied \ {m}
    /\ own' = own \cup (IF m \in source \cup copied THEN {m} ELSE {})
    /\ UNCHANGED <<tx, source, place, reads, acked, owed, leaving>>

-----------------------------------------------------------------------------
\* Messages that leave the source

Delete(d) ==
    /\ step[d] = "new"
    /\ \E m \in source \ Taken :
        /\ leaves' = [leaves EXCEPT ![d] = m]
        /\ step' = [step EXCEPT ![d] = "deleted"]
    /\ UNCHANGED <<tx, source, place, reads, leased, copied, own, acked, owed, unread, held, spent>>

\* The trigger. It has the lock that keeps seeks out; it waits for the position's, if its message is
\* unread, and otherwise for that of the lease.
Count(d) ==
    /\ step[d] = "deleted"
    /\ LET m == leaves[d]
           is_unread == ~Passed(m)
       IN
       /\ is_unread => ~Locked
       /\ unread' = [unread EXCEPT ![d] = is_unread]
       /\ held' = [held EXCEPT ![d] = m \in leased \ copied /\ Bug # "leases are not looked at"]
    /\ step' = [step EXCEPT ![d] = "counted"]
    /\ UNCHANGED <<tx, source, place, reads, leased, copied, own, acked, owed, leaves, spent>>

Leave(d) ==
    /\ step[d] = "counted"
    /\ step' = [step EXCEPT ![d] = "over"]
    /\ source' = source \ {leaves[d]}
    /\ own' = own \cup (IF unread[d] THEN {leaves[d]} ELSE {})
    /\ copied' = copied \cup (IF held[d] THEN {leaves[d]} ELSE {})
    /\ number' = IF unread[d] /\ Bug # "a copy does not move the position" THEN number + 1 ELSE number
    /\ UNCHANGED <<tx, since, until, after, reads, leased, acked, owed, leaves, unread, held, spent>>

Stay(d) ==
    /\ step[d] = "counted" /\ spent.rollbacks < Rollbacks
    /\ spent' = [spent EXCEPT !.rollbacks = @ + 1]
    /\ step' = [step EXCEPT ![d] = "over"]
    /\ UNCHANGED <<tx, source, place, reads, leased, copied, own, acked, owed, leaves, unread, held>>

-----------------------------------------------------------------------------
\* To the first message. What the source has comes again, and once.
Seek ==
    /\ spent.seeks < Seeks
    /\ Bug # "a seek does not wait" => \A d \in Leavers : step[d] # "counted"
    /\ spent' = [spent EXCEPT !.seeks = @ + 1]
    /\ number' = number + 1
    /\ since' = {} /\ until' = NoRound /\ after' = None
    /\ IF Bug = "a seek takes nothing back" THEN UNCHANGED <<leased, copied, own>>
       ELSE /\ leased' = leased \ source
            /\ copied' = copied \ source
            /\ own' = own \ source
    /\ acked' = acked \ source
    /\ owed' = owed \cup source
    /\ UNCHANGED <<tx, source, reads, leaving>>

Next ==
    \/ \E s \in Senders : Begin(s) \/ Commit(s) \/ RollBack(s)
    \/ \E r \in Readers : Look(r) \/ Move(r)
    \/ \E m \in Senders : ReadOwn(m) \/ Ack(m) \/ Expire(m)
    \/ \E d \in Leavers : Delete(d) \/ Count(d) \/ Leave(d) \/ Stay(d)
    \/ Seek

Spec ==
    /\ Init /\ [][Next]_vars
    /\ \A s \in Senders : WF_vars(Commit(s))
    /\ \A r \in Readers : WF_vars(Look(r)) /\ WF_vars(Move(r))
    /\ \A m \in Senders : WF_vars(ReadOwn(m)) /\ WF_vars(Ack(m))
    /\ \A d \in Leavers : WF_vars(Count(d)) /\ WF_vars(Leave(d))

-----------------------------------------------------------------------------
\* What is owed is in flight, the subscription's own, or before the position in the source.
Kept == \A m \in owed : m \in leased \cup own \/ (m \in source /\ ~Passed(m))

\* A message has one place: it is not delivered after its ack, nor to two at once.
Once ==
    /\ leased \cap own = {}
    /\ acked \cap (leased \cup own) = {}
    /\ \A m \in source : m \in acked \cup leased \cup own => Passed(m)

\* All that is committed is acknowledged at last.
Ends == <>[](owed = {})
=============================================================================
