"""A client of pyright's language server, which renames by types.

npm install pyright; export PYRIGHT=$PWD/node_modules/pyright
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

SETTINGS = {
    "include": ["apps", "libs", "services", "proto", "tests", "bench", "scripts", "examples", "deploy"],
    "exclude": ["**/.venv", "**/node_modules", "**/build"],
    "venvPath": ".",
    "venv": ".venv",
    "extraPaths": ["tests"],
    "reportMissingImports": False,
    "typeCheckingMode": "off",
}

FIND_FILES_S = 15.0


class LanguageServer:
    """A server that has read the tree. Its configuration is a file in the root until it is closed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._config = root / "pyrightconfig.json"
        self._config.write_text(json.dumps(SETTINGS), encoding="utf-8")
        program = Path(os.environ["PYRIGHT"]) / "langserver.index.js"
        self._process = subprocess.Popen(
            ["node", "--max-old-space-size=6000", str(program), "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._number = 0
        self._open: set[Path] = set()
        self.request(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": root.as_uri(),
                "workspaceFolders": [{"uri": root.as_uri(), "name": "muster"}],
                "capabilities": {
                    "workspace": {
                        "workspaceEdit": {"documentChanges": False},
                        "configuration": True,
                        "workspaceFolders": True,
                    },
                    "textDocument": {"rename": {"prepareSupport": False}},
                },
            },
        )
        self.notify("initialized", {})
        # It looks for the tree's files when it is idle. A request before that finds places in few of them.
        time.sleep(FIND_FILES_S)

    def close(self) -> None:
        self.request("shutdown", None)
        self.notify("exit", None)
        self._process.wait(20)
        self._config.unlink()

    def open(self, file: Path) -> None:
        if file in self._open:
            return
        self._open.add(file)
        text = file.read_text(encoding="utf-8")
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def rename(self, file: Path, line: int, column: int, new: str) -> dict[Path, list[tuple[int, int, int, int, str]]]:
        """The edits of a rename, by file. Lines and columns begin with 0."""
        self.open(file)
        answer = self.request(
            "textDocument/rename",
            {"textDocument": {"uri": file.as_uri()}, "position": {"line": line, "character": column}, "newName": new},
        )
        edits: dict[Path, list[tuple[int, int, int, int, str]]] = {}
        changes = (answer or {}).get("changes") or {}
        for change in (answer or {}).get("documentChanges") or ():
            changes.setdefault(change["textDocument"]["uri"], []).extend(change["edits"])
        for uri, each in changes.items():
            path = Path(unquote(urlparse(uri).path))
            for edit in each:
                begin, end = edit["range"]["start"], edit["range"]["end"]
                edits.setdefault(path, []).append(
                    (begin["line"], begin["character"], end["line"], end["character"], edit["newText"])
                )
        return edits

    # ---- the protocol ----------------------------------------------------------------------------------------------

    def request(self, method: str, parameters: Any) -> Any:
        self._number += 1
        number = self._number
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})
        while True:
            message = self._read()
            if message.get("id") == number and "method" not in message:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message.get("result")
            if "method" in message and "id" in message:
                self._send({"jsonrpc": "2.0", "id": message["id"], "result": self._answer(message)})

    def notify(self, method: str, parameters: Any) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": parameters})

    def _answer(self, message: dict[str, Any]) -> Any:
        if message["method"] == "workspace/configuration":
            return [{} for _ in message["params"]["items"]]
        return None

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        size = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        if not size:
            raise RuntimeError("the language server ended")
        found: dict[str, Any] = json.loads(self._process.stdout.read(size))
        return found
