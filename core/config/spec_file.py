"""Reads a cluster spec and says what is wrong with it: file, line and field, all errors at once.

`load_spec` is the one place of the core that opens a file. YAML is composed into nodes first, so
that every field knows its line; what YAML would let pass (a key given twice, an alias) is refused.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from stelae.core.config.spec import ClusterSpec, RelationErrors
from stelae.core.config.units import format_size
from stelae.core.errors import InvalidArgument

FILE_BYTES_MAX = 1 << 20
MAX_DEPTH = 32

_LAUNCHER_FIELDS = ("provider", "cluster_name", "available_node_types", "head_node_type")

Where = tuple[str, ...]


@dataclass(slots=True)
class Source:
    """What a spec was read from, and where each field stands in it, by the field's path."""

    name: str
    lines: dict[Where, int | None] = field(default_factory=dict)
    """Lines count from 1; None is a field that an override has set."""
    problems: list[tuple[Where, str]] = field(default_factory=list)

    def line(self, where: Where) -> int | None:
        """Line of the field, or of the nearest section around it that the file has."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where)

    def error(self) -> InvalidArgument:
        """All problems as one error, in the order of the file."""
        self.problems.sort(key=lambda problem: (self.line(problem[0]) or 0, problem[0]))
        if len(self.problems) == 1:
            place, text = self._placed(*self.problems[0])
            return InvalidArgument(f"{', '.join([self.name, *place])}: {text}")
        listed = ""
        for where, problem in self.problems:
            place, text = self._placed(where, problem)
            listed += "\n  " + ": ".join([", ".join(place), text] if place else [text])
        return InvalidArgument(f"{self.name} has {len(self.problems)} errors:{listed}")

    def _placed(self, where: Where, text: str) -> tuple[list[str], str]:
        line = self.line(where)
        place = [f"line {line}"] if line is not None else []
        return place + ([".".join(where)] if where else []), text


def load_spec(
    source: str | os.PathLike[str] | Mapping[str, Any] | ClusterSpec | None = None, **overrides: Any
) -> ClusterSpec:
    """Make a valid spec of a file's path, a dict, a spec, or nothing (the default cluster).

    ``overrides`` are fields by their names in the file; sections are merged into, so that
    ``load_spec("cluster.yaml", tservers={"count": 5})`` keeps the file's ``tservers.memory``.
    ``data_dir`` comes back absolute: a relative one lies beside the file, or in the current folder
    where there is no file.

    Raises:
        InvalidArgument: names file, line and field of everything that is wrong.
    """
    folder = Path.cwd()
    if source is None or isinstance(source, ClusterSpec):
        origin = Source("cluster spec")
        document = source.document() if source is not None else {}
    elif isinstance(source, Mapping):
        origin, document = Source("cluster spec"), dict(source)
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        origin, document = _read(path)
        folder = path.absolute().parent
    else:
        raise InvalidArgument(
            f"a cluster spec is a path, a dict or a ClusterSpec, got {type(source).__name__}"
        )
    spec = _validated(_merged(document, overrides, (), origin), origin)
    return spec.model_copy(update={"data_dir": os.path.normpath(folder / spec.data_dir)})


def parse_spec(text: str, name: str = "cluster.yaml") -> ClusterSpec:
    """Make a valid spec of the text of a file; ``name`` is what errors call it. Pure.

    Raises:
        InvalidArgument: names line and field of everything that is wrong.
    """
    origin, document = _parsed(text, name)
    return _validated(document, origin)


def _read(path: Path) -> tuple[Source, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(f"{path}: is larger than {FILE_BYTES_MAX} bytes; not a cluster spec")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InvalidArgument(f"{path}, line {line}: is not UTF-8 text") from error
    return _parsed(text, str(path))


def _parsed(text: str, name: str) -> tuple[Source, dict[str, Any]]:
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise InvalidArgument(f"{name}: is empty")
        if not isinstance(node, yaml.MappingNode):
            raise InvalidArgument(f"{name}, line {_line(node)}: must be fields (name: value)")
        origin = Source(name)
        document = _converted(node, (), loader, origin, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidArgument(f"{name}{line}: is not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name}: is not YAML: {str(error).splitlines()[0]}") from error
    _check_header(document, origin)
    return origin, document


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _converted(node: Any, where: Where, loader: Any, origin: Source, seen: dict[int, None]) -> Any:
    """Plain dicts, lists and scalars of a node tree; notes each field's line on the way."""
    origin.lines.setdefault(where, _line(node))
    if id(node) in seen:
        origin.problems.append((where, "is an alias (*name); write the value out"))
        return None
    seen[id(node)] = None
    if len(where) > MAX_DEPTH:
        raise InvalidArgument(f"{origin.name}, line {_line(node)}: is nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return [
            _converted(item, (*where, str(place)), loader, origin, seen)
            for place, item in enumerate(node.value)
        ]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    fields: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            origin.problems.append(
                (where, f"has a field on line {_line(key_node)} whose name is no text")
            )
            continue
        key = str(key_node.value)
        inside = (*where, key)
        if key in fields:
            first = origin.lines[inside]
            origin.problems.append(
                (inside, f"is given twice, on lines {first} and {_line(key_node)}")
            )
            continue
        origin.lines[inside] = _line(key_node)
        fields[key] = _converted(value_node, inside, loader, origin, seen)
    return fields


def _check_header(document: dict[str, Any], origin: Source) -> None:
    """A file has to say what it is; above all, Ray's own cluster.yaml is not ours."""
    launcher = [name for name in _LAUNCHER_FIELDS if name in document]
    if launcher and "apiVersion" not in document:
        raise InvalidArgument(
            f"{origin.name}, line {origin.line((launcher[0],))}: this is the input of `ray up` (it "
            f"has {', '.join(launcher)}), not a Stelae cluster. Start Ray with it, then write "
            "Stelae's own file, which begins with apiVersion: stelae/v1 and kind: Cluster, and has "
            "ray: {address: auto}"
        )
    for name, value in (("apiVersion", "stelae/v1"), ("kind", "Cluster")):
        if name not in document:
            origin.problems.append(((), f"{name} is missing; write {name}: {value}"))


def _merged(
    document: Mapping[str, Any], overrides: Mapping[str, Any], where: Where, origin: Source
) -> dict[str, Any]:
    merged = dict(document)
    for name, value in overrides.items():
        inside = (*where, name)
        value = value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value
        present = merged.get(name)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            merged[name] = _merged(present, value, inside, origin)
        else:
            merged[name] = value
            origin.lines[inside] = None
    return merged


def _validated(document: Mapping[str, Any], origin: Source) -> ClusterSpec:
    try:
        spec = ClusterSpec.model_validate(dict(document))
    except ValidationError as error:
        for problem in error.errors():
            origin.problems.extend(_in_words(problem, document))
    if origin.problems:
        raise origin.error()
    return spec


def _in_words(problem: Any, document: Mapping[str, Any]) -> list[tuple[Where, str]]:
    """One problem of pydantic's as a sentence about a field of the file."""
    where = tuple(str(part) for part in problem["loc"])
    kind, given, context = problem["type"], problem["input"], problem.get("ctx", {})
    reason = context.get("error")
    if isinstance(reason, RelationErrors):
        return [((*where, *path), text) for path, text in reason.problems]
    if reason is not None and kind == "value_error":
        if where[-1:] == ("[key]",):
            return [(where[:-1], f"the name {reason}")]
        return [(where, str(reason))]
    if kind == "extra_forbidden":
        return [(where, _unknown_field(where))]
    if kind == "literal_error":
        return [(where, f"must be {context['expected']}, got {given!r}")]
    if kind == "model_type" or kind == "dict_type":
        return [(where, f"must be a section ({{name: value}}), got {given!r}")]
    wanted = _WANTED.get(kind)
    if wanted is not None:
        limits = {name: _size_or_number(value) for name, value in context.items()}
        return [(where, f"must be {wanted.format(**limits)}, got {given!r}")]
    return [(where, f"{str(problem['msg']).replace('Input should', 'should')}, got {given!r}")]


def _size_or_number(value: Any) -> str:
    is_size = isinstance(value, int) and value >= 1024 and value % 1024 == 0
    return (
        format_size(value) if is_size else f"{value:g}" if isinstance(value, float) else str(value)
    )


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "float_type": "a number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


def _unknown_field(where: Where) -> str:
    name, known = where[-1], _known_fields(where[:-1])
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"known here are {', '.join(known)}"
    return f"is not a field of a cluster spec; {hint}"


def _known_fields(where: Where) -> list[str]:
    """Names, as the file has them, of the fields in the section at ``where``."""
    model: type[BaseModel] = ClusterSpec
    for part in where:
        named = {info.alias or name: info.annotation for name, info in model.model_fields.items()}
        inner = _models_in(named.get(part))
        if inner:
            model = inner[0]
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models that an annotation such as ``X | None`` or ``dict[str, X]`` mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
