-------------------------------- MODULE Wake --------------------------------
\* How consumers wake (ddl/wake.sql): the sequence that says whether one sleeps, sends in transactions
\* that commit late or roll back, notifications, and polls.
\*
\* A change of the sequence is seen at once, and stays if its transaction rolls back. A notification
\* comes with the commit, to every consumer. Any time may pass between two steps.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Senders,    \* each sends one message, in a transaction of its own
    Consumers,
    Rollbacks, Deaths, \* the most of each
    Bug         \* "none" is ours; the others are planted bugs

VARIABLES
    \* Of each sender
    at,         \* "new", "begun" (its transaction has an id), "sent" (the trigger ran), "over"
    notifies,   \* whether its commit notifies
    throttled,  \* whether it relies on the notification of a sender before it
    unread,     \* messages that are committed and that no consumer has read
    \* The sequence
    mark,       \* "asleep"; "told": a send has notified, another may; "silent": none may
    last,       \* the sender that last notified; NoSender while "asleep"
    stale,      \* whether 20 ms have passed since a send last notified
    owed,       \* whether the notification of a send was rolled back, since "asleep"
    \* Of each consumer
    state,      \* "reads", "flags", "looks", "sleeps", "dead"
    heard,      \* whose notifications came since it last fell asleep
    notice,     \* whose notifications wait for it
    doubt,      \* the senders that were at work when it fell asleep: it polls soon, while it has seen
                \* that one still is
    first,      \* whether it has not fallen asleep yet
    lone,       \* senders that only a consumer remembered which died since
    rolled      \* how many transactions rolled back

vars == <<at, notifies, throttled, unread, mark, last, stale, owed, state, heard, notice, doubt,
          first, lone, rolled>>
sends == <<at, notifies, throttled>>
sequence == <<mark, last, stale, owed>>
consumers == <<state, heard, notice, doubt, first, lone>>

NoSender == 0

Init ==
    /\ at = [s \in Senders |-> "new"]
    /\ notifies = [s \in Senders |-> FALSE]
    /\ throttled = [s \in Senders |-> FALSE]
    /\ unread = {}
    /\ mark \in {"asleep", "silent"}
    /\ last = NoSender
    /\ stale = TRUE
    /\ owed = FALSE
    /\ state = [c \in Consumers |-> "reads"]
    /\ heard = [c \in Consumers |-> {}]
    /\ notice = [c \in Consumers |-> {}]
    /\ doubt = [c \in Consumers |-> {}]
    /\ first = [c \in Consumers |-> TRUE]
    /\ lone = {}
    /\ rolled = 0

AtWork == {s \in Senders : at[s] \in {"begun", "sent"}}
Alive == {c \in Consumers : state[c] # "dead"}

-----------------------------------------------------------------------------
\* Senders

Begin(s) ==
    /\ at[s] = "new"
    /\ at' = [at EXCEPT ![s] = "begun"]
    /\ UNCHANGED <<notifies, throttled, unread, sequence, consumers, rolled>>

\* pgqueue_wake. Several notifications may follow the first; here it is one.
Send(s) ==
    /\ at[s] = "begun"
    /\ at' = [at EXCEPT ![s] = "sent"]
    /\ LET again == mark = "told" /\ stale
           tells == mark = "asleep" \/ (again /\ Bug # "nothing follows the first notification")
       IN
       /\ notifies' = [notifies EXCEPT ![s] = tells /\ Bug # "a send changes the sequence only"]
       /\ throttled' = [throttled EXCEPT ![s] = mark # "asleep" /\ ~again]
       /\ mark' = IF ~tells THEN mark ELSE IF mark = "asleep" THEN "told" ELSE "silent"
       /\ last' = IF tells THEN s ELSE last
       /\ stale' = (stale /\ ~tells)
    /\ UNCHANGED <<unread, owed, consumers, rolled>>

Commit(s) ==
    /\ at[s] = "sent"
    /\ at' = [at EXCEPT ![s] = "over"]
    /\ unread' = unread \cup {s}
    /\ notice' = [c \in Consumers |-> notice[c] \cup (IF notifies[s] THEN {s} ELSE {})]
    /\ notifies' = [notifies EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<throttled, sequence, state, heard, doubt, first, lone, rolled>>

RollBack(s) ==
    /\ s \in AtWork /\ rolled < Rollbacks
    /\ rolled' = rolled + 1
    /\ at' = [at EXCEPT ![s] = "over"]
    /\ owed' = (owed \/ notifies[s])
    /\ notifies' = [notifies EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<throttled, unread, mark, last, stale, consumers>>

TimePasses ==
    /\ stale' = TRUE
    /\ UNCHANGED <<sends, unread, mark, last, owed, consumers, rolled>>

-----------------------------------------------------------------------------
\* Consumers

Read(c) ==
    /\ state[c] = "reads"
    /\ unread' = {}
    /\ heard' = [heard EXCEPT ![c] = @ \cup notice[c]]
    /\ notice' = [notice EXCEPT ![c] = {}]
    /\ state' = [state EXCEPT ![c] = "flags"]
    /\ UNCHANGED <<sends, sequence, doubt, first, lone, rolled>>

\* The first half of pgqueue_fall_asleep.
Flag(c) ==
    /\ state[c] = "flags"
    /\ state' = [state EXCEPT ![c] = "looks"]
    /\ LET changes ==
           /\ mark # "asleep"
           /\ first[c] \/ last \in heard[c] \/ stale
           /\ Bug # "no consumer says that it sleeps"
       IN
       /\ doubt' = [doubt EXCEPT ![c] =
                         IF /\ \/ changes
                               \/ first[c] /\ Bug # "a consumer that begins does not know them"
                            /\ Bug # "senders at work are forgotten"
                         THEN AtWork ELSE @]
       /\ mark' = IF changes THEN "asleep" ELSE mark
       /\ last' = IF changes THEN NoSender ELSE last
       /\ owed' = (owed /\ ~changes)
    /\ heard' = [heard EXCEPT ![c] = {}]
    /\ first' = [first EXCEPT ![c] = FALSE]
    /\ lone' = IF first[c] THEN lone \ AtWork ELSE lone
    /\ UNCHANGED <<sends, unread, stale, notice, rolled>>

\* The second half, in a snapshot of its own.
Look(c) ==
    /\ state[c] = "looks"
    /\ state' = [state EXCEPT ![c] =
                     IF unread = {} \/ Bug = "it does not look" THEN "sleeps" ELSE "reads"]
    /\ doubt' = [doubt EXCEPT ![c] = @ \cap AtWork]
    /\ UNCHANGED <<sends, unread, sequence, heard, notice, first, lone, rolled>>

Wake(c) ==
    /\ state[c] = "sleeps" /\ notice[c] # {}
    /\ state' = [state EXCEPT ![c] = "reads"]
    /\ UNCHANGED <<sends, unread, sequence, heard, notice, doubt, first, lone, rolled>>

\* In doubt, soon; else after 20 ms, and after max_fetch_interval.
Poll(c) ==
    /\ state[c] = "sleeps" /\ Bug # "nobody polls"
    /\ state' = [state EXCEPT ![c] = "reads"]
    /\ UNCHANGED <<sends, unread, sequence, heard, notice, doubt, first, lone, rolled>>

Die(c) ==
    /\ state[c] # "dead" /\ Cardinality(Consumers \ Alive) < Deaths
    /\ state' = [state EXCEPT ![c] = "dead"]
    /\ lone' = lone \cup doubt[c]
    /\ UNCHANGED <<sends, unread, sequence, heard, notice, doubt, first, rolled>>

Next ==
    \/ \E s \in Senders : Begin(s) \/ Send(s) \/ Commit(s) \/ RollBack(s)
    \/ \E c \in Consumers : Read(c) \/ Flag(c) \/ Look(c) \/ Wake(c) \/ Poll(c) \/ Die(c)
    \/ TimePasses

\* A transaction ends, and a consumer that lives goes on.
Fairness ==
    /\ \A s \in Senders : WF_vars(Send(s)) /\ WF_vars(Commit(s))
    /\ \A c \in Consumers : WF_vars(Read(c) \/ Flag(c) \/ Look(c) \/ Wake(c) \/ Poll(c))

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------

\* A message that no consumer is about to find, although none is busy.
Overlooked ==
    /\ Alive # {}
    /\ \A c \in Alive : state[c] = "sleeps" /\ notice[c] = {} /\ doubt[c] = {}

\* No message is overlooked, except by the death of the consumer that knew of its sender; and except
\* while it relies on a notification that is still to come or was rolled back: that of a send less
\* than 20 ms before its own.
Heard ==
    Overlooked => \A s \in unread :
        s \in lone \/ (throttled[s] /\ (owed \/ \E n \in Senders : notifies[n]))

\* Every message is read at last.
Ends == \A s \in Senders : s \in unread ~> s \notin unread

=============================================================================
