"""Refusals that several objectives share: settings that contradict what is learned, and settings that it does not
read."""

from collections.abc import Iterator

from xlnet_jax.settings.config import Config, DataConfig


def without_query_stream(name: str, data: DataConfig) -> Iterator[str]:
    """Yield the contradictions of an objective whose content stream predicts."""
    if data.emit == "dense":
        yield (
            f"--objective {name} with data.emit dense: a target_mapping asks the query stream, which it has not; "
            "leave it compact"
        )
    if data.profile == "tf2":
        yield f"--objective {name} with data.profile tf2: it has no order in which <sep> and <cls> would come"


def nothing_masked(data: DataConfig) -> Iterator[str]:
    """Yield the contradiction of masked pieces that are all read as they are."""
    if not data.mask_share + data.random_share:
        yield "data.mask-share 0 with data.random-share 0: every target would be read as it is, and copied"


def next_token(name: str, config: Config) -> Iterator[str]:
    """Yield the contradictions of an objective that predicts the next token of running text."""
    model, data = config.model, config.data
    yield from without_query_stream(name, data)
    if model.num_segments:
        yield f"--objective {name} with model.num-segments {model.num_segments}: its text has no A and B; it needs 0"
    if data.bidirectional:
        yield f"--objective {name} with data.bidirectional: reversed rows would learn from right to left; turn it off"
    if data.window != "text":
        yield f"--objective {name} with data.window {data.window}: text is read on and on, without A, B and <sep>"
    if data.num_predict is not None:
        yield f"--objective {name} with data.num-predict {data.num_predict}: every position predicts; leave it None"
    if 0 < data.reuse_len < data.seq_len:
        yield (
            f"--objective {name} with data.reuse-len {data.reuse_len} in windows of {data.seq_len}: what lies behind "
            f"it would be predicted twice; give {data.seq_len}, or 0 without memory"
        )


def unread_replacements(name: str) -> Iterator[tuple[str, str]]:
    """Yield the settings that an objective without masked pieces does not read."""
    yield from (
        (f"data.{setting}", f"--objective {name} replaces no piece") for setting in ("mask-share", "random-share")
    )


def unread_targets(name: str) -> Iterator[tuple[str, str]]:
    """Yield the settings that an objective without drawn targets does not read."""
    yield "data.targets", f"--objective {name} predicts every piece"
    yield from _unread_spans(f"--objective {name} draws none")


def unread_spans(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield the settings that targets other than spans do not read."""
    if data.targets != "spans":
        yield from _unread_spans(f"data.targets {data.targets} has none")


def _unread_spans(why: str) -> Iterator[tuple[str, str]]:
    yield from ((f"data.{setting}", f"it is of spans, and {why}") for setting in ("span-unit", "span-max"))
