"""Which objectives, networks and windows mean nothing together, and why."""

from collections.abc import Iterator

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import Config, DataConfig
from xlnet_jax.settings.rules import (
    absolute_positions,
    data_contradictions,
    memory_contradictions,
    run_contradictions,
)


def validate(config: Config) -> None:
    """Raises InputError with the first contradiction."""
    for broken in _contradictions(config):
        raise InputError(broken)


def _contradictions(config: Config) -> Iterator[str]:
    yield from run_contradictions(config)
    yield from objective_contradictions(config)
    yield from data_contradictions(config.data, config.objective)
    yield from memory_contradictions(config.model.mem_len, config.data)


def objective_contradictions(config: Config) -> Iterator[str]:
    """Each in a line."""
    model, data = config.model, config.data
    if model.positions == "learned":
        yield from _learned_positions(config)
    yield from absolute_positions(model, data.seq_len)
    if model.same_length and model.attn_type == "bi":
        yield "model.same-length with model.attn-type bi: only a row that looks back alone (uni) has a length to keep"
    elif model.same_length and not model.mem_len:
        yield "model.same-length with model.mem-len 0: every row would see itself alone; give it a memory"
    if data.pair_loss != "none" and data.window != "pairs":
        yield f"data.pair-loss {data.pair_loss} with data.window {data.window}: there is no B; it needs pairs"
    yield from {"plm": _plm, "mlm": _mlm, "clm": _clm, "rtd": _rtd}[config.objective](config)


def unread(config: Config) -> Iterator[tuple[str, str]]:
    """(setting, why it changes nothing beside the others)."""
    model, data, objective = config.model, config.data, f"--objective {config.objective}"
    if config.objective in ("plm", "clm"):
        yield from ((f"data.{name}", f"{objective} replaces no piece") for name in ("mask-share", "random-share"))
    if config.objective == "clm":
        yield "data.targets", f"{objective} predicts every piece"
    if config.objective == "clm" or data.targets != "spans":
        drawn = f"{objective} draws none" if config.objective == "clm" else f"data.targets {data.targets} has none"
        yield from ((f"data.{name}", f"it is of spans, and {drawn}") for name in ("span-unit", "span-max"))
    if model.positions != "learned":
        why = f"it is of learned positions, and model.positions is {model.positions}"
        yield from ((f"model.{name}", why) for name in ("max-positions", "position-offset"))
    if model.positions != "relative":
        yield "model.untie-r", f"it is of relative positions, and model.positions is {model.positions}"


def _learned_positions(config: Config) -> Iterator[str]:
    if config.objective not in ("mlm", "rtd"):
        others = "relative ones" if config.objective == "plm" else "relative or sinusoidal ones"
        yield (
            f"--objective {config.objective} with model.positions learned: that is BERT's encoder, which sees every "
            f"place of its window; give --objective mlm or rtd, or start from a preset with {others}"
        )
    if config.data.bidirectional:
        yield "data.bidirectional with model.positions learned: places do not say which way a row reads; turn it off"


def _plm(config: Config) -> Iterator[str]:
    model = config.model
    if model.positions == "sinusoidal":
        yield "--objective plm with model.positions sinusoidal: a query row knows its place by relative ones alone"
    if model.attn_type == "uni":
        yield "--objective plm with model.attn-type uni: a permuted order needs rows that look both ways (bi)"


def _mlm(config: Config) -> Iterator[str]:
    yield from _content_stream("mlm", config.data)
    if config.model.attn_type == "uni":
        yield "--objective mlm with model.attn-type uni: a masked piece is read from both sides (bi)"
    yield from _some_masked(config.data)


def _some_masked(data: DataConfig) -> Iterator[str]:
    if not data.mask_share + data.random_share:
        yield "data.mask-share 0 with data.random-share 0: every target would be read as it is, and copied"


def _rtd(config: Config) -> Iterator[str]:
    model, data, rtd = config.model, config.data, config.rtd
    yield from _content_stream("rtd", data)
    yield from _some_masked(data)
    if model.positions != "learned":
        yield (
            f"--objective rtd with model.positions {model.positions}: its generator shares embeddings of another width "
            "than its own, which BERT's encoder alone can have; it needs learned ones"
        )
    if data.pair_loss != "none":
        yield f"--objective rtd with data.pair-loss {data.pair_loss}: every token is judged, and no pair; it needs none"
    if (width := config.rtd.generator_of(config.model).d_model) < 1:
        yield f"rtd.generator-share {rtd.generator_share:g} of model.d-model {model.d_model} leaves a width of {width}"


def _clm(config: Config) -> Iterator[str]:
    model, data = config.model, config.data
    yield from _content_stream("clm", data)
    if model.attn_type != "uni":
        yield "--objective clm with model.attn-type bi: a row must not see what it predicts; it needs uni"
    if model.num_segments:
        yield f"--objective clm with model.num-segments {model.num_segments}: its text has no A and B; it needs 0"
    if data.bidirectional:
        yield "--objective clm with data.bidirectional: reversed rows would learn from right to left; turn it off"
    if data.window != "text":
        yield f"--objective clm with data.window {data.window}: text is read on and on, without A, B, <sep> and <cls>"
    if data.num_predict is not None:
        yield f"--objective clm with data.num-predict {data.num_predict}: every position predicts; leave it None"
    if data.masking == "static":
        yield "--objective clm with data.masking static: it masks nothing"
    if 0 < data.reuse_len < data.seq_len:
        yield (
            f"--objective clm with data.reuse-len {data.reuse_len} in windows of {data.seq_len}: what lies behind it "
            f"would be predicted twice; give {data.seq_len}, or 0 without memory"
        )


def _content_stream(objective: str, data: DataConfig) -> Iterator[str]:
    if data.emit == "dense":
        yield (
            f"--objective {objective} with data.emit dense: a target_mapping asks the query stream, which it has not; "
            "leave it compact"
        )
    if data.profile == "tf2":
        yield f"--objective {objective} with data.profile tf2: it has no order in which <sep> and <cls> would come"
