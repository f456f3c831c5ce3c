"""Writes the record of the plugin API, ``plugin_api_N.json`` where N is its number, and its reference page.

Run it when the API has grown: ``python tests/data/make_plugin_api.py``. It refuses an API that breaks plugins for the
same number; see docs/explanation/change-policy.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from parallax_core.api import PLUGIN_API
from tests.rules.contractpage import PAGE, write_page
from tests.rules.pluginapi import describe_api, find_breaks

PATH = Path(__file__).with_name(f"plugin_api_{PLUGIN_API}.json")


def main() -> int:
    """Write the files, unless the API has a break; return the exit code."""
    found = describe_api()
    breaks = list(find_breaks(json.loads(PATH.read_text(encoding="utf-8")), found)) if PATH.exists() else []
    if breaks:
        print(*breaks, sep="\n", file=sys.stderr)
        print(f"error: plugins for API {PLUGIN_API} would break", file=sys.stderr)
        print("hint: undo it, or raise PLUGIN_API in parallax_core/hookspecs.py", file=sys.stderr)
        return 1
    PATH.write_text(json.dumps(found, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    PAGE.write_text(write_page(), encoding="utf-8")
    print(PATH, PAGE, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
