"""TLC on the models of `spec/`: what holds, what each condition of a finish is there for, and that
the models can do what they are about. Expected figures are those of spec/README.md."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.spec.tlc import (
    FAILS,
    HOLDS,
    LARGER,
    RANDOM,
    SPEC,
    UNFINISHED,
    Model,
    models,
    read_outcome,
    run_tlc,
)

SECTIONS = (HOLDS, FAILS, LARGER, RANDOM, UNFINISHED)
QUICK = ("Migration_never_finishes", "Migration_without_cas")
"""Seconds each, so that `make test` has them, too."""


def quick_or_soak(section: str) -> list[object]:
    soak = pytest.mark.soak
    return [
        pytest.param(model, id=model.name, marks=() if model.name in QUICK else soak)
        for model in models(section)
    ]


def test_readme_lists_every_model_once() -> None:
    """A configuration that nobody runs would prove nothing."""
    listed = [model.name for part in SECTIONS for model in models(part)]
    assert sorted(listed) == sorted(path.stem for path in SPEC.glob("*.cfg"))
    assert all((SPEC / f"{name.partition('_')[0]}.tla").exists() for name in listed)


@pytest.mark.parametrize("model", quick_or_soak(HOLDS))
def test_a_model_holds(model: Model) -> None:
    """All its invariants, in as many distinct states as README.md says."""
    outcome = run_tlc(model.module, model.name)
    assert outcome.violated is None, outcome.text[-4000:]
    assert outcome.distinct_states == model.distinct_states > 0


@pytest.mark.parametrize("model", quick_or_soak(FAILS))
def test_a_model_fails_as_it_must(model: Model) -> None:
    """Without one condition something breaks; and what is said never to happen does happen."""
    outcome = run_tlc(model.module, model.name)
    assert outcome.violated == model.expected, outcome.text[-4000:]


PLANTED = [
    pytest.param(
        "Timeline.tla",
        "IsJoint(conf) => HasMajority(conf.new_sk_set, agreeing)",
        "TRUE",
        "Migration_one_to_one",
        id="a joint configuration asks the old set only",
    ),
    pytest.param(
        "ProposerAcceptor.tla",
        "    /\\ acc[a].conf = prop[p].conf\n",
        "",
        "Migration_one_to_one",
        id="generations are not compared",
    ),
    pytest.param(
        "ProposerAcceptor.tla",
        "    /\\ acc[a].term < prop[p].term\n    /\\ acc' = [acc EXCEPT ![a].term",
        "    /\\ acc[a].term <= prop[p].term\n    /\\ acc' = [acc EXCEPT ![a].term",
        "ProposerAcceptor_three",
        id="a second vote in a term",
    ),
    pytest.param(
        "ProposerAcceptor.tla",
        "LET end == Divergence(prop[p].log, acc[a].log)",
        "LET end == Min(Len(prop[p].log), Len(acc[a].log))",
        "ProposerAcceptor_three",
        id="logs are not cut where they part",
    ),
    pytest.param(
        "ProposerAcceptor.tla",
        "AtLeast(Position(log), Position(other))",
        "Len(log) >= 0",
        "ProposerAcceptor_three",
        id="any log will do for a leader",
    ),
    pytest.param(
        "Migration.tla",
        "<= conf.generation\n    /\\ acc' = [acc EXCEPT ![a] = Absent",
        "< 99\n    /\\ acc' = [acc EXCEPT ![a] = Absent",
        "Migration_again",
        id="deletion under a lower generation",
    ),
]


@pytest.mark.soak
@pytest.mark.parametrize(("file", "right", "wrong", "config"), PLANTED)
def test_a_planted_mistake_is_found(
    tmp_path: Path, file: str, right: str, wrong: str, config: str
) -> None:
    """The invariants see a protocol that lacks one of its rules."""
    for path in SPEC.glob("*"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / file).read_text()
    assert text.count(right) == 1
    (tmp_path / file).write_text(text.replace(right, wrong))
    outcome = run_tlc(config.partition("_")[0], config, folder=tmp_path)
    assert outcome.violated in ("ElectionSafety", "StaticLogSafety", "LogSafety", "ConfigSafety")


def test_an_unfinished_run_is_no_verdict() -> None:
    """TLC that died, or found a mistake in a module, must not count as a model that holds."""
    with pytest.raises(RuntimeError, match="did not finish"):
        read_outcome("Error: parsing failed", 1.0)
