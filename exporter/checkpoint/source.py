"""The source of a checkpoint: an installed package, a folder, a GGUF file or a hub id."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from specc.errors import EnvironmentFault, InputError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
GGUF_MAGIC = b"GGUF"
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "LICENSE*"]


@dataclass(frozen=True)
class Source:
    """A checkpoint on this disk: a folder with safetensors or one GGUF file, and its name in the recipe."""

    text: str
    path: Path
    revision: str | None

    @property
    def is_gguf(self) -> bool:
        """Whether it is one GGUF file, not a folder."""
        return is_gguf_file(self.path)


def find_source(text: str, revision: str | None, base: Path) -> Source:
    """Find a checkpoint by the name that a recipe gives it; relative paths start at `base`.

    Links are followed, but the path keeps the name that was written: a store that files are linked into may
    name them by their hash. Raises InputError when there is no such package, file or folder,
    EnvironmentFault when the hub cannot be reached.
    """
    if text.startswith("package:"):
        path, version = find_in_package(text)
        return Source(text, path, revision or version)
    path = (base / Path(text).expanduser()).absolute()
    if path.is_dir() or is_gguf_file(path):
        return Source(text, path, revision)
    if path.is_file():
        raise InputError(
            f"The checkpoint {text!r} is a file but not a GGUF; "
            "name a .gguf file or a folder with safetensors."
        )
    if path.is_symlink():
        raise InputError(
            f"The checkpoint {text!r} is a link to {path.readlink()}, which is not there; "
            "fetch the file again or name another one."
        )
    if HUB_ID.fullmatch(text) and path.suffix != ".gguf":
        return Source(text, fetch_from_hub(text, revision), revision)
    raise InputError(
        f"The checkpoint {text!r} was not found at {path}; "
        "name a folder, a .gguf file, a hub id or package:NAME/FILE."
    )


def is_gguf_file(path: Path) -> bool:
    """Whether a file is a GGUF: by the name that was written, else by the first bytes of what it leads to."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def find_in_package(text: str) -> tuple[Path, str]:
    """(path, version) of `package:NAME/FILE`; NAME is the distribution, and the package is not imported.

    Raises InputError for a package or file that is not there and for a FILE that leads out of the package.
    """
    name, _, file = text.removeprefix("package:").partition("/")
    if not name or not file:
        raise InputError(f"The checkpoint {text!r} names no file; write package:NAME/FILE.")
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"The package {name!r} is not installed; install it with: pip install --no-deps {name}"
        ) from None
    folder = find_import_folder(distribution, name)
    pure, path = PurePosixPath(file), (folder / file).absolute()
    leads_out = pure.is_absolute() or ".." in pure.parts  # a link may: an installer's store holds the file
    if leads_out or not path.exists():
        raise InputError(
            f"The package {name} {distribution.version} holds no file {file!r}; "
            f"look into {folder.name}/ for its name."
        )
    return path, distribution.version


def find_import_folder(distribution: importlib.metadata.Distribution, name: str) -> Path:
    """The folder of the package that a distribution installs."""
    listed = (distribution.read_text("top_level.txt") or "").split()
    for module in (*listed, name.replace("-", "_")):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
    raise InputError(f"The package {name!r} is installed but holds no importable folder; install it again.")


def fetch_from_hub(repo: str, revision: str | None) -> Path:
    """The folder of a checkpoint of the Hugging Face hub, downloaded or from the local cache."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repo, revision=revision, allow_patterns=HUB_FILES))
    except ImportError:
        raise EnvironmentFault(
            "The package huggingface_hub is missing; install specc with its extra: specc[build]."
        ) from None
    except Exception as error:  # the hub client raises errors of many libraries
        reason = type(error).__name__
        raise EnvironmentFault(
            f"The checkpoint {repo!r} is neither a local path nor could it be fetched from the hub "
            f"({reason}); check the name and the network, or download it and name the folder."
        ) from None
