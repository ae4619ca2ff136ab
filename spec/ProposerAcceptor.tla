-------------------------- MODULE ProposerAcceptor --------------------------
(***************************************************************************)
(* Proposers write a timeline to acceptors (safekeepers).  Every action    *)
(* checks generations, so that Migration can change the configuration      *)
(* beneath it; alone, with one configuration, this is the static protocol. *)
(*                                                                         *)
(* A message and its answer are one step.  What may come late is modelled  *)
(* where it matters: votes and acknowledgements are remembered by the      *)
(* proposer after the acceptor has moved on to other terms and             *)
(* configurations, and a leader may count any quorum of the votes given.   *)
(*                                                                         *)
(* An entry is committed from the step on in which the acknowledgements    *)
(* suffice, whether or not the leader looks: nothing later may undo it.    *)
(***************************************************************************)
EXTENDS Timeline

CONSTANTS Acceptors, Proposers, InitialSet, MaxTerm, MaxLsn

(* Acceptors that a model treats alike: TLC need not tell them apart. *)
CONSTANT Alike

VARIABLES
    acc,        \* acceptor -> what it has on disk
    prop,       \* proposer -> what it has in memory
    committed,  \* every [lsn, term] ever acknowledged to a client
    won         \* term -> how often it has been won; 2 stands for "more than once"

protocolVars == <<acc, prop, committed, won>>

(* ---- States ---- *)

Terms == 1..MaxTerm

Copy(conf, term, log) == [here |-> TRUE, conf |-> conf, term |-> term, log |-> log]

(* No timeline here.  What remains of a deleted one is the generation of   *)
(* its deletion, durably.                                                  *)
Absent(conf) == [here |-> FALSE, conf |-> conf, term |-> 0, log |-> <<>>]

Exists(a) == acc[a].here

Proposer(state, conf, term) ==
    [state |-> state, conf |-> conf, term |-> term,
     votes |-> <<>>, log |-> <<>>, acked |-> <<>>]

FirstConf == Single(1, InitialSet)

InitProtocol ==
    /\ acc = [a \in Acceptors |-> IF a \in InitialSet
                                  THEN Copy(FirstConf, 0, <<>>)
                                  ELSE Absent(NoConf)]
    /\ prop = [p \in Proposers |-> Proposer("down", NoConf, 0)]
    /\ committed = {}
    /\ won = [t \in Terms |-> 0]

(* An acceptor carries out a proposer's request only in the same           *)
(* generation, and only as a member.                                       *)
Serves(a, p) ==
    /\ Exists(a)
    /\ acc[a].conf = prop[p].conf
    /\ a \in Members(prop[p].conf)

(* ---- Election ---- *)

(* A proposer starts anew, and forgets what it was.  Its configuration and *)
(* the term that it will outbid come from greetings: a majority answers in *)
(* fact, here any two answers may decide.                                  *)
RestartProposer(p, a, b) ==
    /\ Exists(a) /\ Exists(b)
    /\ acc[b].term < MaxTerm
    /\ prop' = [prop EXCEPT ![p] = Proposer("campaign", acc[a].conf, acc[b].term + 1)]
    /\ UNCHANGED <<acc, committed, won>>

Vote(p, a) ==
    /\ prop[p].state = "campaign"
    /\ Serves(a, p)
    /\ acc[a].term < prop[p].term
    /\ acc' = [acc EXCEPT ![a].term = prop[p].term]
    /\ prop' = [prop EXCEPT ![p].votes = (a :> acc[a].log) @@ @]
    /\ UNCHANGED <<committed, won>>

(* The leader goes on from the highest log among the votes that it counts. *)
BecomeLeader(p, voters) ==
    /\ prop[p].state = "campaign"
    /\ voters \subseteq DOMAIN prop[p].votes
    /\ Agreed(prop[p].conf, voters)
    /\ LET logs == {prop[p].votes[a] : a \in voters}
           best == CHOOSE log \in logs :
                        \A other \in logs : AtLeast(Position(log), Position(other))
       IN  prop' = [prop EXCEPT ![p].state = "leader", ![p].votes = <<>>, ![p].log = best]
    /\ won' = [won EXCEPT ![prop[p].term] = Min(@ + 1, 2)]
    /\ UNCHANGED <<acc, committed>>

(* ---- Replication ---- *)

(* The highest LSN that a majority of each set has acknowledged, if its     *)
(* entry is of the leader's own term: only such an entry commits, and all   *)
(* before it (Raft, section 5.4.2).                                         *)
CommitLsn(leader) ==
    LET Reached(lsn) == {a \in DOMAIN leader.acked : leader.acked[a] >= lsn}
        agreed == {lsn \in 1..Len(leader.log) :
                    leader.log[lsn] = leader.term /\ Agreed(leader.conf, Reached(lsn))}
    IN  IF agreed = {} THEN 0 ELSE CHOOSE lsn \in agreed : \A less \in agreed : less <= lsn

CommitEntries(leader) ==
    committed' = committed \cup
        {[lsn |-> lsn, term |-> leader.log[lsn]] : lsn \in 1..CommitLsn(leader)}

Acknowledge(p, a, end) ==
    LET leader == [prop[p] EXCEPT !.acked = (a :> end) @@ @]
    IN  /\ prop' = [prop EXCEPT ![p] = leader]
        /\ CommitEntries(leader)

(* The acceptor hears of the leader and cuts its log where it diverges.     *)
Elected(p, a) ==
    /\ prop[p].state = "leader"
    /\ Serves(a, p)
    /\ acc[a].term <= prop[p].term
    /\ LET end == Divergence(prop[p].log, acc[a].log)
       IN  /\ acc' = [acc EXCEPT ![a].term = prop[p].term,
                                 ![a].log = SubSeq(@, 1, end)]
           /\ Acknowledge(p, a, end)
    /\ UNCHANGED won

NewEntry(p) ==
    /\ prop[p].state = "leader"
    /\ Len(prop[p].log) < MaxLsn
    /\ prop' = [prop EXCEPT ![p].log = Append(@, prop[p].term)]
    /\ UNCHANGED <<acc, committed, won>>

(* After Elected of the same leader, and on top of the entry that the       *)
(* leader has there: without gap or overlap.                                *)
AppendEntry(p, a) ==
    /\ prop[p].state = "leader"
    /\ Serves(a, p)
    /\ acc[a].term = prop[p].term
    /\ a \in DOMAIN prop[p].acked
    /\ Len(acc[a].log) < Len(prop[p].log)
    /\ LastLogTerm(acc[a].log) = LastLogTerm(SubSeq(prop[p].log, 1, Len(acc[a].log)))
    /\ LET lsn == Len(acc[a].log) + 1
       IN  /\ acc' = [acc EXCEPT ![a].log = Append(@, prop[p].log[lsn])]
           /\ Acknowledge(p, a, lsn)
    /\ UNCHANGED won

NextProtocol ==
    \E p \in Proposers :
        \/ NewEntry(p)
        \/ \E voters \in SUBSET DOMAIN prop[p].votes : BecomeLeader(p, voters)
        \/ \E a \in Acceptors : Vote(p, a) \/ Elected(p, a) \/ AppendEntry(p, a)
        \/ \E a, b \in Acceptors : RestartProposer(p, a, b)

StaticSpec == InitProtocol /\ [][NextProtocol]_protocolVars

(* ---- What must hold ---- *)

TypeOk ==
    /\ \A a \in Acceptors :
        /\ acc[a].term \in 0..MaxTerm
        /\ Len(acc[a].log) <= MaxLsn
        /\ Members(acc[a].conf) \subseteq Acceptors
        /\ ~Exists(a) => acc[a] = Absent(acc[a].conf)
    /\ \A p \in Proposers :
        /\ prop[p].state \in {"down", "campaign", "leader"}
        /\ prop[p].term \in 0..MaxTerm
        /\ DOMAIN prop[p].votes \cup DOMAIN prop[p].acked \subseteq Members(prop[p].conf)
        /\ prop[p].state = "leader" => Len(prop[p].log) <= MaxLsn
    /\ won \in [Terms -> 0..2]

(* No term is won twice, ever, whatever the generation. *)
ElectionSafety == \A t \in Terms : won[t] <= 1

(* A committed entry is never replaced by another. *)
CommittedOnce ==
    \A one, other \in committed : one.lsn = other.lsn => one.term = other.term

Holds(a, entry) == entry.lsn <= Len(acc[a].log) /\ acc[a].log[entry.lsn] = entry.term

(* A committed entry is never lost: a majority of the set that counts has it. *)
CommittedHeldBy(set) ==
    \A entry \in committed : HasMajority(set, {a \in Acceptors : Holds(a, entry)})

(* Copies that have the same entry have the same log before it. *)
LogMatching ==
    \A a, b \in Acceptors : \A lsn \in 1..Min(Len(acc[a].log), Len(acc[b].log)) :
        acc[a].log[lsn] = acc[b].log[lsn] =>
            SubSeq(acc[a].log, 1, lsn) = SubSeq(acc[b].log, 1, lsn)

(* Terms never fall along a log, and never pass the term of who keeps it. *)
LogIsMonotonic ==
    \A a \in Acceptors : \A lsn \in 1..Len(acc[a].log) :
        /\ acc[a].log[lsn] <= acc[a].term
        /\ lsn > 1 => acc[a].log[lsn - 1] <= acc[a].log[lsn]

(* Histories tell where logs part. *)
DivergenceIsFound ==
    \A p \in Proposers : \A a \in Acceptors :
        (prop[p].state = "leader" /\ acc[a].term <= prop[p].term) =>
            Divergence(prop[p].log, acc[a].log) = CommonLength(prop[p].log, acc[a].log)

StaticLogSafety ==
    CommittedOnce /\ CommittedHeldBy(InitialSet) /\ LogMatching /\ LogIsMonotonic
                  /\ DivergenceIsFound

(* ---- What must be reachable, stated as its contrary ---- *)

NeverCommits == committed = {}

(* An entry that was replaced: two copies differ at one LSN. *)
NeverDiverges ==
    \A a, b \in Acceptors : \A lsn \in 1..Min(Len(acc[a].log), Len(acc[b].log)) :
        acc[a].log[lsn] = acc[b].log[lsn]

Symmetry == Permutations(Proposers) \cup Permutations(Alike)
=============================================================================
