"""Files of conversations and traces become requests, and charts show what came of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallax_bench.arrival import follow_trace
from parallax_bench.chart import BARS, draw_bars, draw_charts
from parallax_bench.load import FILES, Wanted, load_dataset
from parallax_bench.plots import draw_run
from parallax_bench.request import BenchRequest, BenchResult
from parallax_core.api import ParallaxError

SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "Be kind."},
            {"from": "human", "value": "One?"},
            {"from": "gpt", "value": "x" * 41},
            {"from": "human", "value": "Two?"},
            {"from": "gpt", "value": ""},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "A rest of another one."}]},
    {"id": "c", "conversations": []},
    {"id": "d", "conversations": [{"from": "human", "value": "Three?"}, {"from": "bing", "value": "Yes."}]},
]
OPENAI = {"messages": [{"role": "user", "content": "a\u2028b"}, {"role": "assistant", "content": "c"}]}
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:47.1805900,3960,109

2023-11-16 18:15:46.9305900,0,0
"""
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,10,2,12,API log\n45.5,x,3,4,7,y\n"
)
MOONCAKE = [
    {"timestamp": 2000, "input_length": 1100, "output_length": 8, "hash_ids": [7, 8, 10]},
    {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [7, 8, 9]},
    {"timestamp": 500, "input_length": 6, "output_length": 5},
]


def load(path: Path, kind: str, content: Any, **wanted: Any) -> list[BenchRequest]:
    path = path / "data"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return load_dataset(f"{kind}:{path}", Wanted(**{"num": 9, **wanted}))


def write_lines(*entries: Any) -> str:
    return "\n".join(json.dumps(each, ensure_ascii=False) for each in entries)


def say(request: BenchRequest) -> list[str]:
    return [each["role"][0] + each["content"] for each in request.body["messages"]]


def test_first_question_of_each_conversation_is_asked(tmp_path: Path) -> None:
    requests = load(tmp_path, "sharegpt", SHAREGPT, num=3)
    assert [say(each) for each in requests] == [["sBe kind.", "uOne?"], ["uThree?"], ["sBe kind.", "uOne?"]]
    assert [each.body["max_tokens"] for each in requests] == [11, 1, 11], "about as long as recorded"
    assert load(tmp_path, "sharegpt", SHAREGPT, output_len=5)[0].body["max_tokens"] == 5
    assert load(tmp_path, "sharegpt", write_lines(*SHAREGPT), num=3) == requests, "on lines, too"


def test_each_question_of_a_conversation_is_asked_with_what_was_said_before(tmp_path: Path) -> None:
    requests = load(tmp_path, "conversations", write_lines(SHAREGPT[0], OPENAI), num=3)
    assert say(requests[1]) == ["sBe kind.", "uOne?", "a" + "x" * 41, "uTwo?"]
    assert say(requests[2]) == ["ua\u2028b"]
    lines = '{"prompt": "a\u2028b\u0085c"}\r\n{"prompt": "d"}'
    prompts = [each.body["prompt"] for each in load(tmp_path, "file", lines, num=2)]
    assert prompts == ["a\u2028b\u0085c", "d"], "a line ends where JSON lines do"


@pytest.mark.parametrize(
    ("content", "times", "lengths"),
    [(AZURE, [0.0, 0.25, 0.5], [(374, 44), (1, 1), (3960, 109)]), (BURST, [0.0, 40.5], [(10, 2), (3, 4)])],
)
def test_table_gives_times_and_lengths(
    tmp_path: Path, content: str, times: list[float], lengths: list[tuple[int, int]]
) -> None:
    requests = load(tmp_path, "trace", content)
    assert [each.at for each in requests] == pytest.approx(times, abs=1e-5)
    assert [(len(each.body["prompt"].split()), each.body["max_tokens"]) for each in requests] == lengths
    gaps = list(follow_trace(requests[1:], speed=2))
    assert gaps == pytest.approx([0.0, *(0.125 for _ in times[2:])], abs=1e-5)


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_blocks_of_the_same_id_are_the_same_words(tmp_path: Path, scale: float) -> None:
    small, first, last = sorted(
        (each.body["prompt"].split() for each in load(tmp_path, "trace", write_lines(*MOONCAKE), length_scale=scale)),
        key=len,
    )
    assert [len(each) for each in (small, first, last)] == [max(1, round(n * scale)) for n in (6, 1030, 1100)]
    block = round(512 * scale)
    assert first[: 2 * block] == last[: 2 * block]
    assert first[2 * block :] != last[2 * block : len(first)]
    assert [each.at for each in load(tmp_path, "trace", write_lines(*MOONCAKE))] == [0.0, 0.5, 2.0]
    assert load(tmp_path, "trace", write_lines(*MOONCAKE), seed=1) != load(tmp_path, "trace", write_lines(*MOONCAKE))


BAD = {
    "file": ["{", "[]", "{}", '{"prompt": "a", "messages": []}', "", "[" * 10**5],
    "sharegpt": ["[1]", '[{"id": "a"}]', '[{"conversations": [1]}]', '[{"conversations": [{"from": "human"}]}]', "[]"],
    "conversations": ['{"messages": "hi"}', '{"messages": [{"role": "user", "content": null}]}', "7"],
    "trace": [
        "",
        "a,b\n1,2",
        "timestamp,context tokens\n1,2",
        AZURE.replace("374", "many"),
        AZURE.replace("374", "-1"),
        AZURE.replace("374", "nan"),
        AZURE.replace("2023-11-16", "yesterday"),
        AZURE.replace(",44", ""),
        '{"timestamp": 1}',
        '{"timestamp": 1, "input_length": true, "output_length": 1}',
        '{"timestamp": 1, "input_length": 1e300, "output_length": 1}',
        '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1.5]}',
        "{}\n7",
    ],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in BAD.items() for text in texts])
def test_malformed_file_is_refused_by_where_it_is(tmp_path: Path, kind: str, text: str) -> None:
    with pytest.raises(ParallaxError) as caught:
        load(tmp_path, kind, text)
    assert str(tmp_path) in caught.value.message
    assert caught.value.hint


KEYS = [
    "messages",
    "conversations",
    "role",
    "content",
    "from",
    "value",
    "prompt",
    "timestamp",
    "input_length",
    "hash_ids",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**6) | st.floats() | st.sampled_from(["user", "human", "gpt", "5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYS, "output_length"]), inner),
    max_leaves=6,
)
LINES = st.lists(JSON, max_size=3).map(lambda found: "\n".join(map(json.dumps, found)).encode())
TABLES = st.lists(
    st.lists(st.sampled_from(["1", "x", "", '"', "2023-01-01", "1e9", "\0"]), max_size=4), max_size=3
).map(lambda rows: "\n".join(["timestamp,context_tokens,generated_tokens", *(",".join(row) for row in rows)]).encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(sorted(FILES)), st.binary(max_size=40) | LINES | TABLES)
def test_any_file_is_read_or_refused(tmp_path: Path, kind: str, data: bytes) -> None:
    path = tmp_path / "data"
    path.write_bytes(data)
    try:
        requests = load_dataset(f"{kind}:{path}", Wanted(num=3, length_scale=0.001))
    except ParallaxError:
        return
    assert 0 < len(requests) <= 3
    times = [each.at for each in requests if each.at is not None]
    assert times == sorted(times)
    assert all(gap >= 0 for gap in follow_trace(requests, 1.0))
    json.dumps([each.body for each in requests])


def test_chart_has_its_highest_bar_where_most_values_are() -> None:
    values = [0.0] * 8 + [5.0] * 4 + [10.0]
    assert draw_bars(values, width=11) == "█    ▄    ▁"
    assert draw_bars([3.0, 3.0], width=3) == "█  "
    results = [BenchResult(sent=0, first=0.1, last=0.4, gaps=[0.1, 0.2]), BenchResult(sent=0, error="500", first=9)]
    lines = list(draw_charts(results, "utf-8"))
    assert [line.split()[0] for line in lines] == ["ttft", "itl", "e2e"]
    assert lines[1].split()[1] == "100.0"
    assert lines[1].endswith(" 200.0 ms")
    assert not set("".join(draw_charts(results, "ascii"))) & set(BARS[1:])
    assert list(draw_charts([], "utf-8")) == []


def test_plots_are_one_svg_file() -> None:
    text = draw_run([BenchResult(sent=0, first=0.1, last=0.4, output_tokens=3), BenchResult(sent=0, error="x")])
    assert text.startswith("<?xml")
    assert text.count("<svg") == 1
    assert draw_run([]).count("<svg") == 1


def test_names_of_datasets_are_told() -> None:
    for name in ("nothing", "trace:", "trace", ":x", f"trace:{os.devnull}x"):
        with pytest.raises(ParallaxError) as caught:
            load_dataset(name, Wanted(num=1))
        assert caught.value.hint
