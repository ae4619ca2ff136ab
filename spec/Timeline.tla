------------------------------ MODULE Timeline ------------------------------
(***************************************************************************)
(* Values: configurations and their quorums, logs and their term           *)
(* histories, the point where two logs diverge.  No variables, no actions. *)
(*                                                                         *)
(* A log is a sequence of terms: an entry is named by (term, LSN), and so  *)
(* its content does not matter as long as a term has one leader.           *)
(* A history lists where each term starts: entries after `start`, up to    *)
(* the next start, are of that term.  A history may run ahead of its log;  *)
(* whoever reads it cuts it to the log's end first.                        *)
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

FirstHistory == <<[term |-> 0, start |-> 0]>>

Cut(history, end) == SelectSeq(history, LAMBDA one : one.start <= end)

LastLogTerm(history, end) == LET cut == Cut(history, end) IN cut[Len(cut)].term

Position(copy) == <<LastLogTerm(copy.history, Len(copy.log)), Len(copy.log)>>

AtLeast(one, other) == one[1] > other[1] \/ (one[1] = other[1] /\ one[2] >= other[2])

HigherPosition(one, other) == IF AtLeast(one, other) THEN one ELSE other

(* The term that the history says entry `lsn` has. *)
TermAt(history, lsn) ==
    LET before == SelectSeq(history, LAMBDA one : one.start < lsn)
    IN  before[Len(before)].term

(* How many terms two histories share, counted from their beginnings. *)
SharedTerms(one, other) ==
    LET Same(count) == \A i \in 1..count : one[i].term = other[i].term
        counts == {count \in 0..Min(Len(one), Len(other)) : Same(count)}
    IN  CHOOSE count \in counts : \A less \in counts : less <= count

(* Where the i-th term of a history ends, for a log that ends at `end`. *)
TermEnd(history, i, end) == IF i = Len(history) THEN end ELSE Min(history[i + 1].start, end)

(* The LSN up to which a copy agrees with its leader; the copy is cut there. *)
Divergence(leader, copy) ==
    LET end     == Len(copy.log)
        history == Cut(copy.history, end)
        shared  == SharedTerms(leader.history, history)
    IN  IF shared = Len(leader.history)
        THEN end
        ELSE Min(TermEnd(leader.history, shared, Len(leader.log)),
                 TermEnd(history, shared, end))
=============================================================================
