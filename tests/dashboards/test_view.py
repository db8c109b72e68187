"""What the URL says becomes a view, whatever it says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.slo import Slo
from tracekit.analysis.window import ALL
from tracekit_dashboards.markup import plain
from tracekit_dashboards.view import PINNED, SHARED, SLO, WINDOW, View, link, parse_view

MINUTE_NS = 60_000_000_000
NOW = 1_795_982_400_000_000_000 + 37_000_000_000


def test_nothing_asked_is_the_whole_store() -> None:
    parsed = parse_view({}, now_unix_ns=NOW)
    assert parsed.view == View()
    assert parsed.view.window == ALL
    assert not parsed.errors


def test_everything_asked() -> None:
    parsed = parse_view(
        {
            "window": "2026-11-29T20:00Z..2026-11-29T21:00Z",
            "model": "m",
            "route": "r",
            "slo": "ttft=800ms",
            "at": "1795982418950825860",
        },
        now_unix_ns=NOW,
    )
    assert not parsed.errors
    view = parsed.view
    since, until = view.window.since_unix_ns, view.window.until_unix_ns
    assert since is not None and until is not None
    assert until - since == 60 * MINUTE_NS
    assert (view.model, view.route) == ("m", "r")
    assert view.slo == Slo(ttft_ms=800)
    assert view.pinned_unix_ns == 1_795_982_418_950_825_860


def test_durations_are_shared_for_a_minute() -> None:
    first = parse_view({"window": "15m"}, now_unix_ns=NOW).view
    assert first.window.since_unix_ns == NOW // MINUTE_NS * MINUTE_NS - 15 * MINUTE_NS
    assert parse_view({"window": "15m"}, now_unix_ns=NOW + 22_999_999_999).view == first
    assert parse_view({"window": "15m"}, now_unix_ns=NOW + 23_000_000_000).view != first


@given(st.dictionaries(st.sampled_from(SHARED), st.text(max_size=30)))
def test_any_text_is_a_view_or_an_error_of_its_parameter(params: dict[str, str]) -> None:
    parsed = parse_view(params, now_unix_ns=NOW)
    assert set(parsed.errors) <= set(params) & {WINDOW, SLO, PINNED}
    for name in parsed.errors:
        # what was not understood is left out
        assert not parse_view({name: ""}, now_unix_ns=NOW).errors


def test_links_carry_the_view_and_nothing_else() -> None:
    params = {"window": "15m", "model": "a&b=c", "slo": "", "at": "7", "token": "s", "request": "x"}
    assert link(params, request="r1", phase=None) == {
        "window": "15m",
        "model": "a&b=c",
        "at": "7",
        "request": "r1",
    }


@given(st.text(max_size=60))
def test_plain_text_has_no_markup(text: str) -> None:
    escaped = plain(text)
    assert "\n" not in escaped
    bare = escaped.replace("\\\\", "")
    for mark in "*_`[]$<>":
        assert bare.count(mark) == bare.count("\\" + mark)
