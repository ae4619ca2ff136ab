"""Backups of tables in a folder or an object store: stored by difference, checked, restored.

A backup that is listed is whole: its own file is written last, and deleted first. Files of data are
named by a hash of their content, never change, and are shared by backups. Files are deleted only
while no backup is made. A table that is restored has another name until it is whole.

1. `backup` marks in the `folder` that a backup is being made, and pins each table in turn.
2. `tablets` compares a tablet's versions with those of the last backup (`chunks`).
3. What is missing is cut into chunks, packed and stored; `format` says how files look.
4. `folder` commits the backup's own file.
5. `restore` checks every file, then fills the temporary tables of `targets`.

`care` lists and prunes backups. `restored` says what they need of a database. `files` reaches local
folders and object stores.

Read first: `backup`. Also searched for as: incremental backup, snapshot, deduplication, PITR.
"""
