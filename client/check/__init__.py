"""``stelae check``: asks masters, replicas and safekeepers, and judges what they say.

Judging is pure, and asking changes nothing, except that a comparison of checksums writes a mark
into the log of each tablet compared. A copy under way hides nothing that is worse; the worst
finding is the verdict.

1. `check` asks every master, and takes the status document of their leader.
2. `timelines` asks the safekeepers what they hold; `facts` has the form of all answers.
3. `masters`, `tablets` and `timelines` judge them; `hints` adds what to do about each finding.
4. Once all else is well, `check` asks all replicas for digests at one index, if that is wanted.
5. `check` puts the findings into one report.

`status` says in plain sentences what is not well in a status document alone.

Read first: `check`. Also searched for as: ksck, fsck, health check, diagnosis, consistency check.
"""
