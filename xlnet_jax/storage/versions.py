"""The version of each file format of this project, and the one check that every reader makes of it.

A JSON file has its version under `format_version`, and metrics.jsonl in its first record. From the first release on, a
format changes only together with its number here. docs/trust.md lists the files of each format.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from xlnet_jax.errors import InputError, shown

KEY = "format_version"
Format = Literal["checkpoint", "run", "metrics", "results", "thresholds", "comparison", "corpus", "tokenizer", "export"]
VERSIONS: dict[Format, int] = dict.fromkeys(get_args(Format), 1)


def with_version(name: Format, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file of this format with its version, which comes first."""
    return {KEY: VERSIONS[name], **content}


def without_version(name: Format, content: Any, where: str, remedy: str = "") -> dict[str, Any]:
    """Return the content of a file of this format without its version.

    where: name of the file in messages. remedy: what to do about a file of another version. Raises InputError where the
    content is not a dictionary, or has no version or another one.
    """
    reads = f"this xlnet_jax reads version {VERSIONS[name]} of {name} files"
    end = remedy and f"; {remedy}"
    if not isinstance(content, Mapping) or KEY not in content:
        raise InputError(f"{where} has no {KEY}: {reads}{end}")
    if (found := content[KEY]) != VERSIONS[name] or isinstance(found, bool):
        raise InputError(f"{where} has {KEY} {shown(found)}: {reads}{end}")
    return {key: value for key, value in content.items() if key != KEY}
