import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.engine.stop_strings import StopFilter

SHORT = st.text("ab", max_size=12)


def feed_all(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    stop = StopFilter(stops)
    text = ""
    for piece in pieces:
        text += stop.feed(piece)
        if stop.stopped:
            return text, True
    return text + stop.finish(), False


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(SHORT))
def test_text_ends_before_the_first_stop_wherever_pieces_end(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    text, stopped = feed_all(stops, pieces)
    assert stopped == any(stop in whole for stop in stops)
    assert not any(stop in text for stop in stops)
    assert whole.startswith(text)
    if not stopped:
        assert text == whole


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.lists(SHORT))
def test_matched_stop_is_the_one_that_the_text_ends_before(stops: list[str], pieces: list[str]) -> None:
    stop, text = StopFilter(stops), ""
    for piece in pieces:
        text += stop.feed(piece)
        if stop.matched is not None:
            assert stop.matched in stops
            assert "".join(pieces).startswith(text + stop.matched)
            return
    assert not any(each in "".join(pieces) for each in stops)


def test_only_what_may_become_a_stop_is_held_back() -> None:
    stop = StopFilter(["</s>"])
    assert stop.feed("a<") == "a"
    assert stop.feed("b</") == "<b"
    assert stop.feed("s>c") == ""
    assert stop.stopped


def test_the_earliest_stop_wins() -> None:
    assert feed_all(["late", "early"], ["now early then late"]) == ("now ", True)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(SHORT, max_size=4),
    st.lists(SHORT, max_size=4),
)
def test_stop_that_ends_in_exempt_text_is_none(stops: list[str], exempt: list[str], pieces: list[str]) -> None:
    stop = StopFilter(stops)
    text = "".join(stop.feed(piece, is_exempt=True) for piece in exempt)
    assert [stop.stopped] == [False]
    for piece in pieces:
        text += stop.feed(piece)
        if stop.stopped:
            break
    else:
        text += stop.finish()
    whole, first = "".join([*exempt, *pieces]), len("".join(exempt))
    ends = [at for at in range(len(whole)) if any(whole[at:].startswith(s) and at + len(s) > first for s in stops)]
    assert stop.stopped == bool(ends)
    assert whole.startswith(text)
    if not ends:
        assert text == whole


def test_stop_that_begins_in_exempt_text_and_ends_behind_it_is_one() -> None:
    stop = StopFilter(["b", "abc"])
    assert stop.feed("xb ab", is_exempt=True) == "xb "
    assert stop.feed("c") == ""
    assert stop.stopped


@pytest.mark.parametrize(
    ("marks", "text", "shown"),
    [
        (("<t>", "</t>"), "<t>no stop</t>\n\nyes stop", "<t>no stop</t>\n\nyes "),
        (("", "</t>"), "no stop</t>yes stop", "no stop</t>yes "),
        (("", "</t>"), "no stop", "no stop"),
        (("<t>", "</t>"), "yes stop</t>", "yes "),
        (("<t>", "</t>"), "<stop", "<"),
        (("", "stop"), "nostopyesstop", "nostopyes"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_stop_strings_wait_for_the_end_of_the_reasoning(
    marks: tuple[str, str], text: str, shown: str, size: int
) -> None:
    stop, found = StopFilter(["stop"], marks), ""
    for place in range(0, len(text), size):
        found += "" if stop.stopped else stop.feed(text[place : place + size])
    found += "" if stop.stopped else stop.finish()
    assert (found, stop.stopped) == (shown, shown != text)


def test_start_of_a_mark_that_nothing_completes_is_searched_for_stop_strings() -> None:
    stop = StopFilter(["<"], ("<t>", "</t>"))
    assert (stop.feed("<"), stop.stopped) == ("", False)
    assert (stop.finish(), stop.matched) == ("", "<")
