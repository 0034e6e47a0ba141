"""Record where text behind URLs came from: commits, files, sizes and versions, so that it need not be read again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from data_pipelines.corpus import Manifest, SplitName
from data_pipelines.prepare.parts import fingerprint
from data_pipelines.readers import Errors
from data_pipelines.sources import Source
from xlnet_jax.printing import without_secrets

Origin = dict[str, Any]


def origins(text: Mapping[SplitName, Sequence[Source] | None]) -> dict[str, list[Origin | None]]:
    """Return, for each split, where the text of each source came from, None for text on disk; {} if all of it is."""
    found: dict[str, list[Origin | None]] = {
        split: [_origin(source) for source in given or ()] for split, given in text.items()
    }
    return found if any(origin for of_split in found.values() for origin in of_split) else {}


def fingerprints(split: SplitName, text: Sequence[Source], errors: Errors, made: Manifest) -> list[str]:
    """Return the fingerprint of each source (`parts.fingerprint`): from the manifest of a corpus, if its record of the
    files shows that it was made of this source, else by reading the text.

    A dataset of the Hub that is named without a commit is the one at the commit of the record.
    """
    there = list(zip(made.origins.get(split) or (), made.made_from.get(split) or (), strict=False))
    return [
        there[number][1]
        if number < len(there) and _is_the_same(_origin(source), there[number][0])
        else fingerprint(source, errors)
        for number, source in enumerate(text)
    ]


def _origin(source: Source) -> Origin | None:
    if not source.remote:
        return None
    commit = re.match(r"hf://[^@]+@([^/]+)/", source.remote[0].url)
    return {
        "name": without_secrets(source.given),
        "commit": commit and commit[1],
        "files": [[without_secrets(file.url), file.size, file.version] for file in source.remote],
    }


def _is_the_same(origin: Origin | None, recorded: Origin | None) -> bool:
    if origin is None or recorded is None:
        return False
    if recorded["commit"] and "@" not in recorded["name"] and origin["name"] == recorded["name"]:
        return True
    known = all(version for _, _, version in origin["files"])
    return known and [file[1:] for file in origin["files"]] == [list(file[1:]) for file in recorded["files"]]
