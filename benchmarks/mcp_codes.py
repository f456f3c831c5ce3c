"""An MCP server over standard input and output with one tool, for `benchmarks.agent_clis`: ``python mcp_codes.py``.

See https://modelcontextprotocol.io/specification; only what agents call is there.
"""

from __future__ import annotations

import json
import sys
from typing import Any

CODE = "seven-of-nine"
TOOL: dict[str, Any] = {
    "name": "find_code",
    "description": "Finds the code of a place.",
    "inputSchema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a call, or None if there is no such method."""
    match method:
        case "initialize":
            info = {"name": "codes", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{params['arguments']['place']}: {CODE}"}]}
        case "ping":
            return {}
        case _:
            return None


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:  # a notification
            continue
        result = answer(message["method"], message.get("params") or {})
        reply = {"error": {"code": -32601, "message": "unknown method"}} if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
