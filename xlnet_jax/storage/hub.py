"""Models by name: those that come with the package, and those of the Hugging Face Hub, which are fetched and uploaded.

A name is OWNER/NAME, or a short name of SHORT_NAMES; it may end in @ and a revision: a branch, a tag, a commit, or
refs/pr/NUMBER. Files lie in the cache of huggingface_hub, and its variables hold: HF_HOME, HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE. The library is imported when a name is looked up.
"""

import contextlib
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
"""Models that come with the package, each a folder of Hugging Face"""
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
_OUR_RUNS = "runs"  # default place of workdirs: a slip in runs/NAME is never asked of the network
_ALWAYS_THERE = ".gitattributes"  # the library warns where nothing matches
_SHOWN_FILES = 12
_NO_FILE = "there is no such file or folder here"


@dataclass(frozen=True)
class Model:
    """Repository of a model at one commit."""

    name: str  # OWNER/NAME
    commit: str
    files: tuple[str, ...]  # of the repository; those in the cache where the Hub was not reached
    folder: Path  # of the files that were fetched

    def __str__(self) -> str:
        return f"{self.name}@{self.commit}"

    def fetch(self, files: Sequence[str]) -> None:
        """Fetch files into `folder`; those that are in the cache are not fetched again. Raises InputError."""
        missing = [file for file in files if not (self.folder / file).exists()]
        if missing:
            with _in_one_line(self.name, "the download broke off"), printing_bars():
                _library().snapshot_download(self.name, revision=self.commit, allow_patterns=missing)

    def contents(self) -> str:
        """Say which files it has, for messages."""
        shown = [file for file in self.files if file != _ALWAYS_THERE]
        more = f" and {len(shown) - _SHOWN_FILES} more" if len(shown) > _SHOWN_FILES else ""
        return f"found {', '.join(shown[:_SHOWN_FILES]) or 'nothing'}{more}"


def is_bundled(source: object) -> bool:
    """Return True for the name of a model that comes with the package. A path on this machine wins, as it does over the
    names of models on the Hub."""
    return isinstance(source, str) and source in BUNDLED and not os.path.lexists(source)


def bundled_folder(name: str) -> Path:
    """Return the folder of a model that comes with the package."""
    return Path(__file__).parents[1] / "weights" / name


def is_name(text: object) -> bool:
    """Return True for a str in the form of a model's name, and False for what looks like a path: ./x, /x, a/b/c, x/,
    runs/x, x/y.json. Nothing is looked up."""
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
    """Return True where a name stands for the model OWNER/NAME@COMMIT as far as the names say: without a revision it
    stands for every commit."""
    full, revision = _parts(name)
    known, commit = _parts(model)
    return is_name(model) and full == known and revision in (None, commit)


def suggestion(word: str) -> str:
    """Return "; did you mean NAME?" for a word much like a short name, or the name of a model that comes with the
    package; else nothing."""
    near = get_close_matches(word, (*SHORT_NAMES, *BUNDLED), 1, 0.8)
    return f"; did you mean {near[0]}?" if near else ""


def find(name: str, patterns: Sequence[str]) -> Model:
    """Find the model of a name (`is_name`), and fetch its files that match these patterns.

    Where the Hub cannot be reached, the model is the one in the cache. Raises InputError, in one line, where there is
    neither.
    """
    library = _library(f"{name}: {_NO_FILE}; a model of the Hugging Face Hub")
    full, revision = _parts(name)
    with _in_one_line(full, f"{_NO_FILE}, and the Hub gave none", revision), printing_bars():
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
    return Model(full, folder.name, tuple(sorted(files)), folder)


def demand_account(name: str) -> None:
    """Raise InputError where nothing could be uploaded as this model: a name that cannot be one, or no token."""
    library = _library("`push`")
    if not re.fullmatch(rf"({_WORD}/)?{_WORD}", name):
        raise InputError(f"`push` {name}: a model of the Hugging Face Hub is named OWNER/NAME")
    with _in_one_line(f"`push` {name}", "nothing can be uploaded"):
        try:
            library.HfApi().whoami()
        except library.errors.LocalTokenNotFoundError:
            raise InputError(
                f"`push` {name}: there is no token of the Hugging Face Hub: give one by `hf auth login` or in HF_TOKEN "
                "(https://huggingface.co/settings/tokens, with the right to write)"
            ) from None


def push(folder: Path, name: str) -> str:
    """Upload a folder as a model, which is made where it does not exist; return its address. Raises InputError."""
    later = f"{folder} is complete, and `hf upload {name} {folder}` sends it later"
    with _in_one_line(f"`push` {name}", later):
        api = _library("`push`").HfApi()
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message="Upload from xlnet_jax")
    return str(address)


def _library(what: str = "") -> Any:
    """Return huggingface_hub, which draws its bars on terminals alone. Raises InputError where it is not installed."""
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise InputError(f"{what} needs huggingface_hub: pip install 'xlnet_jax[hub]'") from None
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    return huggingface_hub


def _parts(name: str) -> tuple[str, str | None]:
    short, _, revision = name.partition("@")
    return SHORT_NAMES.get(short, short), revision or None


@contextlib.contextmanager
def _in_one_line(name: str, otherwise: str, revision: str | None = None) -> Iterator[None]:
    """Turn the errors of the library into InputErrors of one line. otherwise: what an error means that says nothing of
    the model, such as one of the network."""
    from huggingface_hub import errors, get_token

    login = "" if get_token() else "; a private one needs a token: `hf auth login`, or HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:
        raise InputError(
            f"{name}: its owner has to grant you access on the Hugging Face Hub: ask for it at "
            f"https://huggingface.co/{name}{login and ', then give a token: `hf auth login`, or HF_TOKEN'}"
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
    """Return what the library raises where it does not get what it asked for: errors of its HTTP client, whichever that
    is, and OSError."""
    from huggingface_hub import errors

    return (*errors.HfHubHTTPError.__bases__, OSError)


def _reason(error: BaseException) -> str:
    """Return in a few words why the Hub did not give what was asked for."""
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE allows the cache of huggingface_hub alone, and it is not there, or not whole"
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    if isinstance(cause, errors.HfHubHTTPError):
        return f"the Hugging Face Hub answers: {first_line(cause)}"
    return f"the Hugging Face Hub cannot be reached, or the connection broke ({first_line(cause)}); try again"
