"""Protections of tokens that are good for some tables, or for some time, and of the audit log."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_LIMITED = ("tests/front/test_http_limited_tokens.py",)
_DRAFTS = ("tests/unit/coordinator/ddl/test_tokens.py",)
_TABLE = "tests/front/test_audit_table.py::test_"
_AUDIT_ALL = (f"{_TABLE}calls_of_admins_and_refusals_are_in_the_table",)
_AUDIT_OWN = (f"{_TABLE}nobody_but_stelae_writes_to_the_table_or_drops_it",)
_AUDIT_TWICE = (f"{_TABLE}a_line_that_is_copied_twice_is_one_row",)
_AUDIT_UNWRITTEN = (f"{_TABLE}rows_that_were_not_written_are_copied_by_the_next_copier",)
_AUDIT_AWAY = (f"{_TABLE}while_the_table_is_away_lines_wait_in_the_files",)
_AUDIT_OLD = (f"{_TABLE}what_is_too_old_or_too_much_is_deleted",)
_AUDIT_ASIDE = (f"{_TABLE}lines_of_files_that_are_set_aside_are_copied",)
_AUDIT_OTHER = (f"{_TABLE}a_copier_takes_over_from_one_that_ends",)
_AUDIT_BACKUP = (f"{_TABLE}backups_leave_the_audit_table_out",)
_AUDIT_FILES = ("tests/unit/serve/test_audit.py",)

MUTANTS = [
    *mutants_of(
        "serve/gateway/guard.py",
        _LIMITED,
        [
            ("            self._check_path(scope, principal)\n", ""),
            (
                "            self._audit.not_permitted("
                "scope, principal.name, principal.role.value, str(error))\n",
                "",
            ),
        ],
    ),
    *mutants_of(
        "serve/gateway/tokens.py",
        _LIMITED,
        [
            ("about is not None and about[1] in self.tables:", "about is not None:"),
            (
                "if not self.tables or _ABOUT_NONE.fullmatch(path):",
                "if not self.tables or _ABOUT_NONE.match(path):",
            ),
            ("_ABOUT_TABLE.fullmatch(path)", "_ABOUT_TABLE.search(path)"),
            ("found.expires_at_s and found.expires_at_s <= self._now()", "False"),
            (
                "token.name, token.role, frozenset(token.tables), token.expires_at_s",
                "token.name, token.role",
            ),
        ],
    ),
    *mutants_of(
        "serve/routes/tables.py",
        _LIMITED,
        [(" if principal.may_see(record.name)]", "]")],
    ),
    *mutants_of(
        "coordinator/ddl/tokens.py",
        _LIMITED,
        [
            ("        if catalog.find(table) is None:\n", "        if False:\n"),
            ("    if order.role is Role.ADMIN:\n", "    if False:\n"),
            ("    _check_limits(catalog, order)\n", ""),
        ],
    ),
    *mutants_of(
        "coordinator/ddl/tokens.py",
        _DRAFTS,
        [
            ("[token for token in tokens if not token.is_limited]", "[token for token in tokens]"),
            (
                "any(token.name == order.name for token in there)",
                "any(token.name == order.name for token in known.tokens)",
            ),
            ("if len(there) >= MAX_TOKENS:", "if len(known.tokens) >= MAX_TOKENS:"),
            (
                "for token in known.all if token.name != order.name",
                "for token in known.tokens if token.name != order.name",
            ),
        ],
    ),
    *mutants_of(
        "serve/gateway/tokens.py",
        _AUDIT_OWN,
        [("            self.check(Role.ADMIN)\n", "            pass\n")],
    ),
    *mutants_of(
        "serve/gateway/guard.py",
        _AUDIT_ALL,
        [("                self._audit.refused(scope, str(error))\n", "                pass\n")],
    ),
    *mutants_of(
        "serve/gateway/guard.py",
        (
            "tests/front/test_http_every_route.py::"
            "test_every_change_of_admins_is_in_the_audit_log_and_no_read",
        ),
        [
            ("    if request.state.method not in READS:\n", "    if True:\n"),
            (
                "        audit.not_permitted("
                "asked, principal.name, principal.role.value, str(error))\n",
                "",
            ),
        ],
    ),
    *mutants_of(
        "serve/gateway/audit.py",
        _AUDIT_FILES,
        [
            ("        os.ftruncate(descriptor, size_bytes)  # rule 1\n", ""),
            ('        line = b"\\n" + line  # rule 2\n', "        pass\n"),
            (" and len(self._bad_tokens) >= MAX_SOURCES:", " and False:"),
            (" and len(self._not_permitted) >= MAX_SOURCES:", " and False:"),
            ("        if known is None:\n", "        if True:\n"),
            ("range(KEPT_FILES - 1, 0, -1)", "range(1, KEPT_FILES)"),
        ],
    ),
    *mutants_of(
        "serve/gateway/audit_files.py",
        _AUDIT_FILES,
        [
            ("range(KEPT_FILES, 0, -1)", "range(1, KEPT_FILES + 1)"),
            ("        except msgspec.MsgspecError:\n", "        except UnicodeError:\n"),
            ('        end = data.rfind(b"\\n") + 1\n', "        end = len(data)\n"),
        ],
    ),
    *mutants_of(
        "serve/gateway/audit_files.py",
        _AUDIT_OTHER,
        [("fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.LOCK_SH | fcntl.LOCK_NB)")],
    ),
    *mutants_of(
        "serve/gateway/audit_copier.py",
        _AUDIT_AWAY,
        [
            (
                "            except Exception as error:  # rule 3\n",
                "            except OSError as error:\n",
            ),
            ("if task is None or task.cancelling():", "if True:"),
            ("        if now >= self._said_at + SAY_S:\n", "        if True:\n"),
        ],
    ),
    *mutants_of(
        "serve/gateway/audit_copier.py",
        _AUDIT_OLD,
        [
            (
                '        return [row for row in rows if row["time"] >= oldest]\n',
                "        return rows\n",
            )
        ],
    ),
    *mutants_of(
        "serve/gateway/audit_copier.py",
        _AUDIT_ASIDE,
        [("            rows.append(row_of_lost(piece.gone))\n", "            pass\n")],
    ),
    *mutants_of(
        "serve/gateway/audit_copier.py",
        _AUDIT_AWAY,
        [
            (
                "        await database.put_audit(self._rows(piece), timeout=WRITE_TIMEOUT_S)\n"
                "        await _in_thread(lambda: self._files.write_mark(piece.mark))  # rule 1\n"
                "        self._mark = piece.mark\n",
                "        self._mark = piece.mark\n"
                "        await _in_thread(lambda: self._files.write_mark(piece.mark))\n"
                "        await database.put_audit(self._rows(piece), timeout=WRITE_TIMEOUT_S)\n",
            ),
        ],
    ),
    *mutants_of(
        "serve/gateway/audit_copier.py",
        _AUDIT_UNWRITTEN,
        [
            (
                "        await database.put_audit(self._rows(piece), timeout=WRITE_TIMEOUT_S)\n"
                "        await _in_thread(lambda: self._files.write_mark(piece.mark))  # rule 1\n",
                "        await _in_thread(lambda: self._files.write_mark(piece.mark))\n"
                "        await database.put_audit(self._rows(piece), timeout=WRITE_TIMEOUT_S)\n",
            ),
        ],
    ),
    *mutants_of(
        "stelae/database/operations.py",
        ("tests/front/test_cli_audit.py",),
        [
            (
                "                if not tries_again:  # one that waits",
                "                if False:  #",
            ),
            (
                "                if not tries_again:  # one that waits",
                "                if True:  #",
            ),
        ],
    ),
    *mutants_of(
        "stelae/spec_host.py",
        ("tests/unit/stelae/test_spec_operations.py",),
        [
            (
                "        with self._connect(work.by) as database:\n            found = apply(",
                "        with self._connect() as database:\n            found = apply(",
            ),
        ],
    ),
    *mutants_of(
        "client/admin/call_log.py",
        ("tests/unit/client/test_call_log.py",),
        [
            ("if self._writer is not None and not self._problem:", "if self._writer:"),
            ("await self._settle(min(wait_s, WAIT_S))", "await self._settle(1e9)"),
            ("        await self._settle(WAIT_S)\n        return call", "        return call"),
            ('if self._waiting.get(row["id"]) is row:', "if False:"),
            ("                if clock.monotonic() >= end_s:", "                if False:"),
            (
                "                if isinstance(error, Rejected) and not isinstance(error, RowExists):\n",
                "                if False:\n",
            ),
            ("                    most = 1  #", "                    pass  #"),
            (
                "            end_s, pause_s = clock.monotonic() + GIVE_UP_S, PAUSE_S\n"
                "            self._done(rows)\n",
                "            self._done(rows)\n",
            ),
            (
                "                async with asyncio.timeout(WRITE_TIMEOUT_S):\n",
                "                async with asyncio.timeout(None):\n",
            ),
            (
                "            _say(self._waiting.pop(next(iter(self._waiting)))",
                "            (self._waiting.pop(next(iter(self._waiting)))",
            ),
            ('        self._give_up("the connection was closed")\n\n    def', "\n    def"),
            ('    PUT_TOKEN.name: "name",\n', ""),
            ("    return method.name in ABOUT and not is_own", "    return method.name in ABOUT"),
            ('"request", "sha256", ', '"request", '),
            (
                "isinstance(error, Rejected | RetryLater | RetryElsewhere)",
                "isinstance(error, Rejected)",
            ),
        ],
    ),
    *mutants_of(
        "client/audit.py",
        _AUDIT_TWICE,
        [('absent = [row for row in begun if row["id"] not in known]', "absent = begun")],
    ),
    *mutants_of(
        "client/audit.py",
        (f"{_TABLE}a_beginning_that_is_overtaken_is_refused",),
        [("await table.insert(absent", "await table.upsert(absent")],
    ),
    *mutants_of(
        "client/audit.py",
        _AUDIT_OLD,
        [
            ("found.filter(pc.invert(is_kept)), *surplus]", "*surplus]"),
            ("found.filter(pc.invert(is_kept)), *surplus]", "found.filter(pc.invert(is_kept))]"),
            (
                "await asyncio.to_thread(_doomed, found, oldest, max_rows)",
                "_doomed(found, oldest, max_rows)",
            ),
        ],
    ),
    *mutants_of(
        "client/audit.py",
        ("tests/unit/client/test_audit_choice.py",),
        [
            ("pc.and_(is_at_edge, pc.less(ids, edge[1]))", "is_at_edge"),
            ("-(-max_rows // REFUSED_SHARE)", "max_rows"),
            ("pc.or_(is_before, pc.and_(is_at_edge, pc.less(ids, edge[1])))", "is_before"),
        ],
    ),
    *mutants_of(
        "client/database.py",
        _AUDIT_OWN,
        [("if own or not is_own_table(table.name)", "if True")],
    ),
    *mutants_of(
        "client/table/writer.py",
        _AUDIT_OWN,
        [("        if not self._is_stelae:\n", "        if False:\n")],
    ),
    *mutants_of(
        "coordinator/ddl/alter.py",
        _AUDIT_OWN,
        [("    if order.new_name or not order.change.is_empty:", "    if False:")],
    ),
    *mutants_of(
        "coordinator/ddl/tables.py",
        _AUDIT_OWN,
        [('    check_not_own(name, table.schema, "to delete it")\n', "")],
    ),
    *mutants_of(
        "core/schema/audit.py",
        (f"{_TABLE}a_table_of_that_name_with_other_columns_is_left_alone",),
        [("    if has_audit_columns(schema.arrow, schema.key):\n", "    if True:\n")],
    ),
    *mutants_of(
        "core/schema/schema.py",
        _AUDIT_OWN,
        [("    if fine and str(name).startswith(RESERVED):\n", "    if False:\n")],
    ),
    *mutants_of(
        "core/schema/audit.py",
        _AUDIT_OWN,
        [("    if not schema.equals(own.arrow) or key != own.key:\n", "    if False:\n")],
    ),
    *mutants_of(
        "coordinator/apply/stops.py",
        ("tests/unit/coordinator/apply/test_stops.py",),
        [
            (' if not is_own_table(t["table"])]  # R6', "]"),
            (" if not is_own_table(table.name)]", "]"),
        ],
    ),
    *mutants_of(
        "coordinator/moves/leaving.py",
        ("tests/unit/coordinator/test_leaving.py",),
        [("if has_home or not is_own_table(tables[t.table_id].name)", "if True")],
    ),
    *mutants_of(
        "stelae/archive/backup.py",
        _AUDIT_BACKUP,
        [
            (
                '        check_users_table(name, "to back it up (`stelae table export` reads it)")\n',
                "",
            ),
        ],
    ),
]
