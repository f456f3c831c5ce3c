from __future__ import annotations

from collections.abc import Sequence

from parallax_core.api import Draw, Drawn, Hidden, Score, Scored, State
from parallax_stage_tools.ranking import Inquiry, Ranking, make_answers

OUTPUTS = (Draw(0, count=2, top=1), Hidden(0), Score(0, token=7, top=3), Draw(0), Hidden(0))


def test_answers_are_in_the_order_of_their_outputs() -> None:
    asked: list[Inquiry] = []

    def rank(inquiries: Sequence[Inquiry]) -> list[Ranking]:
        asked.extend(inquiries)
        return [Ranking((-0.1, -0.2), ((5, -0.1),)), Ranking((-0.7,), ((1, -0.3),))]

    assert make_answers(OUTPUTS, [5, 6, 8], rank) == (
        Drawn((5, 6), (-0.1, -0.2), ((5, -0.1),)),
        State(0),
        Scored(-0.7, ((1, -0.3),)),
        Drawn((8,), (), ()),
        State(1),
    )
    assert asked == [Inquiry(0, (5, 6), 1), Inquiry(2, (7,), 3)]


def test_nothing_is_ranked_that_nobody_asked_for() -> None:
    def rank(_: Sequence[Inquiry]) -> list[Ranking]:
        raise AssertionError("nothing is asked")

    assert make_answers(OUTPUTS[3:], [8], rank) == (Drawn((8,), (), ()), State(0))


def test_draw_may_ask_for_its_own_tokens_only_and_several_tokens_for_nothing() -> None:
    def rank(inquiries: Sequence[Inquiry]) -> list[Ranking]:
        assert list(inquiries) == [Inquiry(0, (5,), 0), Inquiry(2, (9,), 0)]
        return [Ranking((-0.1,), ()), Ranking((-0.4,), ())]

    outputs = (Draw(0, top=0), Draw(0, count=2), Score(0, token=9))
    assert make_answers(outputs, [5, 6, 7], rank) == (Drawn((5,), (-0.1,)), Drawn((6, 7)), Scored(-0.4))
