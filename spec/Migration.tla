------------------------------ MODULE Migration ------------------------------
(***************************************************************************)
(* The change of a timeline's safekeepers while it is written: the nine    *)
(* steps of Neon RFC 035, several migrators at once, crashes of migrators  *)
(* at any step, abort, pull, term bump, exclusion with a tombstone.        *)
(*                                                                         *)
(* The CAS store holds `current`; `stored` remembers all that was ever in  *)
(* it, since any of them may still be on its way to a safekeeper.          *)
(* A migrator works from what it was told, not from what is true now.      *)
(***************************************************************************)
EXTENDS ProposerAcceptor

CONSTANTS Migrators, TargetSets, MaxGeneration, Conditions

(* What has to hold before a change may finish.  Each can be left out, to  *)
(* show what it is there for:                                              *)
(*   old_joined      a majority of the old set had the joint configuration *)
(*                   when it told its position and term                    *)
(*   new_caught_up   a majority of the new set has sync_position           *)
(*   new_term_bumped that same majority has sync_term                      *)
(*   new_joined      that same majority has the joint configuration        *)
(*   cas             the store still holds the joint configuration         *)
AllConditions == {"old_joined", "new_caught_up", "new_term_bumped", "new_joined", "cas"}

ASSUME Conditions \subseteq AllConditions

VARIABLES
    current,    \* the configuration in the CAS store
    stored,     \* every configuration that was ever in it
    mig         \* migrator -> what it has in memory

storeVars == <<current, stored>>
vars == <<acc, prop, committed, won, current, stored, mig>>

Idle == [conf |-> NoConf, heard |-> {}, position |-> <<0, 0>>, term |-> 0, confirmed |-> {}]

Init ==
    /\ InitProtocol
    /\ current = FirstConf
    /\ stored = {FirstConf}
    /\ mig = [m \in Migrators |-> Idle]

Put(conf) == current' = conf /\ stored' = stored \cup {conf}

(* ---- The store: steps 1 to 3, and abort.  Fetch and CAS are one step:   *)
(* a CAS that succeeds was made on what is current.                        *)

StartChange(set) ==
    /\ ~IsJoint(current)
    /\ set # current.sk_set
    /\ current.generation < MaxGeneration
    /\ Put(Joint(current.generation + 1, current.sk_set, set))
    /\ UNCHANGED <<acc, prop, committed, won, mig>>

AbortChange ==
    /\ IsJoint(current)
    /\ current.generation < MaxGeneration
    /\ Put(Single(current.generation + 1, current.sk_set))
    /\ UNCHANGED <<acc, prop, committed, won, mig>>

(* ---- Safekeepers ---- *)

(* From a migrator, a greeting, or a retry: any configuration ever stored. *)
SwitchConf(a, conf) ==
    /\ Exists(a)
    /\ conf.generation > acc[a].conf.generation
    /\ acc' = [acc EXCEPT ![a].conf = conf]
    /\ UNCHANGED <<prop, committed, won, current, stored, mig>>

(* Step 5.  Only where nothing is yet, and above the tombstone.  Any donor *)
(* will do for safety: step 7 looks again.                                 *)
Pull(a, donor, conf) ==
    /\ ~Exists(a) /\ Exists(donor)
    /\ IsJoint(conf)
    /\ a \in conf.new_sk_set
    /\ donor \in conf.sk_set
    /\ acc[a].conf.generation < conf.generation
    /\ acc[donor].conf.generation <= conf.generation
    /\ acc' = [acc EXCEPT ![a] = Copy(conf, acc[donor].term, acc[donor].log)]
    /\ UNCHANGED <<prop, committed, won, current, stored, mig>>

(* Removal under a generation; a tombstone with this generation stays.     *)
Exclude(a, conf) ==
    /\ Exists(a)
    /\ ~IsJoint(conf)
    /\ a \notin conf.sk_set
    /\ acc[a].conf.generation <= conf.generation
    /\ acc' = [acc EXCEPT ![a] = Absent(conf)]
    /\ UNCHANGED <<prop, committed, won, current, stored, mig>>

(* ---- Migrators ---- *)

Required(condition) == condition \in Conditions

(* Step 4: PUT the joint configuration to a member of the old set, and     *)
(* note its answer.  A migrator without memory takes up what it fetches.   *)
Collect(m, a) ==
    LET work == IF mig[m].conf = NoConf THEN [Idle EXCEPT !.conf = current] ELSE mig[m]
    IN  /\ IsJoint(work.conf)
        /\ a \in work.conf.sk_set \ work.heard
        /\ ~HasMajority(work.conf.sk_set, work.heard)
        /\ Exists(a)
        /\ acc[a].conf.generation <= work.conf.generation
        /\ acc' = IF Required("old_joined")
                  THEN [acc EXCEPT ![a].conf = work.conf] ELSE acc
        /\ mig' = [mig EXCEPT ![m] =
                    [work EXCEPT !.heard = @ \cup {a},
                                 !.position = HigherPosition(@, Position(acc[a].log)),
                                 !.term = Max(@, acc[a].term)]]
        /\ UNCHANGED <<prop, committed, won, current, stored>>

Collected(m) == HasMajority(mig[m].conf.sk_set, mig[m].heard)

(* Step 6.  A term only ever grows. *)
BumpTerm(m, a) ==
    /\ Collected(m)
    /\ a \in mig[m].conf.new_sk_set
    /\ Exists(a)
    /\ acc[a].term < mig[m].term
    /\ acc' = [acc EXCEPT ![a].term = mig[m].term]
    /\ UNCHANGED <<prop, committed, won, current, stored, mig>>

(* Step 7: PUT the joint configuration to a member of the new set, and     *)
(* count it if its answer shows all that is required.                      *)
Confirm(m, a) ==
    /\ Collected(m)
    /\ a \in mig[m].conf.new_sk_set \ mig[m].confirmed
    /\ ~HasMajority(mig[m].conf.new_sk_set, mig[m].confirmed)
    /\ Exists(a)
    /\ acc[a].conf.generation <= mig[m].conf.generation
    /\ Required("new_caught_up") => AtLeast(Position(acc[a].log), mig[m].position)
    /\ Required("new_term_bumped") => acc[a].term >= mig[m].term
    /\ acc' = IF Required("new_joined")
              THEN [acc EXCEPT ![a].conf = mig[m].conf] ELSE acc
    /\ mig' = [mig EXCEPT ![m].confirmed = @ \cup {a}]
    /\ UNCHANGED <<prop, committed, won, current, stored>>

(* Step 8.  Step 9 is SwitchConf and Exclude, by anybody, at any time.     *)
FinishChange(m) ==
    /\ Collected(m)
    /\ HasMajority(mig[m].conf.new_sk_set, mig[m].confirmed)
    /\ mig[m].conf.generation < MaxGeneration
    /\ Required("cas") => current = mig[m].conf
    /\ Put(Single(mig[m].conf.generation + 1, mig[m].conf.new_sk_set))
    /\ mig' = [mig EXCEPT ![m] = Idle]
    /\ UNCHANGED <<acc, prop, committed, won>>

(* A migrator dies, gives up, or is told of a higher generation.           *)
Forget(m) ==
    /\ mig[m] # Idle
    /\ mig' = [mig EXCEPT ![m] = Idle]
    /\ UNCHANGED <<acc, prop, committed, won, current, stored>>

NextMigrator(m) ==
    \/ FinishChange(m)
    \/ Forget(m)
    \/ \E a \in Acceptors : Collect(m, a) \/ BumpTerm(m, a) \/ Confirm(m, a)

Next ==
    \/ NextProtocol /\ UNCHANGED <<current, stored, mig>>
    \/ \E set \in TargetSets : StartChange(set)
    \/ AbortChange
    \/ \E m \in Migrators : NextMigrator(m)
    \/ \E a \in Acceptors : \E conf \in stored :
        \/ SwitchConf(a, conf)
        \/ Exclude(a, conf)
        \/ \E donor \in Acceptors : Pull(a, donor, conf)

Spec == Init /\ [][Next]_vars

(* ---- What must hold ---- *)

LogSafety ==
    CommittedOnce /\ CommittedHeldBy(current.sk_set) /\ LogMatching /\ LogIsMonotonic
                  /\ DivergenceIsFound

(* Each configuration follows from the one before: the old set stays, or   *)
(* the new one of a joint configuration takes its place.                   *)
Follows(conf, before) ==
    \/ conf.sk_set = before.sk_set /\ IsJoint(conf) # IsJoint(before)
    \/ ~IsJoint(conf) /\ IsJoint(before) /\ conf.sk_set = before.new_sk_set

OnePerGeneration ==
    /\ \A one, other \in stored : one.generation = other.generation => one = other
    /\ \A conf \in stored : conf.generation <= current.generation
    /\ \A conf \in stored : conf.generation > 1 =>
        \E before \in stored :
            before.generation = conf.generation - 1 /\ Follows(conf, before)

(* Once a change has finished, no leader older than its joint             *)
(* configuration can commit anything more: a majority of the old set has   *)
(* left those generations.                                                 *)
OldGenerationsFenced ==
    \A joint \in stored : \A conf \in stored :
        (IsJoint(joint) /\ conf.generation = joint.generation + 1
            /\ conf.sk_set = joint.new_sk_set) =>
                HasMajority(joint.sk_set,
                            {a \in Acceptors : acc[a].conf.generation >= joint.generation})

ConfigSafety ==
    /\ OnePerGeneration
    /\ OldGenerationsFenced
    /\ \A a \in Acceptors : acc[a].conf \in stored \cup {NoConf}

(* ---- What must be reachable, stated as its contrary ---- *)

Finished(conf) == conf.generation > 1 /\ ~IsJoint(conf) /\ conf.sk_set # InitialSet

NeverFinishes == ~Finished(current)

Commits(p) == prop[p].state = "leader" /\ CommitLsn(prop[p]) > 0

NeverCommitsInJoint == \A p \in Proposers : ~(IsJoint(prop[p].conf) /\ Commits(p))

NeverCommitsAfterFinish == \A p \in Proposers : ~(Finished(prop[p].conf) /\ Commits(p))

(* Two migrators at work on the same change, both ready to finish it. *)
NeverRaces ==
    Cardinality({m \in Migrators : HasMajority(mig[m].conf.new_sk_set, mig[m].confirmed)}) <= 1

(* Migrators are alike, too. *)
MigrationSymmetry == Symmetry \cup Permutations(Migrators)
=============================================================================
