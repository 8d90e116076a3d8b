------------------------------- MODULE Leases -------------------------------
\* The life of messages without a group: sent, read, expired, acked, given back, tried again,
\* dead-lettered, redriven; and the read from the start that finds what lies before a position.
\*
\* A delivery has a receipt: the message, its count of deliveries, and the moment. Each receipt that
\* was ever given out may be used at any time, by a holder that is late too. Statements are atomic.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Messages,       \* 1..n, in the order of their ids
    Readers,
    MaxDeliveries,  \* of a message, until it is dead-lettered
    Reads,          \* behind the position, until a read comes from the start
    Expiries, Releases, Retries, Redrives, \* the most of each in a behaviour
    Fence,          \* "both" is ours; "count", "moment" and "none" are planted bugs
    Sweeps          \* TRUE is ours; FALSE is a planted bug

VARIABLES
    place,      \* of each message: where it is
    due,        \* whether a deferred one is due
    processing, \* whether a deferred one is leased, and neither released nor to be tried again
    count,      \* its deliveries since it was sent or redriven
    moment,     \* of its last delivery
    receipts,   \* all that were given out
    notes,      \* receipts of exhausted messages, to be dead-lettered by the reader that found them
    before,     \* of each reader: readable messages that lie before its position
    since,      \* of each reader: reads since the last one from the start
    spent,      \* of each budget
    over,       \* for the invariant: receipts that may settle nothing any more
    wrong       \* for the invariant: whether one of those did

vars == <<place, due, processing, count, moment, receipts, notes, before, since, spent, over, wrong>>
row == <<place, due, processing, count, moment>>

Places == {"unsent", "rolled back", "ready", "deferred", "archived", "dead"}
Receipts == [id : Messages, count : Nat, moment : Nat]
Budgets == [expiries |-> Expiries, releases |-> Releases, retries |-> Retries, redrives |-> Redrives]

Init ==
    /\ place = [m \in Messages |-> "unsent"]
    /\ due = [m \in Messages |-> FALSE]
    /\ processing = [m \in Messages |-> FALSE]
    /\ count = [m \in Messages |-> 0]
    /\ moment = [m \in Messages |-> 0]
    /\ receipts = {}
    /\ notes = {}
    /\ before = [r \in Readers |-> {}]
    /\ since = [r \in Readers |-> 0]
    /\ spent = [b \in DOMAIN Budgets |-> 0]
    /\ over = {}
    /\ wrong = FALSE

Spend(budget) ==
    /\ spent[budget] < Budgets[budget]
    /\ spent' = [spent EXCEPT ![budget] = @ + 1]

\* A message that becomes readable may lie before the position of any reader: its transaction committed
\* late, or its id is lower than what was read meanwhile.
Appears(m) == \E hidden \in SUBSET Readers :
    before' = [r \in Readers |-> IF r \in hidden THEN before[r] \cup {m} ELSE before[r] \ {m}]

Readable(m) == place[m] = "ready" \/ (place[m] = "deferred" /\ due[m])

\* Transactions commit in any order of their ids, or roll back.
Send(m) ==
    /\ place[m] = "unsent"
    /\ \/ place' = [place EXCEPT ![m] = "ready"] /\ Appears(m)
       \/ place' = [place EXCEPT ![m] = "rolled back"] /\ UNCHANGED before
    /\ UNCHANGED <<due, processing, count, moment, receipts, notes, since, spent, over, wrong>>

Of(m) == {r \in receipts : r.id = m}

Deliver(m) ==
    IF count[m] >= MaxDeliveries
    THEN /\ notes' = notes \cup {[id |-> m, count |-> count[m], moment |-> moment[m]]}
         /\ UNCHANGED <<row, receipts, over>>
    ELSE LET receipt == [id |-> m, count |-> count[m] + 1, moment |-> moment[m] + 1] IN
         /\ place' = [place EXCEPT ![m] = "deferred"]
         /\ due' = [due EXCEPT ![m] = FALSE]
         /\ processing' = [processing EXCEPT ![m] = TRUE]
         /\ count' = [count EXCEPT ![m] = receipt.count]
         /\ moment' = [moment EXCEPT ![m] = receipt.moment]
         /\ receipts' = receipts \cup {receipt}
         /\ over' = over \cup Of(m)
         /\ UNCHANGED notes

\* Behind the position: one of ours, or one of an endless backlog that lies behind all of ours.
ReadBehindPosition(r) ==
    /\ since[r] < Reads \/ ~Sweeps
    /\ since' = [since EXCEPT ![r] = IF Sweeps THEN @ + 1 ELSE 0]
    /\ \/ \E m \in Messages : Readable(m) /\ m \notin before[r] /\ Deliver(m)
       \/ UNCHANGED <<row, receipts, notes, over>>
    /\ UNCHANGED <<before, spent, wrong>>

\* From the start: the first message that is due, or else the first that is ready.
ReadFromStart(r) ==
    /\ Sweeps /\ since[r] = Reads
    /\ since' = [since EXCEPT ![r] = 0]
    /\ LET waiting == {m \in Messages : place[m] = "deferred" /\ due[m]}
           ready == {m \in Messages : place[m] = "ready"}
       IN CASE waiting # {} -> \E m \in waiting : Deliver(m)
            [] waiting = {} /\ ready # {} ->
                Deliver(CHOOSE m \in ready : \A other \in ready : m <= other)
            [] OTHER -> UNCHANGED <<row, receipts, notes, over>>
    /\ UNCHANGED <<before, spent, wrong>>

Read(r) == ReadBehindPosition(r) \/ ReadFromStart(r)

Expire(m) ==
    /\ place[m] = "deferred" /\ processing[m] /\ ~due[m]
    /\ Spend("expiries")
    /\ due' = [due EXCEPT ![m] = TRUE]
    /\ Appears(m)
    /\ UNCHANGED <<place, processing, count, moment, receipts, notes, since, over, wrong>>

\* The comparison of a settling statement.
Matches(r) ==
    /\ place[r.id] = "deferred"
    /\ Fence \in {"count", "both"} => r.count = count[r.id]
    /\ Fence \in {"moment", "both"} => r.moment = moment[r.id]

Judge(r) == wrong' = (wrong \/ r \in over)

Ack(r) ==
    /\ Matches(r)
    /\ Judge(r)
    /\ place' = [place EXCEPT ![r.id] = "archived"]
    /\ UNCHANGED <<due, processing, count, moment, receipts, notes, before, since, spent, over>>

\* Given back unstarted: the delivery is not counted, and the receipt is worth nothing any more.
Release(r) ==
    /\ Matches(r) /\ processing[r.id] /\ count[r.id] > 0
    /\ Spend("releases")
    /\ Judge(r)
    /\ count' = [count EXCEPT ![r.id] = @ - 1]
    /\ due' = [due EXCEPT ![r.id] = TRUE]
    /\ processing' = [processing EXCEPT ![r.id] = FALSE]
    /\ over' = over \cup {r}
    /\ Appears(r.id)
    /\ UNCHANGED <<place, moment, receipts, notes, since>>

\* To be tried again: due after its delay, which has passed here.
Retry(r) ==
    /\ Matches(r) /\ processing[r.id]
    /\ Spend("retries")
    /\ Judge(r)
    /\ due' = [due EXCEPT ![r.id] = TRUE]
    /\ processing' = [processing EXCEPT ![r.id] = FALSE]
    /\ Appears(r.id)
    /\ UNCHANGED <<place, count, moment, receipts, notes, since, over>>

Fail(r) ==
    /\ Matches(r)
    /\ Judge(r)
    /\ place' = [place EXCEPT ![r.id] = "dead"]
    /\ UNCHANGED <<due, processing, count, moment, receipts, notes, before, since, spent, over>>

\* The reader that found a message exhausted dead-letters it, fenced as others are.
EndExhausted(r) ==
    /\ r \in notes
    /\ notes' = notes \ {r}
    /\ place' = IF Matches(r) THEN [place EXCEPT ![r.id] = "dead"] ELSE place
    /\ UNCHANGED <<due, processing, count, moment, receipts, before, since, spent, over, wrong>>

\* The row is made anew: its deliveries are counted from the start.
Redrive(m) ==
    /\ place[m] = "dead"
    /\ Spend("redrives")
    /\ place' = [place EXCEPT ![m] = "ready"]
    /\ count' = [count EXCEPT ![m] = 0]
    /\ due' = [due EXCEPT ![m] = FALSE]
    /\ processing' = [processing EXCEPT ![m] = FALSE]
    /\ over' = over \cup Of(m)
    /\ Appears(m)
    /\ UNCHANGED <<moment, receipts, notes, since, wrong>>

Settle(r) == Ack(r) \/ Release(r) \/ Retry(r) \/ Fail(r)

Next ==
    \/ \E m \in Messages : Send(m) \/ Expire(m) \/ Redrive(m)
    \/ \E r \in Readers : Read(r)
    \/ \E r \in receipts : Settle(r)
    \/ \E r \in notes : EndExhausted(r)

\* Readers go on reading; a handler comes to an end, and a lease that did not run out is settled.
Fairness ==
    /\ \A r \in Readers : WF_vars(Read(r))
    /\ \A m \in Messages :
        /\ WF_vars(\E r \in Of(m) : r.moment = moment[m] /\ processing[m] /\ (Ack(r) \/ Fail(r)))
        /\ WF_vars(\E r \in notes : r.id = m /\ EndExhausted(r))

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------

TypeOK ==
    /\ place \in [Messages -> Places]
    /\ receipts \subseteq Receipts /\ over \subseteq receipts
    /\ \A m \in Messages : count[m] \in 0..MaxDeliveries

\* A settlement succeeds by the receipt of the last delivery only, and by none that was given back.
Fenced == ~wrong

\* Two deliveries have different receipts: each has a moment of its own.
DistinctReceipts ==
    \A m \in Messages : Cardinality({r.moment : r \in Of(m)}) = Cardinality(Of(m))

\* Archived messages stay so; rolled back ones are never seen.
Final ==
    [][\A m \in Messages : place[m] \in {"archived", "rolled back"} => place'[m] = place[m]]_vars

\* Nothing is lost or starved: a message that was sent comes to its end, a late one too.
Ends == \A m \in Messages : place[m] \in {"ready", "deferred"} ~> place[m] \in {"archived", "dead"}

=============================================================================
