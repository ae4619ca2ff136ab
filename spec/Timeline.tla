------------------------------ MODULE Timeline ------------------------------
(***************************************************************************)
(* Values: configurations and their quorums, logs and their term           *)
(* histories, the point where two logs diverge.  No variables, no actions. *)
(*                                                                         *)
(* A log is a sequence of terms: an entry is named by (term, LSN), and so  *)
(* its content does not matter as long as a term has one leader.           *)
(* A log's history lists the first LSN of each of its terms.               *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

Min(x, y) == IF x < y THEN x ELSE y
Max(x, y) == IF x > y THEN x ELSE y

(* ---- Quorums: one function of one member set, used once for each set ---- *)

HasMajority(members, agreeing) ==
    2 * Cardinality(members \cap agreeing) > Cardinality(members)

(* ---- Configurations; an empty new_sk_set stands for none ---- *)

Single(generation, set) == [generation |-> generation, sk_set |-> set, new_sk_set |-> {}]
Joint(generation, set, newSet) ==
    [generation |-> generation, sk_set |-> set, new_sk_set |-> newSet]

NoConf == Single(0, {})

IsJoint(conf) == conf.new_sk_set # {}
Members(conf) == conf.sk_set \cup conf.new_sk_set
Agreed(conf, agreeing) ==
    /\ HasMajority(conf.sk_set, agreeing)
    /\ IsJoint(conf) => HasMajority(conf.new_sk_set, agreeing)

(* ---- Logs and histories ---- *)

LastLogTerm(log) == IF log = <<>> THEN 0 ELSE log[Len(log)]

Position(log) == <<LastLogTerm(log), Len(log)>>

AtLeast(one, other) == one[1] > other[1] \/ (one[1] = other[1] /\ one[2] >= other[2])

HigherPosition(one, other) == IF AtLeast(one, other) THEN one ELSE other

(* The LSNs at which a log's terms start, in order. *)
Starts(log) == {lsn \in 1..Len(log) : lsn = 1 \/ log[lsn - 1] # log[lsn]}

History(log) ==
    [i \in 1..Cardinality(Starts(log)) |->
        LET start == CHOOSE lsn \in Starts(log) :
                        Cardinality({less \in Starts(log) : less <= lsn}) = i
        IN  [term |-> log[start], start |-> start]]

(* How many terms two histories share, counted from their beginnings. *)
SharedTerms(one, other) ==
    LET Same(count) == \A i \in 1..count : one[i] = other[i]
        counts == {count \in 0..Min(Len(one), Len(other)) : Same(count)}
    IN  CHOOSE count \in counts : \A less \in counts : less <= count

(* The last LSN of the i-th term of a history, for a log that ends at `end`. *)
TermEnd(history, i, end) == IF i = Len(history) THEN end ELSE history[i + 1].start - 1

(* The LSN up to which a copy agrees with its leader's log, found from the  *)
(* histories alone; the copy is cut there.                                   *)
Divergence(leaderLog, log) ==
    LET ours   == History(leaderLog)
        theirs == History(log)
        shared == SharedTerms(ours, theirs)
    IN  IF shared = 0
        THEN 0
        ELSE Min(TermEnd(ours, shared, Len(leaderLog)), TermEnd(theirs, shared, Len(log)))

(* What Divergence is to find: the length of the common beginning. *)
CommonLength(one, other) ==
    LET Same(count) == SubSeq(one, 1, count) = SubSeq(other, 1, count)
        counts == {count \in 0..Min(Len(one), Len(other)) : Same(count)}
    IN  CHOOSE count \in counts : \A less \in counts : less <= count
=============================================================================
