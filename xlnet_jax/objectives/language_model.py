"""Loss of predicting pieces: with the query stream in a permuted order (XLNet, sections 2.2 and 2.3), or with the
content stream, masked (BERT) or from left to right (Transformer-XL).

Here the objectives differ only in the ranks of a batch, which decide who sees whom (models/masks.py). The types that
all losses share come first.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from data_pipelines.objectives import batch_spec, shapes_of
from xlnet_jax.errors import InputError
from xlnet_jax.models.heads import PairHead, build_model
from xlnet_jax.models.inputs import Inputs, compact_inputs, dense_inputs
from xlnet_jax.models.masks import memory_in_use_BM
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config

DeviceBatch = dict[str, jax.Array]


class BatchDropout(NamedTuple):
    """Dropout of a batch, or of a part of the global batch. The masks depend only on these two fields."""

    key: jax.Array  # of the step
    example_B: jax.Array  # int32, index of each example in the global batch


class Scored(NamedTuple):
    """Loss of a batch as sums, so that parts of a batch can be added."""

    loss_sum: jax.Array  # float32, nats
    weight_sum: jax.Array  # float32, number of targets
    new_mems_ZBMD: jax.Array
    row_losses: Mapping[str, jax.Array]  # float32: sums over rows of additional losses, averaged over rows
    row_measures: Mapping[str, jax.Array]  # float32: sums over rows of values that are only reported


class Objective(Protocol):
    """Pure functions that make up a training step. A batch has "target_weights"; the loss is divided by their sum."""

    @property
    def frozen(self) -> Collection[str]:
        """Parts of the parameters that training leaves as they are, by their names at the top of the tree."""
        ...

    @property
    def mems(self) -> jax.ShapeDtypeStruct:
        """Memory that rows carry from batch to batch, [Z, B, M, D]; size 0 without memory."""
        ...

    def init(self, key: jax.Array) -> Any:
        """Return parameters, boxed with the logical names of their axes."""
        ...

    def cap_memory(self, batch: DeviceBatch, steps: jax.Array) -> DeviceBatch:
        """Return the batch with memory limited to the last `steps` batches (int32): earlier batches were skipped."""
        ...

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout: BatchDropout | None) -> Scored:
        """Return the sums over a batch; dropout None = none."""
        ...


def sum_over_rows(values_B: jax.Array, batch: DeviceBatch) -> jax.Array:
    """Return the sum over rows, without the padding rows of held-out batches."""
    return (values_B * batch["row_weights"]).sum() if "row_weights" in batch else values_B.sum()


def apply(model: nn.Module, params: Any, dropout: BatchDropout | None, *arguments: Any, **settings: Any) -> Any:
    """Apply a network to its arguments; dropout None = none.

    Sets `example_B` in every `Inputs` among them. An example may have several consecutive rows of input, such as the
    options of a question.
    """
    if dropout is None:
        return cast(Any, model.apply)({"params": params}, *arguments, train=False, **settings)

    def add_places(argument: Any) -> Any:
        if not isinstance(argument, Inputs):
            return argument
        each, rest = divmod(len(argument.input_ids_BL), len(dropout.example_B))
        assert not rest, f"rows of input for {len(dropout.example_B)} examples"
        rows = (dropout.example_B[:, None] * each + jnp.arange(each)[None]).reshape(-1)
        return argument._replace(example_B=rows)

    arguments, settings = jax.tree.map(add_places, (arguments, settings), is_leaf=lambda leaf: isinstance(leaf, Inputs))
    rngs = {"dropout": dropout.key}
    return cast(Any, model.apply)({"params": params}, *arguments, train=True, rngs=rngs, **settings)


def objective_of(config: Config) -> Objective:
    """Return the objective that config.objective names."""
    return objective_named(config.objective).import_loss()(config)


@dataclass(frozen=True)
class LanguageModel:
    """Loss (`Objective`) of all objectives that predict pieces with a single network."""

    config: Config
    network: nn.Module | None = None
    """module with the arguments and results of XLNetLM; None = the network of the settings"""
    frozen: Collection[str] = ()

    @property
    def model(self) -> Any:
        """The network."""
        return self.network or build_model(self.config.model, None)

    @property
    def mems(self) -> jax.ShapeDtypeStruct:
        """Memory, [Z, B, M, D], in the compute dtype."""
        m = self.config.model
        shape = (m.num_layers, self.config.data.batch_size, m.mem_len, m.d_model)
        return jax.ShapeDtypeStruct(shape, jnp.dtype(m.dtype))

    def init(self, key: jax.Array) -> Any:
        """Return the parameters, initialized with one row, since they do not depend on the batch."""
        c, m, filling = self.config.data, self.config.model, objective_named(self.config.objective).filling
        spec = batch_spec(filling.fields, replace(c, emit="compact"))
        row = {name: jnp.zeros(shape, spec[name].dtype) for name, shape in shapes_of(spec, 1, c).items()}
        mems = jnp.zeros((m.num_layers, 1, m.mem_len, m.d_model), m.dtype)
        inputs, at_BP = inputs_of(row, self.config)
        params = self.model.init({"params": key}, inputs, mems, at_BP=at_BP, reuse_len=c.reuse_len, train=False)[
            "params"
        ]
        if c.pair_loss == "none":
            return params
        pair_head = PairHead(m).init(jax.random.fold_in(key, 1), jnp.zeros((1, 1, m.d_model)))["params"]
        return {**params, "pair_head": pair_head}

    def cap_memory(self, batch: DeviceBatch, steps: jax.Array) -> DeviceBatch:
        """Return the batch with mem_filled limited to the positions that the last `steps` batches have written."""
        # Limit the number of windows: int32 would overflow after some million steps.
        windows = jnp.minimum(steps, self.config.model.mem_len)
        return batch | {"mem_filled": jnp.minimum(batch["mem_filled"], self.config.data.reuse_len * windows)}

    def loss_of_targets_BP(self, logits_BPV: jax.Array, target_ids_BP: jax.Array) -> jax.Array:
        """Return the loss of each target in nats, float32. A subclass may change it."""
        return cross_entropy_BP(logits_BPV, target_ids_BP)

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout: BatchDropout | None) -> Scored:
        """Return the summed loss of the targets and, with data.pair_loss, the cross-entropy of the pairs."""
        c = self.config
        inputs, at_BP = inputs_of(batch, c)
        network = {name: tree for name, tree in params.items() if name != "pair_head"}
        logits_BPV, outputs = apply(
            self.model,
            network,
            dropout,
            inputs,
            mems_ZBMD,
            at_BP=at_BP,
            reuse_len=c.data.reuse_len,
            needs_content=c.data.pair_loss != "none",
        )
        loss_BP = self.loss_of_targets_BP(logits_BPV, batch["target_ids"])
        weights_BP, row_losses, row_measures = batch["target_weights"], {}, {}
        if (found := jnp.shape(loss_BP)) != weights_BP.shape:
            why = f": its loss_of_targets_BP must return a loss for each target, {weights_BP.shape}, not {found}"
            raise InputError("objective", "", why)
        if c.data.pair_loss != "none":
            logits_B2 = cast(Any, PairHead(c.model).apply({"params": params["pair_head"]}, outputs.content_BLD))
            # 0 = B continues A, 1 = it does not, as in BERT.
            labels_B = (~batch["is_next"]).astype(jnp.int32)
            loss_B = cross_entropy_BP(logits_B2[:, None], labels_B[:, None])[:, 0]
            is_right_B = (logits_B2.argmax(-1) == labels_B).astype(jnp.float32)
            row_losses["pair_loss"] = sum_over_rows(loss_B, batch)
            row_measures["pair_accuracy"] = sum_over_rows(is_right_B, batch)
        loss_sum = (loss_BP * weights_BP).sum()
        return Scored(loss_sum, weights_BP.sum(), outputs.new_mems_ZBMD, row_losses, row_measures)


def empty_memory(config: Config) -> jax.Array:
    """Return the memory at the beginning of a block: zeros [Z, B, M, D] in the compute dtype."""
    mems = LanguageModel(config).mems
    return jnp.zeros(mems.shape, mems.dtype)


def inputs_of(batch: DeviceBatch, config: Config) -> tuple[Inputs, jax.Array | None]:
    """Return the network's inputs from a compact or dense batch, and the positions at which the content stream
    predicts. None = the query stream predicts, or the content stream predicts at every position. Raises InputError for
    a batch with missing arrays, or with some that do not fit together."""
    model = config.model
    form = ("perm_rank",) if "perm_rank" in batch else ("perm_mask", "target_mapping", "target_weights")
    for name in ("input_ids", "is_reversed", "mem_filled", *form):
        if name not in batch:
            raise InputError("batch", "", f"has no {name}: `batch_source` makes whole ones")
    memory_BM = memory_in_use_BM(batch["mem_filled"], model.mem_len)
    attend_empty_memory = model.profile == "paper2019"
    segment_ids_BL = batch.get("segment_ids") if model.num_segments else None
    if "perm_rank" not in batch:
        mask_BLL, mapping_BPL = batch["perm_mask"].astype(bool), batch["target_mapping"]
        # Padding has the weight 0: a row of zeros here, the last position in the compact form.
        is_last_L = jnp.arange(mapping_BPL.shape[2]) == mapping_BPL.shape[2] - 1
        inputs = dense_inputs(
            batch["input_ids"],
            segment_ids_BL=segment_ids_BL,
            perm_mask_BLL=mask_BLL,
            tied_BLL=mask_BLL & mask_BLL.swapaxes(1, 2),  # only targets of one group do not see each other
            target_mapping_BPL=jnp.where(batch["target_weights"][:, :, None] == 0, is_last_L[None, None], mapping_BPL),
            is_reversed_B=batch["is_reversed"],
            memory_BM=memory_BM,
            attend_empty_memory=attend_empty_memory,
        )
        return inputs, None
    by_query_stream = objective_named(config.objective).filling.stream == "query"
    inputs = compact_inputs(
        batch["input_ids"],
        segment_ids_BL=segment_ids_BL,
        perm_rank_BL=batch["perm_rank"],
        target_positions_BP=batch["target_positions"] if by_query_stream else None,
        is_reversed_B=batch["is_reversed"],
        memory_BM=memory_BM,
        document_start_BL=batch["document_start"] if config.data.pack else None,
        attend_empty_memory=attend_empty_memory,
    )
    everywhere = by_query_stream or config.data.num_predict is None
    return inputs, None if everywhere else batch["target_positions"]


@jax.named_scope("vocabulary")
def cross_entropy_BP(logits_BPV: jnp.ndarray, target_ids_BP: jnp.ndarray) -> jnp.ndarray:
    """Return the cross-entropy of each target in nats, float32."""
    of_target_BP1 = jnp.take_along_axis(logits_BPV, target_ids_BP[:, :, None], axis=-1)
    return jax.nn.logsumexp(logits_BPV, axis=-1) - of_target_BP1[:, :, 0]
