"""Tokens, problem documents, JSON values and Arrow bodies, each by itself."""

from __future__ import annotations

import datetime
import inspect
import json
import math
import os
import stat
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.client.http_protocol import error_of_problem, format_request_id, parse_request_id
from stelae.client.json_values import (
    batch_to_json_rows,
    column_to_json,
    encode_rows,
    from_json_value,
    from_path_text,
)
from stelae.core import errors
from stelae.core.errors import InvalidArgument, StelaeError, TooLarge, Unauthorized
from stelae.core.ids import ClientId, RequestId
from stelae.core.values import from_wire
from stelae.serve.arrow_bodies import read_stream, write_stream
from stelae.serve.problems import (
    MalformedBody,
    NotAuthenticated,
    NotPermitted,
    error_document,
    error_response,
    problem_type,
)
from stelae.serve.tokens import (
    ADMIN_TOKEN_FILE,
    TOKENS_FILE,
    Role,
    TokenVerifier,
    make_admin_token,
    make_token,
    read_tokens,
    write_tokens,
)

LIMIT = 1 << 20


# ---- tokens ---------------------------------------------------------------------------------


def test_a_token_is_known_by_its_text_alone() -> None:
    """The verifier finds name and role of a token, and refuses every other text."""
    token, entry = make_token("ci", Role.WRITE)
    verifier = TokenVerifier([make_token("other", Role.READ)[1], entry])
    assert verifier.verify(token).name == "ci"
    assert verifier.verify(token).role is Role.WRITE
    for wrong in ("", token[:-1], token + "x", entry.sha256, "é"):
        with pytest.raises(NotAuthenticated):
            verifier.verify(wrong)


def test_a_role_may_do_what_smaller_roles_may() -> None:
    """admin includes write, write includes read, never the other way."""
    for place, role in enumerate(Role):
        for other_place, other in enumerate(Role):
            assert role.includes(other) == (other_place <= place)
    principal = TokenVerifier([make_token("r", Role.READ)[1]])
    assert principal is not None


def test_token_files_hold_hashes_and_are_private(tmp_path: Path) -> None:
    """Neither file is readable by others; only the admin token's own file has it in clear."""
    token = make_admin_token(tmp_path)
    for name in (TOKENS_FILE, ADMIN_TOKEN_FILE):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert token not in (tmp_path / TOKENS_FILE).read_text()
    assert (tmp_path / ADMIN_TOKEN_FILE).read_text().strip() == token
    assert make_admin_token(tmp_path) == token
    assert TokenVerifier(read_tokens(tmp_path / TOKENS_FILE)).verify(token).role is Role.ADMIN


def test_an_admin_token_taken_out_of_the_file_is_made_anew(tmp_path: Path) -> None:
    """Revoking by deleting the entry holds: the old text is never let in again."""
    old = make_admin_token(tmp_path)
    _, other = make_token("reader", Role.READ)
    write_tokens(tmp_path / TOKENS_FILE, [other])
    new = make_admin_token(tmp_path)
    verifier = TokenVerifier(read_tokens(tmp_path / TOKENS_FILE))
    assert new != old
    assert verifier.verify(new).role is Role.ADMIN
    with pytest.raises(NotAuthenticated):
        verifier.verify(old)
    assert [e.name for e in read_tokens(tmp_path / TOKENS_FILE)] == ["reader", "admin"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"tokens": [{"name": "x"}]}', b'{"tokens": [], "extra": 1}']
)
def test_a_broken_token_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """What is no token file is an error that names it, never an empty list."""
    path = tmp_path / TOKENS_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidArgument, match=TOKENS_FILE):
        read_tokens(path)


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Mode 0644 is an error that says how to repair it."""
    make_admin_token(tmp_path)
    os.chmod(tmp_path / TOKENS_FILE, 0o644)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        read_tokens(tmp_path / TOKENS_FILE)


# ---- problems -------------------------------------------------------------------------------


def all_errors() -> list[type[StelaeError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, StelaeError)
    ]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_survives_the_way_through_a_problem_document(kind: type[StelaeError]) -> None:
    """Class, parameters, text and notes come back as they were."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    args = [
        7 if "int" in str(p.annotation) else 0.5 if "float" in str(p.annotation) else "text"
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ] or ["text"]
    error = kind(*args)
    error.add_note("1 of 2")
    response = error_response(error)
    back = error_of_problem(response.status_code, json.loads(bytes(response.body)))
    assert type(back) is kind
    assert back.args == error.args
    assert str(back) == str(error)
    assert back.__notes__ == ["1 of 2"]


def test_the_status_follows_from_the_family() -> None:
    """Rejected is 4xx, RetryLater and RetryElsewhere say Retry-After, OutcomeUnknown is 504. What
    is to be made anew with another schema is 409: the same request would be refused again."""
    for kind in all_errors():
        row = next(problem_type(kind.__new__(k)) for k in [kind])
        if issubclass(kind, errors.SchemaChanged):
            assert (row.status, row.retry_after_s) == (409, None)
        elif issubclass(kind, errors.RetryLater | errors.RetryElsewhere):
            assert row.status in (429, 503)
            assert row.retry_after_s
        elif issubclass(kind, errors.OutcomeUnknown):
            assert row.status == 504
        elif issubclass(kind, Unauthorized | errors.ProtocolMismatch):
            assert row.status == 502
        elif issubclass(kind, errors.Rejected):
            assert 400 <= row.status < 500


def test_a_condition_in_the_headers_makes_the_mismatch_a_412() -> None:
    """VersionMismatch is 409 by itself and 412 after If-Match."""
    error = errors.VersionMismatch("t", "(1,)", 3, 4)
    assert error_response(error).status_code == 409
    assert error_response(error, conditional=True).status_code == 412


def test_no_token_is_401_with_a_challenge_and_a_small_role_is_403() -> None:
    """Both are Unauthorized to a client."""
    response = error_response(NotAuthenticated("no"))
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert error_response(NotPermitted("no")).status_code == 403
    for error in (NotAuthenticated("no"), NotPermitted("no")):
        document = error_document(error, problem_type(error))
        assert type(error_of_problem(401, document)) is Unauthorized


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthorized),
        (404, errors.TableNotFound),
        (429, errors.Overloaded),
        (502, errors.RetryLater),
        (503, errors.RetryLater),
        (504, errors.OutcomeUnknown),
        (400, errors.Rejected),
        (500, StelaeError),
    ],
)
def test_answers_of_strangers_become_errors_of_the_right_family(
    status: int, kind: type[StelaeError]
) -> None:
    """A proxy's answer without a problem document is told by its status."""
    assert isinstance(error_of_problem(status, {}), kind)
    assert isinstance(error_of_problem(status, {"error": "RowExists", "args": [1]}), kind)


# ---- JSON -----------------------------------------------------------------------------------

UTC = datetime.UTC
SAMPLES = [
    (pa.int64(), [None, -(2**63), 2**63 - 1, 2**53 + 1]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.int8(), [-128, 127]),
    (pa.bool_(), [True, False, None]),
    (pa.string(), ["", "é\u2028\U0001f600", '"\\', None]),
    (pa.binary(), [b"", b"\x00\xff", None]),
    (pa.float64(), [0.1, -0.0, 1e300, math.inf, -math.inf, None]),
    (pa.float32(), [0.5, math.inf]),
    (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    (pa.date64(), [datetime.date(2013, 1, 1)]),
    (pa.timestamp("s"), [datetime.datetime(2013, 1, 1, 5, 15)]),
    (pa.timestamp("us"), [datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), None]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2013, 1, 1, tzinfo=UTC)]),
    (pa.timestamp("ns"), [1, -1, 1_600_000_000_123_456_789]),
    (pa.decimal128(10, 2), [Decimal("12.30"), Decimal("-0.01"), None]),
    (pa.list_(pa.int64()), [[1, None], [], None]),
    (pa.struct([("a", pa.int64()), ("b", pa.binary())]), [{"a": 1, "b": b"x"}, None]),
    (pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
    (pa.time64("us"), [datetime.time(1, 2, 3, 4), None]),
    (pa.duration("ms"), [datetime.timedelta(days=1), None]),
]


@pytest.mark.parametrize(("kind", "values"), SAMPLES, ids=lambda part: str(part)[:30])
def test_json_gives_back_every_value(kind: pa.DataType, values: list[object]) -> None:
    """Column to JSON text to column: equal, for each type."""
    column = pa.array(values, kind)
    text = msgspec.json.encode(column_to_json(column))
    back = [from_json_value(value, kind, "c") for value in msgspec.json.decode(text)]
    assert pa.array(back, kind).equals(column)


def test_nan_travels_as_text_and_differs_from_null() -> None:
    """NaN, null and a missing number stay apart."""
    column = pa.array([math.nan, None], pa.float64())
    assert json.loads(msgspec.json.encode(column_to_json(column))) == ["NaN", None]
    assert math.isnan(from_json_value("NaN", pa.float64(), "c"))
    with pytest.raises(InvalidArgument, match="column 'x'"):
        from_json_value("nan?", pa.float64(), "column 'x'")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1", pa.int64()),
        (1.0, pa.int64()),
        (True, pa.int64()),
        (2**63, pa.int64()),
        (-1, pa.uint8()),
        (1, pa.string()),
        (1, pa.binary()),
        ("?", pa.binary()),
        ("YQ", pa.binary()),
        (1, pa.bool_()),
        ("true", pa.bool_()),
        ("yesterday", pa.date32()),
        ("x", pa.timestamp("us")),
        ("2020-01-01T00:00:00.0000001", pa.timestamp("us")),
        ("2020-01-01T00:00:00.0000000001", pa.timestamp("ns")),
        ("2020-01-01T00:00:00Z", pa.timestamp("us")),
        (1.5, pa.decimal128(4, 1)),
        ("x", pa.decimal128(4, 1)),
        (1, pa.list_(pa.int64())),
        (["a"], pa.list_(pa.int64())),
        ({"z": 1}, pa.struct([("a", pa.int64())])),
        ([], pa.struct([])),
        ([[1]], pa.map_(pa.int64(), pa.int64())),
        ({}, pa.int64()),
        (2**53 + 1, pa.float64()),
    ],
)
def test_what_does_not_fit_is_refused_by_name(value: object, kind: pa.DataType) -> None:
    """Nothing is rounded or converted: the error names the column."""
    with pytest.raises(InvalidArgument, match="column 'x'"):
        from_json_value(value, kind, "column 'x'")


@given(st.integers(-(2**63), 2**63 - 1))
def test_nanoseconds_keep_their_last_digits(moment: int) -> None:
    """Nine digits of a second survive text, which Python's own parser would cut to six."""
    kind = pa.timestamp("ns")
    text = column_to_json(pa.array([moment], kind))[0]
    assert from_json_value(text, kind, "c") == moment


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("-5", pa.int64(), -5),
        ("true", pa.bool_(), True),
        ("", pa.string(), ""),
        ("a,b", pa.string(), "a,b"),
        ("_-8", pa.binary(), b"\xff\xef"),
        ("2013-01-01", pa.date32(), 15706),
        ("1970-01-01T00:00:01", pa.timestamp("ms"), 1000),
    ],
)
def test_keys_in_paths_are_read_by_type(text: str, kind: pa.DataType, value: object) -> None:
    """Each key type has one spelling in a path."""
    assert from_path_text(text, kind, "k") == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", pa.int64()),
        ("1.0", pa.int64()),
        ("٣", pa.int64()),
        ("+1", pa.int64()),
        ("1" * 5000, pa.int64()),
        ("True", pa.bool_()),
        ("!", pa.binary()),
        ("x", pa.date32()),
    ],
)
def test_keys_in_paths_that_do_not_fit_are_refused(text: str, kind: pa.DataType) -> None:
    """No guessing: other spellings are errors."""
    with pytest.raises(InvalidArgument):
        from_path_text(text, kind, "key column 'k'")


def test_rows_are_objects_with_their_columns_in_order() -> None:
    """`encode_rows` gives the JSON of `batch_to_json_rows`, row by row."""
    batch = pa.table({"b": [1, 2], "a": ["x", None]})
    assert batch_to_json_rows(batch) == [{"b": 1, "a": "x"}, {"b": 2, "a": None}]
    assert encode_rows(batch) == [b'{"b":1,"a":"x"}', b'{"b":2,"a":null}']


def test_days_beyond_pythons_calendar_can_still_be_shown() -> None:
    """A date32 outside years 1 to 9999 is ISO text too."""
    assert column_to_json(pa.array([2**31 - 1], pa.date32())) == [
        str(from_wire(2**31 - 1, pa.date32()))
    ]


def test_request_ids_are_read_back_and_nonsense_is_refused() -> None:
    """The header has one form."""
    request = RequestId(ClientId("ab12"), 7, 3)
    assert parse_request_id(format_request_id(request)) == request
    for text in ("", "a", "a.1", "a.b.c", "a.1.2", "a.-1.-1", "a.1.1.1", "é.1.1", "." * 9):
        with pytest.raises(InvalidArgument):
            parse_request_id(text)


# ---- Arrow ----------------------------------------------------------------------------------


def stream(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_arrow_streams_are_read_whole() -> None:
    """Plain and compressed streams, several batches, dictionaries: the same table."""
    table = pa.table({"a": list(range(1000)), "s": pa.array(["x"] * 1000).dictionary_encode()})
    for options in ({}, {"compression": "zstd"}, {"compression": "lz4"}):
        found = read_stream(stream(table, **options), size_bytes_max=LIMIT, rows_max=1000)
        assert found.equals(table)
    data = write_stream(table.schema, table.to_batches(max_chunksize=100))
    assert read_stream(data, size_bytes_max=LIMIT, rows_max=1000).num_rows == 1000


def test_a_stream_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    """Compressed zeros: a few kilobytes that claim 8 MiB."""
    table = pa.table({"a": np.zeros(LIMIT, np.int64)})
    data = stream(table, compression="zstd")
    assert len(data) < LIMIT // 8
    with pytest.raises(TooLarge, match="unpacked"):
        read_stream(data, size_bytes_max=LIMIT, rows_max=10 * LIMIT)


def test_a_dictionary_that_decodes_to_too_much_is_refused() -> None:
    """One long value in many rows is counted as often as it stands there."""
    column = pa.DictionaryArray.from_arrays(np.zeros(1000, np.int8), ["x" * 10_000])
    with pytest.raises(TooLarge, match="decoded"):
        read_stream(stream(pa.table({"s": column})), size_bytes_max=LIMIT, rows_max=1000)


def test_rows_without_bytes_are_bounded_too() -> None:
    """Columns of type null can claim any number of rows."""
    data = stream(pa.table({"n": pa.nulls(10_000)}))
    with pytest.raises(InvalidArgument, match="10000 rows"):
        read_stream(data, size_bytes_max=LIMIT, rows_max=9_999)


@given(st.data())
def test_damaged_streams_are_errors_and_nothing_else(data: st.DataObject) -> None:
    """Any byte changed, any tail cut: a table or one of our errors, never another exception."""
    good = bytearray(stream(pa.table({"a": [1, 2, 3], "s": ["x", "yy", None]}), compression="lz4"))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        try:
            read_stream(damaged, size_bytes_max=LIMIT, rows_max=1000)
        except (MalformedBody, TooLarge, InvalidArgument):
            continue
