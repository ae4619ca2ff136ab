"""What the pages of the reference show of the program itself: docstrings, commands, cluster.yaml.

Called by mkdocs (``hooks:`` of mkdocs.yml): once before it begins, and for each page with its text.
"""

from __future__ import annotations

import inspect
import itertools
import shutil
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build" / "docs-tree"


def on_startup(**_: Any) -> None:
    """The package as it is installed, of links: in the checkout its rooms lie at the root, and who
    reads docstrings without importing looks for them below ``stelae/``. Before the configuration is
    read, which leaves out folders that are not there."""
    shutil.rmtree(TREE, ignore_errors=True)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name, folder in settings["tool"]["setuptools"]["package-dir"].items():
        for module in sorted((ROOT / folder).rglob("*.py")):
            link = TREE / name.replace(".", "/") / module.relative_to(ROOT / folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(module)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text with what its markers stand for."""
    for marker, made in MARKERS.items():
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    return markdown


def commands() -> str:
    """Every command with its text and its parameters."""
    from stelae.cli.app import app

    command = typer.main.get_command(app)
    return "\n".join(_command(command, typer.Context(command, info_name="stelae"), 2))


def _command(command: Any, context: typer.Context, level: int) -> Iterator[str]:
    yield f"{'#' * min(level, 4)} `{context.command_path}`\n"
    yield inspect.cleandoc(_plain(command.help or "")) + "\n"
    rows = [row for row in map(_parameter, command.get_params(context)) if row]
    if rows:
        yield "| | |\n|---|---|"
        yield from rows
        yield ""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                inner = typer.Context(found, info_name=name, parent=context)
                yield from _command(found, inner, level + 1)


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        if parameter.hidden or "--help" in parameter.opts:
            return ""
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    else:
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    text = _plain(parameter.help or "").replace("\n", " ").replace("|", "\\|")
    return f"| {names} | {text} |"


def _plain(text: str) -> str:
    """Without typer's marks for paragraphs that keep their lines."""
    return text.replace("\b", "").replace("\f", "")


def default_cluster() -> str:
    """The repository's own file."""
    return f"```yaml\n{(ROOT / 'cluster.yaml').read_text().rstrip()}\n```"


def fields() -> str:
    """Each field of the spec with its default and what its model says of it."""
    from stelae.core.config.spec import ClusterSpec

    rows = ["| field | default | |", "|---|---|---|", *_fields(ClusterSpec, "")]
    return "\n".join(rows)


def _fields(model: type[BaseModel], path: str) -> Iterator[str]:
    texts = _texts(model)
    for name, field in model.model_fields.items():
        shown = f"{path}{field.alias or name}"
        inner = _section(field.annotation)
        if inner is not None:
            yield from _fields(inner, f"{shown}.")
            continue
        default = "" if field.is_required() else str(field.get_default(call_default_factory=True))
        default = default.replace("|", "\\|")
        yield f"| `{shown}` | {f'`{default}`' if default else ''} | {texts.get(name, '')} |"


def _section(annotation: Any) -> type[BaseModel] | None:
    found = [annotation, *getattr(annotation, "__args__", ())]
    models = [each for each in found if isinstance(each, type) and issubclass(each, BaseModel)]
    return models[0] if models else None


def _texts(model: type[BaseModel]) -> dict[str, str]:
    """The strings below the fields in the source, which Python itself does not keep."""
    import ast

    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    texts: dict[str, str] = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            value = getattr(text.value, "value", "")
            texts[field.target.id] = " ".join(str(value).split())  # type: ignore[union-attr]
    return texts


MARKERS = {
    "<!-- the commands -->": commands,
    "<!-- the default cluster -->": default_cluster,
    "<!-- the fields -->": fields,
}
