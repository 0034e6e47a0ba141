"""Every setting of the framework: frozen dataclasses. Imports neither jax nor TensorFlow; presets.py fills them.

A setting is *identity* (it decides what a run computes: two runs that differ in one are two experiments) or
*operational* (where, how often, how fast). Only a differing identity setting keeps a run from resuming.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol


def operational(default: Any) -> Any:
    """A dataclass field that may change when a run resumes."""
    return field(default=default, metadata={"operational": True})


@dataclass(frozen=True)
class ModelConfig:
    """The network (paper, section 2)."""

    vocab_size: int = 32_000
    """pieces in the vocabulary; a tokenizer that is given with --tokenizer decides this"""
    num_layers: int = 24
    """transformer layers"""
    d_model: int = 1024
    """width of the hidden states"""
    num_heads: int = 16
    """attention heads"""
    d_head: int = 64
    """width of one head; num_heads x d_head need not be d_model"""
    d_ff: int = 4096
    """inner width of the feed-forward layers"""
    mem_len: int = 384
    """hidden states of earlier windows that a row can attend to, in positions; 0 = no memory"""
    activation: Literal["gelu", "gelu_erf", "relu"] = "gelu"
    """feed-forward activation; gelu by its tanh approximation, as in the original; gelu_erf = the exact one"""
    dropout: float = 0.1
    """dropout rate on embeddings, positions, and the outputs of attention and feed-forward"""
    attention_dropout: float = 0.1
    """dropout rate on attention probabilities"""
    untie_r: bool = True
    """relative only: a separate r_w, r_r and r_s bias for each layer"""
    clamp_len: int = -1
    """relative distances beyond this count as this, in positions; -1 = never"""
    positions: Literal["relative", "sinusoidal", "learned"] = "relative"
    """how a row knows where things are: distances in every layer (Transformer-XL), or signals or vectors of the places
    in the window, added to the embeddings; learned = BERT's encoder (models/bert.py)"""
    max_positions: int = 512
    """learned only: places that there are vectors for"""
    position_offset: int = 0
    """learned only: the place of the first token; RoBERTa's is 2"""
    embedding_width: int | None = None
    """learned only: width of the embeddings, projected to d_model (ALBERT); None = d_model"""
    share_layers: bool = False
    """learned only: one set of parameters for all layers (ALBERT)"""
    num_segments: int = 2
    """segments that the network tells apart, relatively or, with learned positions, by vectors; 0 = none; <cls>, the
    third of a window, is to BERT as the first"""
    norm: Literal["post", "pre"] = "post"
    """layer normalisation behind every residual sum, or before every sublayer and once at the end"""
    attn_type: Literal["bi", "uni"] = "bi"
    """bi = the masks of the objective decide alone; uni = and no row sees a position behind its own"""
    same_length: bool = False
    """uni only: every row sees as many positions before it as the memory is long, and no further"""
    init_std: float = 0.02
    """standard deviation of the normal initialiser"""
    layer_norm_eps: float = 1e-12
    """epsilon of layer normalisation"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """compute type; parameters, softmax, normalisation and loss are float32 always"""
    remat: Literal["none", "full", "dots", "attention"] = operational("none")
    """what the backward pass computes again: nothing, every layer, all but matrix products, or all but what attention
    reads"""
    profile: Literal["default", "paper2019"] = "default"
    """paper2019 = as the 2019 code where it differs from the default: memory that is still empty is attended to, as
    zeros; sequence summaries read padding"""

    @property
    def num_places(self) -> int:
        """Longest window of a network with learned positions."""
        return self.max_positions - self.position_offset

    @property
    def is_causal(self) -> bool:
        """Does the content stream predict the next piece? No other objective's network sees but what is before it, and
        knows no segments."""
        return self.attn_type == "uni" and not self.num_segments


FIXED_BY_WEIGHTS = (
    "vocab_size", "num_layers", "d_model", "num_heads", "d_head", "d_ff", "activation", "untie_r", "clamp_len",
    "attn_type", "same_length", "layer_norm_eps", "positions", "max_positions", "position_offset", "num_segments",
    "norm", "embedding_width", "share_layers",
)  # fmt: skip
"""Settings of the model that a checkpoint brings along; the others, as dropout and mem_len, are a run's own."""


@dataclass(frozen=True)
class HeadConfig:
    """What finetuning puts on the network in place of the vocabulary scores."""

    task: Literal["classification", "regression", "multiple_choice", "question_answering", "token_classification"]
    """what is predicted: a label or a number for a text, one of several texts, a span of it, a label for each token"""
    num_labels: int = 1
    """labels to choose from; of multiple_choice the options of a question; 1 for a number and for a span"""
    summary: Literal["last", "first", "mean", "attn"] = "last"
    """how a text becomes one vector; attn = a learned query attends to it"""
    use_projection: bool = True
    """a dense layer with tanh on that vector"""
    labels: tuple[str, ...] = ()
    """names of the labels, where they have any"""
    scope: str = ""
    """name of the last layer in the checkpoint that it came from, as classification_mnli; kept for the way back"""


@dataclass(frozen=True)
class DataConfig:
    """Batches of windows: by default reused part + A + <sep> + B + <sep> + <cls> (paper, section 2.5)."""

    batch_size: int = 8192
    """rows of the global batch, over all devices and hosts"""
    seq_len: int = 512
    """length of a window, in tokens"""
    reuse_len: int = 256
    """length of the part whose hidden states become the next window's memory; a row advances by it each step, or by
    the rest of the window where it is 0"""
    window: Literal["pairs", "sentences", "text"] = "pairs"
    """what stands behind the reused part: A <sep> B <sep> <cls>, text <sep> <cls> (RoBERTa's full sentences), or text
    alone"""
    perm_size: int = 256
    """plm: length of the chunks inside which the order is permuted, in tokens; divides both parts of the window"""
    num_predict: int | None = 85
    """targets in a window, half of them in each part; None = as many as their context leaves (see mask_alpha), a slot
    for each position"""
    targets: Literal["spans", "words", "pieces"] = "spans"
    """how they are drawn, where not every piece is one, as of clm: as spans of 1 to span_max units in their context, as
    whole words, or piece by piece"""
    masking: Literal["dynamic", "static"] = "dynamic"
    """windows, targets and what replaces them: drawn afresh at every visit of a text, or once for all visits"""
    mask_share: float = 0.8
    """mlm and rtd: share of the targets that the network, or the generator, reads as <mask>"""
    random_share: float = 0.1
    """the same: share of those that it reads as a piece drawn at random; the rest it reads as they are"""
    span_unit: Literal["piece", "word"] = "piece"
    """what a span of targets counts: pieces, as for the released models, or whole words"""
    span_max: int = 5
    """longest span of targets, in units; a length n is drawn with weight 1/n"""
    mask_alpha: int = 6
    """a span of n units comes with n * mask_alpha / mask_beta tokens of context; so do words and pieces, in the mean,
    where num_predict is None"""
    mask_beta: int = 1
    """see mask_alpha"""
    bidirectional: bool = True
    """half of the rows, in expectation, read their text backwards"""
    pair_loss: Literal["none", "next", "order"] = "none"
    """what else is learned, from <cls>: whether B continues A (BERT's next sentence prediction), or whether the two
    stand in their order (ALBERT's); the batch carries is_next [B]"""
    weights: tuple[float, ...] = ()
    """shares of the rows that read each source of the corpus; they sum to 1; none given = those of the corpus"""
    windows_per_block: int = 16
    """consecutive windows in one block of text, the unit of shuffling and of memory"""
    validation_fraction: float = 0.05
    """share of the text that is held out, by document, where --validation names no text of its own"""
    normalization: Literal["auto", "english", "nfkc", "none"] = "auto"
    """text normalisation, stored with the tokenizer; one that brings its own keeps it. english = the original's (NFKD
    without marks); auto = english for text in plain Latin letters, else nfkc"""
    token_level: Literal["piece", "word", "character", "byte"] = "piece"
    """what a tokenizer that is trained on the corpus cuts text into: pieces, the most frequent words, characters, or
    bytes"""
    profile: Literal["default", "tf2"] = "default"
    """tf2 = <sep> and <cls> are visible to their part; by default they are hidden from it, as in the original"""
    emit: Literal["compact", "dense"] = operational("compact")
    """form of the masks: ranks and positions, or perm_mask and target_mapping; the loss is the same"""

    @property
    def num_slots(self) -> int:
        """P: target slots of a window, padding included."""
        return self.seq_len if self.num_predict is None else self.num_predict


@dataclass(frozen=True)
class ReplacedConfig:
    """ELECTRA's two networks (Clark et al. 2020, sections 2 and 3.2): of --objective rtd alone."""

    generator_share: float = 0.25
    """width, heads and feed-forward width of the generator as a share of the network's; it has as many layers"""
    detection_weight: float = 50.0
    """weight of the loss of the network, per token, beside that of the generator, per target"""

    def generator_of(self, model: ModelConfig) -> ModelConfig:
        """The sizes of the generator beside a network: narrower, as many layers, one head at the least, and the
        network's embeddings (Clark et al. 2020, section 3.2)."""
        width, shared = round(self.generator_share * model.d_model), model.embedding_width or model.d_model
        return replace(
            model,
            d_model=width,
            num_heads=max(1, round(self.generator_share * model.num_heads)),
            d_ff=max(1, round(self.generator_share * model.d_ff)),
            embedding_width=None if shared == width else shared,
        )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warmup and decay (paper, appendix A.2)."""

    learning_rate: float = 4e-4
    """peak learning rate, per update"""
    warmup_steps: int = 40_000
    """updates over which the learning rate rises from 0"""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """how the learning rate goes on after warmup"""
    decay_steps: int | None = None
    """update at which the schedule ends; None = --steps (which then belongs to the run's identity)"""
    min_lr_ratio: float = 0.0
    """learning rate at the schedule's end, as a share of the peak"""
    beta1: float = 0.9
    """decay of the first moment, per update"""
    beta2: float = 0.999
    """decay of the second moment, per update"""
    eps: float = 1e-6
    """Adam epsilon"""
    weight_decay: float = 0.01
    """decoupled weight decay, per unit of learning rate; not on biases and normalisation"""
    clip_norm: float = 1.0
    """largest global norm of the gradient; 0 = no clipping"""
    accumulate: int = operational(1)
    """micro-batches that an update goes through one after the other, to save memory; the loss is that of the whole"""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """type of Adam's moments; bfloat16 halves them, rounded at random so that small changes are not lost"""
    spike_factor: float = 0.0
    """an update whose gradient norm is above this many times its running mean is skipped; 0 = only one that is not
    finite"""
    max_skipped: int = operational(10)
    """updates skipped in a row that end the run"""
    layer_decay: float = 1.0
    """learning rate of a layer as a share of that of the layer above it; the embeddings stand below the first layer
    (paper, appendix A.3); 1 = all alike"""
    profile: Literal["default", "paper2019"] = "default"
    """paper2019 = the 2019 code's Adam: its epsilon outside the bias correction, none of which where there is weight
    decay; r_w, r_r and r_s biases decayed; layer_decay on the clipped gradients of the layers"""


@dataclass(frozen=True)
class MeshConfig:
    """How devices are arranged; every process must hold the same number of them."""

    data: int = operational(-1)
    """devices along the batch, in a slice; -1 = all that are left"""
    fsdp: int = operational(1)
    """devices along the batch that also divide parameters and optimizer state among them"""
    tensor: int = operational(1)
    """devices that divide heads, feed-forward width and vocabulary among them; it divides model.num-heads"""
    dcn_data: int = operational(1)
    """slices, joined by the data centre's network, that divide the batch among them"""


@dataclass(frozen=True)
class DistributedConfig:
    """The processes of a run, one a host, where neither Slurm nor a TPU names them; the first three together, or as
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in the environment."""

    coordinator_address: str | None = operational(None)
    """HOST:PORT of process 0, a port that is free there and that all hosts can reach; None = one process"""
    num_processes: int | None = operational(None)
    """processes in all"""
    process_id: int | None = operational(None)
    """number of this process, from 0; the only setting in which processes differ"""
    initialization_timeout: int = operational(300)
    """seconds in which all processes must have started"""
    heartbeat_timeout_seconds: int = operational(100)
    """seconds of silence after which a host counts as lost; one whose process ended is noticed at once"""


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state of training is saved."""

    every_steps: int = operational(1000)
    """updates between checkpoints; rounded up to a multiple of data.windows_per_block, where no memory need be saved"""
    every_minutes: float = operational(0.0)
    """minutes between checkpoints, besides those by steps; inside a block they hold its memory; 0 = by steps alone"""
    keep: int = operational(3)
    """checkpoints kept, newest first"""
    keep_every: int = operational(0)
    """updates between checkpoints that are kept for ever; rounded up as every_steps is; 0 = none"""


@dataclass(frozen=True)
class EvalConfig:
    """Loss on held-out text."""

    every_steps: int = operational(1000)
    """updates between evaluations; there is always one at the end"""
    max_windows: int = 16_384
    """windows of one evaluation at the most, in whole batches; a smaller validation text is read once"""


@dataclass(frozen=True)
class LogConfig:
    """What is written while training."""

    every_steps: int = operational(100)
    """updates between rows of metrics.jsonl, TensorBoard points and, without a terminal, printed lines"""
    wandb: str | None = operational(None)
    """a project of Weights & Biases that gets the same numbers (pip install 'xlnet_jax[wandb]'); None = none does"""


@dataclass(frozen=True)
class Config:
    """One pretraining run."""

    preset: str = "demo"
    """where the other settings start from: demo, small, base, large, large_v1, bert-base, roberta-base,
    albert-base, electra-small, transformer-xl-wt103, transformer-xl-wt103-large or vanilla"""
    objective: str = "plm"
    """what is learned, by the name of an objective (--help lists them); changes where the other settings start from"""
    corpus: tuple[str, ...] = operational(())
    """text to learn from: files, globs, folders, tfds:NAME, or one folder that data_pipelines.prepare made; none = the
    novels that come with the package"""
    validation: tuple[str, ...] = operational(())
    """held-out text in the same forms; none = a part of the corpus, by document"""
    text_field: str = operational("text")
    """what holds the text of a document in JSON, Parquet and TFDS"""
    tfds_data_dir: str | None = operational(None)
    """where TFDS datasets are prepared; None = TFDS's default"""
    corpus_errors: Literal["strict", "replace"] = "strict"
    """bytes that are not UTF-8: refused, or replaced by U+FFFD"""
    tokenizer: str | None = operational(None)
    """a SentencePiece model with XLNet's special symbols; None = one is trained on the corpus"""
    init: str | None = None
    """a checkpoint to start from: this project's, the 2019 code's or Hugging Face's; it brings the sizes of the network
    and its tokenizer along"""
    workdir: str | None = operational(None)
    """folder of the run; None = runs/CORPUS-PRESET, and -OBJECTIVE where that is not the preset's"""
    steps: int = 500_000
    """updates in all"""
    seed: int = 0
    """seed of parameters, dropout and data"""
    tpu: bool = operational(False)
    """demand a TPU"""
    profile: str | None = operational(None)
    """updates to trace, as 10:15 (from 10 up to 15), into WORKDIR/tensorboard; None = none"""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rtd: ReplacedConfig = ReplacedConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    log: LogConfig = LogConfig()


class RunConfig(Protocol):
    """What the settings of every training have: `Config` here, `FinetuneConfig` in tasks/config.py."""

    @property
    def init(self) -> str | None: ...
    @property
    def workdir(self) -> str | None: ...
    @property
    def tokenizer(self) -> str | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def tpu(self) -> bool: ...
    @property
    def profile(self) -> str | None: ...
    @property
    def model(self) -> ModelConfig: ...
    @property
    def data(self) -> HasBatchSize: ...
    @property
    def optimizer(self) -> OptimizerConfig: ...
    @property
    def mesh(self) -> MeshConfig: ...
    @property
    def distributed(self) -> DistributedConfig: ...
    @property
    def checkpoint(self) -> CheckpointConfig: ...
    @property
    def log(self) -> LogConfig: ...


class HasBatchSize(Protocol):
    """Settings of batches."""

    @property
    def batch_size(self) -> int: ...
