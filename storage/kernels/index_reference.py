"""The kernels of secondary indexes in plain Python: what `kernels.index_compiled` must do, bit for
bit."""

from __future__ import annotations

import bisect
import itertools

from stelae.storage.kernels.api import I32, I64, U8, U64
from stelae.storage.kernels.index_api import U32

_END = b"\0\1"


def _items(offsets: I32, data: U8) -> list[bytes]:
    bounds, content = offsets.tolist(), data.tobytes()
    return [content[low:high] for low, high in itertools.pairwise(bounds)]


def _escaped(text: bytes) -> bytes:
    return text.replace(b"\0", b"\0\xff") + _END


def text_lengths(offsets: I32, data: U8, out: I64) -> None:
    for i, text in enumerate(_items(offsets, data)):
        out[i] += len(_escaped(text))


def put_text(offsets: I32, data: U8, cursor: I64, out: U8) -> None:
    for i, text in enumerate(_items(offsets, data)):
        content = _escaped(text)
        at = int(cursor[i])
        out[at : at + len(content)] = list(content)
        cursor[i] = at + len(content)


def put_parts(parts: U8, width: int, cursor: I64, out: U8) -> None:
    for i in range(len(cursor)):
        at = int(cursor[i])
        out[at : at + width] = parts[i * width : (i + 1) * width]
        cursor[i] = at + width


def find_text(data: U8, ends: I64, cursor: I64, out: I64) -> int:
    content = data.tobytes()
    for i in range(len(cursor)):
        begin, end = int(cursor[i]), int(ends[i])
        at = begin
        while content[at : min(at + 2, end)] != _END:
            if at + 2 > end:
                return i
            at += 2 if content[at : at + 2] == b"\0\xff" else 1
        out[i] = len(content[begin:at].replace(b"\0\xff", b"\0"))
        cursor[i] = at + 2
    return -1


def take_text(data: U8, cursor: I64, offsets: I32, out: U8) -> None:
    content = data.tobytes()
    for i in range(len(cursor)):
        at = int(cursor[i])
        for j in range(int(offsets[i]), int(offsets[i + 1])):
            out[j] = content[at]
            at += 2 if content[at : at + 2] == b"\0\xff" else 1


def take_heads(offsets: I32, data: U8, out: U64, skip: I64) -> bool:
    items = _items(offsets, data)
    same = 0
    while items and len({item[: same + 1] for item in items}) == 1 and same < len(items[0]):
        same += 1
    skip[0] = same
    for i, item in enumerate(items):
        out[i] = int.from_bytes(item[same : same + 8].ljust(8, b"\0"), "big")
    return items == sorted(items)


def sort_ties(offsets: I32, data: U8, heads: U64, skip: int, out: I64) -> None:
    items = _items(offsets, data)
    out[:] = sorted(sorted(out.tolist()), key=items.__getitem__)


def find_entry(offsets: I32, data: U8, entry: U8) -> int:
    return bisect.bisect_left(_items(offsets, data), entry.tobytes())


def find_range(offsets: I32, data: U8, low: U8, high: U8) -> tuple[int, int]:
    items = _items(offsets, data)
    begin = bisect.bisect_left(items, low.tobytes())
    return begin, max(begin, bisect.bisect_left(items, high.tobytes())) if len(high) else len(items)


def merge_entries(
    offsets: I32, data: U8, bounds: I64, writers: U32, sequences: U64, epochs: U64, out: I64
) -> int:
    items = _items(offsets, data)
    stamps = [(int(epochs[w]), int(s)) for w, s in zip(writers, sequences, strict=True)]
    newest: dict[bytes, int] = {}
    for i, item in enumerate(items):
        if item not in newest or stamps[newest[item]] < stamps[i]:
            newest[item] = i
    kept = [newest[item] for item in sorted(newest)]
    out[: len(kept)] = kept
    return len(kept)
