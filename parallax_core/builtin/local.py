"""The source of models in the user's own folders: ``file:PATH``, or just the path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallax_core.base.errors import ParallaxError, Unsupported
from parallax_core.checkpoint.folder_layout import check_folder
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.source import ModelFolder, SourceContext, StoredModel


class LocalSource:
    """Checks and returns model folders by path; copies and deletes nothing."""

    def __init__(self, context: SourceContext) -> None:
        """Ignore ``context``: the models stay where the user put them."""

    def find(self, name: str) -> ModelFolder:
        """Return the folder at ``name``, as `fetch` does, since there is nothing to download."""
        return self.fetch(name, silent)

    def fetch(self, name: str, progress: Progress) -> ModelFolder:  # noqa: ARG002 - checking takes almost no time
        """Return the folder at ``name``, which may be relative and may begin with ``~``.

        Raises:
            ParallaxError: if it is not a folder or not a complete model.
        """
        path = _resolve(name)
        if not path.is_dir():
            raise _not_a_folder(path)
        try:
            check_folder(path)
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise ParallaxError(message, "check the permissions of the folder and its files") from error
        return ModelFolder(path=path, ref=str(path))

    def stored(self) -> Sequence[StoredModel]:
        """Return nothing: the user's folders are not stored by Parallax."""
        return ()

    def remove(self, name: str) -> int:
        """Refuse to delete the user's folder.

        Raises:
            Unsupported: always.
        """
        message = f"{name} is your own folder, which is never deleted"
        raise Unsupported(message, "delete it yourself if you no longer need it")


def _resolve(name: str) -> Path:
    try:
        return Path(name).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        message = f"{name!r} is not a usable path: {error}"
        raise ParallaxError(message, "give the path of a model folder") from error


def _not_a_folder(path: Path) -> ParallaxError:
    if not path.exists():
        return ParallaxError(f"there is no folder {path}", "check the path; a model of the hub is written hf:ORG/NAME")
    if path.suffix == ".gguf":
        return ParallaxError(
            f"{path} is a GGUF file, not a model folder",
            f"write gguf:{path}, or use the original model it was made from",
        )
    return ParallaxError(f"{path} is a file, not a model folder", f"try its folder, {path.parent}")
