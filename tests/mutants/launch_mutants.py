"""Protections of a launch whose HTTP follows, and of `connect` to a cluster that has ended."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_START = ("tests/unit/stelae/test_http_start.py",)
_LAUNCHED = ("tests/unit/stelae/test_launched.py",)
_KEEPER = ("tests/unit/stelae/test_keeper_process.py",)
_CONNECT = ("tests/unit/stelae/test_connect.py",)
_FORGETTING = ("tests/unit/stelae/test_forgetting.py",)

MUTANTS = [
    *mutants_of(
        "stelae/forgetting.py",
        _FORGETTING,
        [
            ("    if files is None or files.secret != secret:\n", "    if files is None:\n"),
            ("    if files is None or kept is None:\n", "    if files is None:\n"),
            ("if not data_dir.is_dir() or not data_dir.samefile(folder):", "if False:"),
            ("instance is not None and instance.cluster == cluster", "instance is not None"),
            ("or (is_server and not any(each.iterdir())):", "or is_server:"),
            (
                "            _owner_of_frames(folder, cluster) in uuids\n",
                "            True\n",
            ),
            ("and superblock.cluster == cluster else None", "else None"),
            ('(folder.name.partition(".")[0] in names and _is_bare(folder))', "_is_bare(folder)"),
            ('or (folder.name.partition(".")[0] in names and _is_bare(folder))', ""),
            ("if each == last or each in last.parents:", "if each in last.parents:"),
            ("_LAST = (STATE_FILE, SECRET_FILE, SPEC", "_LAST = (SECRET_FILE, STATE_FILE, SPEC"),
            ("_LAST = (STATE_FILE, SECRET_FILE, SPEC", "_LAST = (STATE_FILE, SPEC_FILE, SPEC"),
            (
                "            return kept is not None and bool(load_spec(kept.spec).cluster)\n",
                "            return True\n",
            ),
            ("    if SECRET_FILE in names or LAUNCH", "    if LAUNCH"),
            ("if STATE_FILE in names or any(", "if any("),
            (
                "if STATE_FILE in names or any(_SERVER.fullmatch(name) for name in names):",
                "if STATE_FILE in names:",
            ),
            ("    folders = (*found.servers, *found.on_media)\n", "    folders = found.servers\n"),
            ("    folders = (*found.servers, *found.on_media)\n", "    folders = found.on_media\n"),
            ("        if folder.is_symlink() or os.path.ismount(folder):\n", "        if False:\n"),
            ("    if left := {**away, **told.silent}:\n", "    if left := away:\n"),
            ("    if left := {**away, **told.silent}:\n", "    if left := told.silent:\n"),
            (
                "        _check(_found(data_dir, cluster, known.media))  # before other machines remove anything\n",
                "",
            ),
            (
                "        for folder in found.on_media:\n"
                "            _remove_folder(folder, next(folder.rglob(FRAME_FILE), folder / FRAME_FILE))\n"
                "        for folder in found.servers:\n"
                "            _remove_folder(folder, folder / INSTANCE_FILE)\n",
                "        for folder in found.servers:\n"
                "            _remove_folder(folder, folder / INSTANCE_FILE)\n"
                "        for folder in found.on_media:\n"
                "            _remove_folder(folder, next(folder.rglob(FRAME_FILE), folder / FRAME_FILE))\n",
            ),
        ],
    ),
    *mutants_of(
        "stelae/applying/http_start.py",
        _START,
        [
            (
                "            with _alone.lock:\n                self._check_wanted()\n"
                "                front = self._starting.start()\n",
                "            self._check_wanted()\n            front = self._starting.start()\n",
            ),
            ("            if is_held:\n", "            if False:\n"),
            (
                "            with _alone.lock:\n                self._check_wanted()\n"
                "                assert self._database",
                "            with _alone.lock:\n                assert self._database",
            ),
            ("is_down=self._is_cancelled)", "is_down=False)"),
            ("            if not is_down:  # also", "            if True:  # also"),
            ("if front.url and drop_revoked(database, state.data_dir):", "if False:"),
            ("http_starts=False,\n", "http_starts=True,\n"),
            ("http_problem=problem,\n", 'http_problem="",\n'),
            (
                "        self._pid = os.getpid()\n        forget_in_children(self)\n",
                "        self._pid = os.getpid()\n",
            ),
            (
                "        self.lock = threading.Lock()\n        forget_in_children(self)\n",
                "        self.lock = threading.Lock()\n",
            ),
            (
                "        if isinstance(outcome, HttpFront):\n            self._front",
                "        if False:\n            self._front",
            ),
            (
                "                self._check_wanted()  # a close may have",
                "                # a close may have",
            ),
            (
                "        finally:\n            if not is_down:",
                "        except RetryLater:\n            raise\n        else:\n            if not is_down:",
            ),
        ],
    ),
    *mutants_of(
        "stelae/applying/http_start.py",
        _LAUNCHED,
        [
            ("        try:\n            self.settle()\n        finally:\n", "        if True:\n"),
            (
                "        finally:\n            with self.alone():\n                yield\n",
                "        finally:\n            yield\n",
            ),
        ],
    ),
    *mutants_of(
        "stelae/cluster.py",
        _LAUNCHED,
        [
            ("            self.http.cancel()\n            raise\n", "            raise\n"),
            (
                "        with contextlib.nullcontext() if front is None else front.given_up():\n",
                "        with contextlib.nullcontext():\n",
            ),
        ],
    ),
    *mutants_of(
        "stelae/cluster.py",
        _CONNECT,
        [("        if ray_session.is_own():  # before", "        if False:  # before")],
    ),
    *mutants_of(
        "stelae/keeper_process.py",
        _KEEPER,
        [
            (" or process.status() == psutil.STATUS_ZOMBIE\n", "\n"),
            (
                '    threading.Thread(target=process.wait, daemon=True, name="stelae keeper").start()\n',
                "",
            ),
        ],
    ),
    *mutants_of(
        "stelae/applying/run.py",
        _START,
        [("    if not dry_run:  # which only tells", "    if True:  # which only tells")],
    ),
    *mutants_of(
        "stelae/applying/front.py",
        _START,
        [
            ("    while refreshed().http_starts:\n", "    while False:\n"),
            (
                "        left_s = min(launch_ended, deadline) - now()",
                "        left_s = launch_ended - now()",
            ),
            ("        if deadline < launch_ended:\n", "        if False:\n"),
            (
                "        cluster_state.change(home, lambda state: replace(state, http_starts",
                ("        (lambda *_: None)(home, lambda state: replace(state, http_starts"),
            ),
        ],
    ),
    *mutants_of(
        "stelae/deploy/launcher.py",
        _CONNECT,
        [
            ("        if lock_holder(state.folder):\n            return\n", "        pass\n"),
            ("    if all(_is_refused(place) for place in places):\n", "    if False:\n"),
            (
                "    if all(_is_refused(place) for place in places):\n",
                "    if any(map(_is_refused, places)):\n",
            ),
        ],
    ),
]
