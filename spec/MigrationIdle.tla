---------------------------- MODULE MigrationIdle ----------------------------
(***************************************************************************)
(* Does a change ever finish?  On an idle timeline (no proposer writes),   *)
(* with nobody aborting and migrators that do not die for ever, it does,    *)
(* if each new copy is pulled from the best of those that answered.         *)
(* A stale copy in the new set, such as an earlier change left behind, is   *)
(* not pulled again and has to be caught up by a proposer: without one the  *)
(* change waits.  The model shows both.                                     *)
(***************************************************************************)
EXTENDS Migration

CONSTANT Lagging    \* members of the initial set without the one committed entry

Entry == [lsn |-> 1, term |-> 1]

InitIdle ==
    /\ acc = [a \in Acceptors |->
                IF a \notin InitialSet THEN Absent(NoConf)
                ELSE IF a \in Lagging THEN Copy(FirstConf, 0, <<>>)
                ELSE Copy(FirstConf, 1, <<1>>)]
    /\ prop = [p \in Proposers |-> Proposer("down", NoConf, 0)]
    /\ committed = {Entry}
    /\ won = [t \in Terms |-> 1]
    /\ current = FirstConf
    /\ stored = {FirstConf}
    /\ mig = [m \in Migrators |-> Idle]

PullBest(m, a) ==
    \E donor \in mig[m].heard :
        /\ Collected(m)
        /\ Exists(donor)
        /\ AtLeast(Position(acc[donor].log), mig[m].position)
        /\ Pull(a, donor, mig[m].conf)

Migrate(m) ==
    \/ FinishChange(m)
    \/ \E a \in Acceptors : Collect(m, a) \/ BumpTerm(m, a) \/ Confirm(m, a) \/ PullBest(m, a)

Start == \E set \in TargetSets : StartChange(set)

Others == \E a \in Acceptors : \E conf \in stored : SwitchConf(a, conf) \/ Exclude(a, conf)

IdleSpec ==
    /\ InitIdle
    /\ [][Start \/ Others \/ \E m \in Migrators : Migrate(m)]_vars
    /\ WF_vars(Start)
    /\ \A m \in Migrators : WF_vars(Migrate(m))

Finishes == <>Finished(current)
=============================================================================
