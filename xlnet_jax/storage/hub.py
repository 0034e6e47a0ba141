"""Find models by name, in the package and on the Hugging Face Hub, and upload models to the Hub.

A name is OWNER/NAME or a short name in SHORT_NAMES, optionally followed by @ and a revision: a branch, a tag, a commit
or refs/pr/NUMBER. Files are in the cache of huggingface_hub, whose variables apply: HF_HOME, HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE. The library is imported when a name is looked up.
"""

import contextlib
import glob
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from xlnet_jax.errors import FULL, REFUSED, InputError, first_line
from xlnet_jax.printing import printing_bars

BUNDLED = ("tiny",)
"""Models in the package, each a folder in the Hugging Face format"""
SHORT_NAMES = {
    "xlnet-base-cased": "xlnet/xlnet-base-cased",
    "xlnet-large-cased": "xlnet/xlnet-large-cased",
    "chinese-xlnet-base": "hfl/chinese-xlnet-base",
    "chinese-xlnet-mid": "hfl/chinese-xlnet-mid",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "bert-base-cased": "google-bert/bert-base-cased",
    "bert-base-chinese": "google-bert/bert-base-chinese",
    "bert-base-multilingual-cased": "google-bert/bert-base-multilingual-cased",
    "bert-large-uncased": "google-bert/bert-large-uncased",
    "bert-large-cased": "google-bert/bert-large-cased",
    "roberta-base": "FacebookAI/roberta-base",
    "roberta-large": "FacebookAI/roberta-large",
    "albert-base-v2": "albert/albert-base-v2",
    "albert-large-v2": "albert/albert-large-v2",
    "electra-small-discriminator": "google/electra-small-discriminator",
    "electra-base-discriminator": "google/electra-base-discriminator",
    "electra-large-discriminator": "google/electra-large-discriminator",
}
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_MODEL = re.compile(rf"({_WORD})/{_WORD}")
_FILE = re.compile(r".*\.(model|json|txt|index|bin|safetensors|ckpt(-\d+)?)")
_OUR_RUNS = "runs"  # default folder of workdirs: a typo in runs/NAME must not query the network
_ALWAYS_THERE = ".gitattributes"  # avoids the library's warning if nothing matches
_SHOWN_FILES = 12
_NO_FILE = "there is no such file or folder here"


@dataclass(frozen=True)
class ModelRepository:
    """Repository of a model at one commit."""

    name: str  # OWNER/NAME
    commit: str
    files: tuple[str, ...]  # in the repository, or in the cache if the Hub was not reached
    folder: Path  # where the fetched files are

    def __str__(self) -> str:
        return f"{self.name}@{self.commit}"

    def fetch(self, files: Sequence[str]) -> None:
        """Fetch files into `folder`, except those in the cache. Raises InputError."""
        missing = [glob.escape(file) for file in files if not (self.folder / file).exists()]
        if missing:
            with _explaining_hub_errors(self.name, "the download broke off"), printing_bars():
                _library().snapshot_download(self.name, revision=self.commit, allow_patterns=missing)

    def contents(self) -> str:
        """Return a list of its files for messages."""
        shown = [file for file in self.files if file != _ALWAYS_THERE]
        more = f" and {len(shown) - _SHOWN_FILES} more" if len(shown) > _SHOWN_FILES else ""
        return f"found {', '.join(shown[:_SHOWN_FILES]) or 'nothing'}{more}"


def is_bundled(source: object) -> bool:
    """Return True for the name of a model in the package, unless it is also a path on this machine: a path always
    wins."""
    return isinstance(source, str) and source in BUNDLED and not os.path.lexists(source)


def bundled_folder(name: str) -> Path:
    """Return the folder of a model in the package."""
    return Path(__file__).parents[1] / "weights" / name


def is_name(text: object) -> bool:
    """Return True for text that looks like a model's name, and False for a path: ./x, /x, a/b/c, x/, runs/x, x/y.json.
    Nothing is looked up."""
    if not isinstance(text, str):
        return False
    name, at, revision = text.partition("@")
    if at and not re.fullmatch(rf"{_WORD}(/{_WORD})*", revision):
        return False
    if name in SHORT_NAMES:
        return True
    parts = _MODEL.fullmatch(name)
    return parts is not None and parts[1] != _OUR_RUNS and not _FILE.fullmatch(name)


def is_remote(source: object) -> bool:
    """Return True for a name of a model (`is_name`) that is not also a path on this machine: a path always wins."""
    return is_name(source) and not os.path.lexists(str(source))


def is_same(name: str, model: str) -> bool:
    """Return True if a name matches the model OWNER/NAME@COMMIT. A name without a revision matches every commit."""
    full, revision = _parts(name)
    known, commit = _parts(model)
    return is_name(model) and full == known and revision in (None, commit)


def suggestion(word: str) -> str:
    """Return "; did you mean NAME?" for a word similar to a short name or to a model in the package, else an empty
    string."""
    near = get_close_matches(word, (*SHORT_NAMES, *BUNDLED), 1, 0.8)
    return f"; did you mean {near[0]}?" if near else ""


def find(name: str, patterns: Sequence[str]) -> ModelRepository:
    """Find a model by name (`is_name`) and fetch its files that match these patterns.

    If the Hub cannot be reached, use the model in the cache. Raises InputError if there is neither.
    """
    library = _library(f"{name}: {_NO_FILE}; a model of the Hugging Face Hub")
    full, revision = _parts(name)
    with _explaining_hub_errors(full, f"{_NO_FILE}, and the Hub gave none", revision), printing_bars():
        try:
            fetched = library.snapshot_download(full, revision=revision, allow_patterns=[*patterns, _ALWAYS_THERE])
        except library.errors.LocalEntryNotFoundError as unreached:
            try:
                fetched = library.snapshot_download(full, revision=revision, allow_patterns=[], local_files_only=True)
            except library.errors.LocalEntryNotFoundError:
                raise unreached from unreached.__cause__
        folder = Path(fetched)
        try:
            files = library.HfApi().list_repo_files(full, revision=folder.name)
        except _transport_errors():
            files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    return ModelRepository(full, folder.name, tuple(sorted(files)), folder)


def require_account(name: str) -> None:
    """Raise InputError if no model can be uploaded under this name: an invalid name, or no token."""
    library = _library("`push`")
    if not re.fullmatch(rf"({_WORD}/)?{_WORD}", name):
        raise InputError("push", name, ": give a name of the form OWNER/NAME")
    with _explaining_hub_errors(f"`push` {name}", "nothing can be uploaded"):
        try:
            library.HfApi().whoami()
        except library.errors.LocalTokenNotFoundError:
            raise InputError(
                "push",
                name,
                ": no Hugging Face token: run `hf auth login` or set HF_TOKEN, with write access "
                "(https://huggingface.co/settings/tokens)",
            ) from None


def push(folder: Path, name: str) -> str:
    """Upload a folder as a model, created if it does not exist; return its URL. Raises InputError."""
    later = f"the upload failed; {folder} is complete, `hf upload {name} {folder}` uploads it later"
    with _explaining_hub_errors(f"`push` {name}", later):
        api = _library("`push`").HfApi()
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message="Upload from xlnet_jax")
    return str(address)


def _library(what: str = "") -> Any:
    """Import and return huggingface_hub, with progress bars only on terminals. Raises InputError if it is not
    installed."""
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise InputError(f"{what} needs huggingface_hub: pip install -e '.[hub]' in the clone") from None
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    return huggingface_hub


def _parts(name: str) -> tuple[str, str | None]:
    short, _, revision = name.partition("@")
    return SHORT_NAMES.get(short, short), revision or None


@contextlib.contextmanager
def _explaining_hub_errors(name: str, otherwise: str, revision: str | None = None) -> Iterator[None]:
    """Turn errors of the library into InputErrors of one line. otherwise: message for errors that are not about the
    model, such as those of the network."""
    from huggingface_hub import errors, get_token

    login = "" if get_token() else "; a private model needs a token: run `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:
        raise InputError(
            f"{name}: its owner has to grant you access: request it at https://huggingface.co/{name}"
            f"{login and ', then run `hf auth login`, or set HF_TOKEN'}"
        ) from None
    except errors.RepositoryNotFoundError:
        hint = suggestion(name.rpartition("/")[2]) or login
        raise InputError(f"{name}: {_NO_FILE}, and no such model on the Hugging Face Hub{hint}") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{name} has no revision {revision} on the Hugging Face Hub") from None
    except _transport_errors() as error:
        if isinstance(error, OSError) and error.errno in (*FULL, *REFUSED):
            raise
        raise InputError(f"{name}: {otherwise}: {_reason(error)}") from None


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that the library raises for failed requests: those of its HTTP client, and OSError."""
    from huggingface_hub import errors

    return (*errors.HfHubHTTPError.__bases__, OSError)


def _reason(error: BaseException) -> str:
    """Return a short reason why a request to the Hub failed."""
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and the model is not, or not completely, in the cache: unset it to download"
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    if isinstance(cause, errors.HfHubHTTPError):
        return f"the Hugging Face Hub answered: {first_line(cause)}"
    return f"the Hugging Face Hub cannot be reached, or the connection broke ({first_line(cause)}); try again"
