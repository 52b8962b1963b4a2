"""The whole table of what becomes of a shim that answered."""

from __future__ import annotations

import itertools

import pytest

from shim.model.loading import Decision, LoadFacts, Pids, Seen, decide

TABLE = {
    # pids        living          stopped                  not found          failed
    Pids.SOME: ("keep", "keep", "keep", "keep"),
    Pids.NONE: ("keep", "report stopped", "clean up", "keep"),
    Pids.NOT_FOUND: ("keep", "report stopped", "clean up", "keep"),
    Pids.FAILED: ("keep", "report stopped", "keep", "keep"),
}


@pytest.mark.parametrize(("pids", "seen"), list(itertools.product(Pids, Seen)))
def test_every_answer_has_its_decision(pids: Pids, seen: Seen) -> None:
    assert decide(LoadFacts(pids, seen)).value == TABLE[pids][list(Seen).index(seen)]


@pytest.mark.parametrize(("pids", "seen"), list(itertools.product(Pids, Seen)))
def test_a_sandbox_is_kept_whatever_its_shim_knows_of_tasks(pids: Pids, seen: Seen) -> None:
    assert decide(LoadFacts(pids, seen, sandbox=True)) is Decision.KEEP
