"""Workers against their peers: at the same times only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tracekit.analysis import load

_S = 1_000_000_000
_SLICE = 75 * _S


@dataclass(frozen=True, slots=True)
class _Slice:
    level: float
    peer_level: float | None
    error: float

    @property
    def blames(self) -> bool:
        """The test of `causes.sql`."""
        if self.peer_level is None:
            return False
        share = self.level - self.peer_level
        return share > 0.15 and share > 3 * self.error


def _compared(
    worker: list[str], at_s: np.ndarray, ratio: np.ndarray
) -> dict[tuple[str, int], _Slice]:
    columns: dict[str, list[object]] = {name: [] for name in load._WORKERS.names}
    at = (at_s * _S).astype(np.int64)
    load._compare(
        columns,
        ("m", "decode"),
        np.asarray(worker, dtype=object),
        at,
        at,
        _SLICE,
        np.zeros((len(at), 2)),
        ratio,
        np.ones(len(at)),
    )
    return {
        (str(w), int(str(s))): _Slice(
            float(str(v)), None if p is None else float(str(p)), float(str(e))
        )
        for w, s, v, p, e in zip(
            columns["worker"],
            columns["slice_unix_ns"],
            columns["level"],
            columns["peer_level"],
            columns["standard_error"],
            strict=True,
        )
    }


def _traffic(seed: int, workers: int = 3) -> tuple[list[str], np.ndarray, np.ndarray]:
    """900 s; what is slow is looked at request by request, of the rest a few are."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, 900, 3_600))
    in_episode = (at >= 400) & (at < 460)
    at = at[in_episode | (rng.random(len(at)) < 0.15)]
    names = [f"w{i}" for i in rng.integers(0, workers, len(at))]
    return names, at, rng.lognormal(0, 0.1, len(at))


@pytest.mark.parametrize("seed", range(8))
def test_an_episode_that_all_share_blames_nobody(seed: int) -> None:
    worker, at, ratio = _traffic(seed)
    ratio[(at >= 400) & (at < 460)] *= 3
    found = _compared(worker, at, ratio)
    assert any(s.level > 2 for s in found.values())
    assert [k for k, s in found.items() if s.blames] == []


@pytest.mark.parametrize("seed", range(8))
def test_where_one_worker_served_in_the_episode_only_its_peers_are_compared_then(seed: int) -> None:
    """Its peers also served before and after, in the same slice: quickly, as it would have."""
    worker, at, ratio = _traffic(seed)
    slow = (at >= 400) & (at < 460)
    ratio[slow] *= 3
    first = np.array([w == "w0" for w in worker])
    rng = np.random.default_rng(seed)
    # in their half of the traffic the peers lie outside
    keep = np.where(first, slow | (at < 300) | (at > 600), ~slow | (rng.random(len(at)) < 0.15))
    kept = np.flatnonzero(keep)
    found = _compared([worker[i] for i in kept], at[kept], ratio[kept])
    # the slices that the episode lies in
    assert any(found[("w0", s)].level > 2 for s in (5, 6))
    assert [s for s in (5, 6) if found[("w0", s)].blames] == []


@pytest.mark.parametrize("seed", range(8))
def test_one_slow_worker_in_one_stretch_is_named(seed: int) -> None:
    worker, at, ratio = _traffic(seed)
    slow = np.array([w == "w0" for w in worker]) & (at >= 400) & (at < 460)
    ratio[slow] *= 3
    found = _compared(worker, at, ratio)
    assert {k[0] for k, s in found.items() if s.blames} == {"w0"}


def test_the_quartile_of_a_sample_of_two_kinds_is_uncertain_where_it_leaps() -> None:
    mixed = np.array([1.0] * 26 + [3.0] * 74)
    _, low, error = load._lower(mixed)
    assert low == 1.0
    assert error > 0.5
    assert load._lower(np.array([1.0] * 50 + [3.0] * 50))[2] < error


def test_a_row_that_comes_many_times_is_one_row() -> None:
    assert load._effective(np.array([4, 4, 4, 4])) == 1.0
    assert load._effective(np.array([1, 2, 3, 4])) == 4.0


def test_each_row_takes_the_nearest_peers_and_none_without_so_many_beside_it() -> None:
    at = np.array([20, 22, 50, 0, 18, 21, 23, 70, 71]) * _S
    others = np.array([3, 4, 5, 6, 7, 8])
    rows, peers = load._paired(at, np.array([0, 1, 2]), others, 19 * _S)
    assert rows.tolist() == [0, 1]
    assert sorted(peers.tolist()) == [4, 4, 5, 5, 6, 6]
    rows, peers = load._paired(at, np.array([0]), np.array([], dtype=np.int64), _S)
    assert len(rows) == len(peers) == 0
