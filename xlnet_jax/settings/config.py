"""Every setting of pretraining, as frozen dataclasses. Imports neither jax nor TensorFlow. presets.py sets the values.

A setting is *identity* (it decides what a run computes: two runs that differ in one are two experiments) or
*operational* (where, how often, how fast). A run resumes only with the same identity settings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from xlnet_jax.settings.common import RecordingSettings, RecordSettings
from xlnet_jax.settings.fields import (
    ANY_TEXT,
    Bound,
    Unflagged,
    above,
    at_least,
    between,
    marked,
    operational,
    setting,
)

EVEN = Bound(lambda value: value % 2 == 0, "must be even: half of a position's signal is sines, half cosines")


@dataclass(frozen=True)
class ModelConfig:
    """The network (paper, section 2)."""

    vocab_size: int = setting(32_000, at_least(1), "weights", "blocks", "common")
    """pieces in the vocabulary; if not given, fewer for a small text; a tokenizer that is given decides"""
    num_layers: int = setting(24, at_least(1), "weights", "common")
    """transformer layers"""
    d_model: int = setting(1024, at_least(1), EVEN, "weights", "common")
    """width of the hidden states"""
    num_heads: int = setting(16, at_least(1), "weights")
    """attention heads"""
    d_head: int = setting(64, at_least(1), "weights")
    """width of one head; num_heads x d_head may differ from d_model"""
    d_ff: int = setting(4096, at_least(1), "weights")
    """inner width of the feed-forward layers"""
    mem_len: int = setting(384, at_least(0, "0 = no memory"), "common")
    """memory: number of earlier positions whose hidden states a window can attend to; 0 = no memory"""
    activation: Unflagged[Literal["gelu", "gelu_erf", "relu"]] = setting("gelu", "weights")
    """feed-forward activation; gelu = the tanh approximation, as in the original code; gelu_erf = the exact GELU"""
    dropout: float = setting(0.1, between(0, 1, "[)"))
    """dropout rate on embeddings, positions, and the outputs of attention and feed-forward"""
    attention_dropout: float = setting(0.1, between(0, 1, "[)"))
    """dropout rate on attention probabilities"""
    untie_r: Unflagged[bool] = setting(True, "weights")
    """relative positions only: separate r_w, r_r and r_s biases in each layer"""
    clamp_len: Unflagged[int] = setting(-1, at_least(1).or_value(-1, "no bound"), "weights")
    """longest relative distance that attention distinguishes, in positions; -1 = no limit"""
    positions: Literal["relative", "sinusoidal", "learned"] = setting("relative", "weights")
    """position encoding: relative = distances in every layer (Transformer-XL); sinusoidal or learned = vectors added to
    the embeddings; learned also selects BERT's network"""
    max_positions: Unflagged[int] = setting(512, at_least(1), "weights")
    """learned positions only: number of position vectors"""
    position_offset: Unflagged[int] = setting(0, at_least(0), "weights")
    """learned positions only: position of the first token; 2 in RoBERTa"""
    embedding_width: Unflagged[int | None] = setting(None, at_least(1), "weights")
    """learned positions only: width of the embeddings, projected to d_model (ALBERT); None = d_model"""
    share_layers: Unflagged[Literal["none", "attention", "feed_forward", "all"]] = setting("none", "weights")
    """learned positions only: part that has one set of parameters for all layers: none, attention, the feed-forward
    block, or both (all); each with its normalization (ALBERT: Lan et al. 2020, section 4.5)"""
    num_segments: Unflagged[int] = setting(2, at_least(0), "weights")
    """segments that the network distinguishes; 0 = none; with learned positions, the number of segment vectors (<cls>,
    segment 2 of a window, then counts as segment 0)"""
    norm: Literal["post", "pre"] = setting("post", "weights")
    """layer normalization after every residual sum (post), or before every sublayer and once at the end (pre)"""
    attn_type: Unflagged[Literal["bi", "uni"]] = setting("bi", "weights")
    """bi = tokens attend as the objective's mask allows; uni = and never to a later position"""
    same_length: Unflagged[bool] = setting(False, "weights")
    """uni only: every token attends to exactly as many earlier positions as the memory holds"""
    init_std: float = setting(0.02, above(0))
    """standard deviation of the normal initializer"""
    zero_init: bool = setting(False)
    """start the output matrices of attention and of the feed-forward block at zero, so that at first every layer adds
    nothing to the residual stream"""
    layer_norm_eps: Unflagged[float] = setting(1e-12, at_least(0), "weights")
    """epsilon of layer normalization"""
    dtype: Literal["float32", "bfloat16"] = setting("float32", "common")
    """number format of the computation; parameters, softmax, normalization and loss are always float32"""
    remat: Literal["none", "full", "dots", "feed_forward", "attention"] = operational("none", "common")
    """activations that the backward pass recomputes to save memory: none, all of each layer (full), all except the
    outputs of attention and of the feed-forward block (attention), all except these and the input of the feed-forward
    activation (feed_forward), or all except the outputs of matrix products (dots: the fastest on TPUs, but there it
    compiles each layer instead of a loop over them, which takes minutes)"""
    attention: Literal["auto", "plain", "fused"] = operational("auto")
    """implementation of attention: plain = XLA; fused = TPU and GPU kernels that keep the scores on the chip
    (docs/kernels.md); auto = fused if a kernel supports the device and the network, else plain"""
    profile: Unflagged[Literal["default", "paper2019"]] = "default"
    """paper2019 = follow the 2019 code where it differs: tokens attend to memory that is still empty, as zeros, and
    sequence summaries read padding"""

    @property
    def network(self) -> Literal["xlnet", "bert"]:
        """Key of tables of networks: bert (models/bert.py) with learned positions, xlnet (models/xlnet.py) with others.
        What else they differ in has properties of its own."""
        return "bert" if self.positions == "learned" else "xlnet"

    @property
    def reads_cls_first(self) -> bool:
        """True if the network reads <cls> as the first token, and pretraining trains its hidden state."""
        return self.positions == "learned"

    @property
    def has_segment_scores(self) -> bool:
        """True if segments are relative, terms of the attention scores, and not added to the embeddings."""
        return self.num_segments > 0 and self.positions != "learned"

    @property
    def has_transform(self) -> bool:
        """True if hidden states are transformed before the vocabulary logits."""
        return self.positions == "learned"

    @property
    def output_std(self) -> float:
        """Standard deviation of the initializer of matrices whose products are added to the residual stream."""
        return 0.0 if self.zero_init else self.init_std

    @property
    def num_places(self) -> int:
        """Longest window: the number of learned positions; without them practically unlimited."""
        return self.max_positions - self.position_offset if self.positions == "learned" else 2**31

    @property
    def is_causal(self) -> bool:
        """True if the content stream predicts the next piece: tokens attend only to earlier positions, and there are no
        segments."""
        return self.attn_type == "uni" and not self.num_segments


FIXED_BY_WEIGHTS = marked(ModelConfig, "weights")
"""Settings of the model that a checkpoint determines; the others, such as dropout and mem_len, belong to each run."""


@dataclass(frozen=True)
class HeadConfig:
    """The head that replaces the vocabulary's logits for finetuning."""

    task: Unflagged[
        Literal[
            "classification", "regression", "multilabel", "multiple_choice", "question_answering",
            "token_classification", "embedding",
        ]
    ]  # fmt: skip
    """what the head predicts for a text: a label, a number, any number of labels, one of several texts, a span, a label
    for each token, or a vector"""
    num_labels: Unflagged[int] = setting(1, at_least(1))
    """number of labels, or of options of a question (multiple_choice); 1 for a number or a span"""
    summary: Literal["last", "first", "mean", "attn"] = "last"
    """how a text becomes one vector: its last token, its first, the mean, or attention with a learned query (attn)"""
    use_projection: bool = True
    """apply a dense layer and tanh to that vector"""
    labels: Unflagged[tuple[str, ...]] = setting((), ANY_TEXT)
    """names of the labels, if they have names"""
    scope: Unflagged[str] = ""
    """name of the last layer in the source checkpoint, as classification_mnli; kept to convert it back"""

    def for_labels(self, number: int, labels: tuple[str, ...] = (), scope: str = "") -> HeadConfig:
        """Return this head for so many labels."""
        return replace(self, num_labels=number, labels=labels, scope=scope)

    @property
    def reads_summary(self) -> bool:
        """True if the head reads the summary of a text."""
        return self.task not in ("question_answering", "token_classification")

    @property
    def has_weights(self) -> bool:
        """False if every network can have this head: a vector is the summary of a text."""
        return self.task != "embedding"


@dataclass(frozen=True)
class BatchConfig:
    """Batches of any training."""

    batch_size: int = setting(8192, at_least(1), "common")
    """rows of a batch, over all devices and hosts together: examples, or windows of a text or document"""
    seq_len: int = setting(512, at_least(1), "blocks", "common")
    """length of a row, in tokens: of a window, or at most of an example with its special tokens"""


@dataclass(frozen=True)
class DataConfig(BatchConfig):
    """Batches of windows: by default reused part + A + <sep> + B + <sep> + <cls> (paper, section 2.5)."""

    reuse_len: int = setting(256, at_least(0, "0 = windows that share nothing"), "blocks")
    """length of the part that two consecutive windows share, in tokens; its hidden states become memory; 0 = windows
    are consecutive and share nothing"""
    window: Literal["pairs", "sentences", "text", "records"] = setting("pairs", "blocks")
    """what follows the reused part: A <sep> B <sep> <cls> (pairs), text <sep> <cls> (sentences, as RoBERTa's full
    sentences), only text, or whole records (docs/sequences.md)"""
    pack: bool = False
    """keep the documents of a window apart: no token attends to another document, in the window or in memory; not with
    window pairs (docs/windows.md)"""
    perm_size: int = setting(256, at_least(1))
    """plm only: the order is permuted within blocks of this many tokens; must divide both parts of the window; with
    `data.targets` all, the blocks are predicted from left to right (docs/any_order.md)"""
    num_predict: int | None = setting(85, at_least(1))
    """targets in a window, half of them in each part; None = as many as mask_alpha and mask_beta give"""
    group_sizes: tuple[int, ...] = setting((1,), at_least(1))
    """plm only: number of targets that are predicted together, without seeing each other; if several are given, one is
    drawn for each window (docs/windows.md)"""
    bound_weights: Unflagged[bool] = False
    """mdlm only: weight each target by tokens of the window / targets, so that the training loss is the bound on the
    likelihood, as published; otherwise all targets weigh the same (docs/any_order.md)"""
    field_order: tuple[str, ...] = setting(("together",))
    """plm of records only: the order of the fields: all together, or names with > between consecutive groups and a
    comma within a group (v,cdr3>j); if several are given, one is drawn for each window"""
    targets: Literal["spans", "words", "pieces", "all"] = "spans"
    """what a target is: a span of 1 to span_max units inside its context, a whole word, a single piece, or every token
    (all), so that the loss is the likelihood of the window in the order that was drawn, given its first token"""
    masking: Literal["dynamic", "static"] = "dynamic"
    """dynamic = draw new windows, targets and replacements each time a text is read; static = draw them once, or
    static_masks times"""
    static_masks: Unflagged[int] = setting(1, at_least(1))
    """static only: number of different draws for a text, which its epochs read in turn; 10 in RoBERTa's comparison (Liu
    et al. 2019, section 4.1)"""
    mask_share: Unflagged[float] = setting(0.8, between(0, 1))
    """mlm and rtd only: share of the targets that are replaced by <mask> (rtd: in the generator's input)"""
    random_share: Unflagged[float] = setting(0.1, between(0, 1))
    """mlm and rtd only: share of the targets replaced by a random piece; the remaining targets stay unchanged"""
    span_unit: Literal["piece", "word"] = "piece"
    """unit in which spans are measured: pieces, as in the released models, or whole words"""
    span_max: int = setting(5, at_least(1))
    """longest span of targets, in units; length n is drawn with weight 1/n"""
    mask_alpha: int = setting(6, at_least(1))
    """a span of n units gets n * mask_alpha / mask_beta tokens of context; so do words and pieces, on average, if
    num_predict is None"""
    mask_beta: Unflagged[int] = setting(1, at_least(1))
    """see mask_alpha"""
    bidirectional: bool = True
    """read the text backwards in each row with probability 1/2"""
    pair_loss: Literal["none", "next", "order"] = "none"
    """second loss, predicted from <cls>: next = does B continue A? (BERT's next sentence prediction); order = are A and
    B in their original order? (ALBERT)"""
    weights: tuple[float, ...] = setting((), above(0, "leave out the source that is not to be read"))
    """share of the rows that each source of the corpus gets; must sum to 1; none = the shares stored in the corpus"""
    windows_per_block: int = setting(16, at_least(1), "blocks")
    """consecutive windows in a block; blocks are shuffled, and memory starts empty in each"""
    validation_fraction: float = setting(0.05, between(0, 1, "()"), "blocks")
    """share of the text to hold out, in whole documents, unless --validation names held-out text"""
    normalization: Literal["auto", "english", "nfkc", "none"] = setting("auto", "blocks")
    """text normalization, stored with the tokenizer; an existing tokenizer keeps its own. english = the original code's
    (NFKD, accents removed); auto = english for English text with few accents, none for Thai and Lao, else nfkc"""
    token_level: Literal["piece", "word", "character", "byte"] = setting("piece", "blocks")
    """tokens of a tokenizer trained on the corpus: pieces, the most frequent words, characters, or bytes"""
    profile: Unflagged[Literal["default", "tf2"]] = setting("default")
    """tf2 = tokens attend to the <sep> and <cls> of their part; by default they do not, as in the original code"""
    emit: Unflagged[Literal["compact", "dense"]] = operational("compact")
    """form of the masks in a batch: ranks and positions (compact), or perm_mask and target_mapping (dense); the loss is
    the same"""

    @property
    def num_slots(self) -> int:
        """P: number of target slots of a window, padding included."""
        return self.seq_len if self.num_predict is None else self.num_predict


@dataclass(frozen=True)
class ReplacedConfig:
    """ELECTRA's two networks (Clark et al. 2020, sections 2 and 3.2); read by --objective rtd only."""

    generator_share: float = setting(0.25, between(0, 1, "(]"))
    """size of the generator: its width, heads and feed-forward width as a share of the network's; it has as many
    layers"""
    detection_weight: Unflagged[float] = setting(50.0, above(0))
    """weight of the detection loss (per token) beside the generator's loss (per target)"""

    def generator_of(self, model: ModelConfig) -> ModelConfig:
        """Return the generator's settings: a narrower network with as many layers, at least one head, and the
        embeddings of `model` (Clark et al. 2020, section 3.2)."""
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
    """AdamW, or Muon for matrices, with warmup and decay (paper, appendix A.2: AdamW, linear)."""

    method: Literal["adamw", "muon"] = setting("adamw")
    """muon = Muon for the matrices in layers, which learn at matrix_rate times the learning rate (often 2 to 5), and
    AdamW for all other parameters"""
    learning_rate: float = setting(4e-4, above(0), "common")
    """peak learning rate, per step"""
    warmup_steps: int = setting(40_000, at_least(0), "common")
    """steps over which the learning rate rises from 0"""
    schedule: Literal["linear", "cosine", "constant", "wsd", "inverse_sqrt"] = "linear"
    """shape of the learning rate after warmup; wsd = constant, then linear over the last part of the run (decay_share):
    until that part begins, the number of steps may change; inverse_sqrt = Noam's schedule: learning_rate *
    sqrt(warmup_steps / step), whatever the number of steps; as in the Transformer paper with learning_rate = 1 /
    sqrt(model.d_model * warmup_steps)"""
    decay_share: Unflagged[float] = setting(0.2, between(0, 1, "()"))
    """wsd only: share of the steps, at the end, over which the learning rate falls"""
    decay_steps: int | None = setting(None, at_least(1))
    """step at which the schedule ends; None = the last step; give it if you may change the number of steps later"""
    min_lr_ratio: Unflagged[float] = setting(0.0, between(0, 1))
    """learning rate at the end of the schedule, as a share of the peak; inverse_sqrt: its lower bound"""
    beta1: Unflagged[float] = setting(0.9, between(0, 1, "[)"))
    """decay of the first moment, per step"""
    beta2: float = setting(0.999, between(0, 1, "[)"))
    """decay of the second moment, per step"""
    eps: float = setting(1e-6, above(0))
    """Adam epsilon"""
    weight_decay: float = setting(0.01, at_least(0))
    """decoupled weight decay, multiplied by the learning rate; not applied to biases and normalization"""
    clip_norm: float = setting(1.0, at_least(0))
    """largest global norm of the gradient; 0 = no clipping"""
    accumulate: int = operational(1, at_least(1))
    """micro-batches that a step computes one after the other to save memory; loss and dropout masks are the same as for
    the whole batch"""
    state_dtype: Unflagged[Literal["float32", "bfloat16"]] = setting("float32")
    """number format of Adam's moments; bfloat16 halves their memory, and rounds at random to keep small changes"""
    spike_factor: Unflagged[float] = setting(0.0, above(1).or_value(0, "no limit"))
    """skip a step if its gradient norm is more than this many times the running mean; 0 = skip only if it is not
    finite"""
    max_skipped: int = operational(10, at_least(1))
    """end the run after this many consecutive skipped steps"""
    layer_decay: float = setting(1.0, between(0, 1, "(]"))
    """learning rate of a layer as a share of the rate of the layer above it; the embeddings are below the first layer
    (paper, appendix A.3); 1 = the same rate everywhere"""
    matrix_rate: float = setting(1.0, above(0))
    """learning rate of the matrices in layers as a share of learning_rate; to reuse a rate that was tuned at another
    width, give that width / model.d-model (muP: Yang et al. 2022, table 3)"""
    profile: Unflagged[Literal["default", "paper2019"]] = "default"
    """paper2019 = Adam as in the 2019 code: epsilon outside the bias correction; no bias correction with weight decay;
    weight decay on the r_w, r_r and r_s biases; layer_decay on the clipped gradients of the layers"""

    def first_decaying_step(self, steps: int) -> int:
        """Return the step, from 0, at which schedule wsd begins to fall in a run of this many steps."""
        return max(round((1 - self.decay_share) * (self.decay_steps or steps)), self.warmup_steps)


@dataclass(frozen=True)
class MeshConfig:
    """Arrangement of devices: by default they divide the batch. Every process must have the same number of them."""

    fsdp: int = operational(1, at_least(1), "common")
    """number of devices among which the batch, the parameters and the optimizer state are divided"""
    tensor: int = operational(1, at_least(1))
    """number of devices among which heads, feed-forward width and vocabulary are divided; must divide
    model.num-heads"""
    context: int = operational(1, at_least(1))
    """number of devices among which each window is divided, and parameters and optimizer state as for fsdp; must divide
    data.seq-len, data.num-predict and model.mem-len"""
    dcn_data: int = operational(1, at_least(1))
    """number of slices, connected by the data center's network, among which the batch is divided"""


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are saved, and which are kept."""

    every_steps: int = operational(1000, at_least(1), "common")
    """steps between checkpoints; rounded up to the end of a block, where the memory is empty"""
    every_minutes: float = operational(0.0, at_least(0))
    """minutes between additional checkpoints, which may be inside a block and then contain its memory; 0 = none"""
    keep: int = operational(3, at_least(1))
    """number of newest checkpoints to keep"""
    keep_every: int = operational(0, at_least(0))
    """steps between checkpoints that are kept forever; rounded up like every_steps; 0 = none"""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out text."""

    every_steps: int = operational(1000, at_least(1), "common")
    """steps between evaluations; a run also ends with one"""
    max_windows: int = setting(16_384, at_least(1))
    """largest number of windows in an evaluation, in whole batches; a smaller held-out text is read once"""
    samples: bool = operational(True)
    """draw a continuation of a held-out passage and fill a gap in it at each evaluation"""


@dataclass(frozen=True)
class SelectionConfig:
    """Early stopping. The best checkpoint is always kept."""

    patience: int = operational(0, at_least(0))
    """stop after this many consecutive evaluations without improvement; 0 = run to the last step"""


@dataclass(frozen=True)
class LogConfig:
    """Output while training."""

    every_steps: int = operational(100, at_least(1))
    """steps between records in metrics.jsonl and TensorBoard, and between printed lines if the output is not a
    terminal"""
    wandb: str | None = operational(None, "common")
    """project of Weights & Biases that gets the same numbers (pip install -e '.[wandb]'); None = none"""


@dataclass(frozen=True)
class RunConfig(RecordingSettings):
    """Settings of every training: base of pretraining's `Config`, and of `FinetuneConfig` in tasks/config.py."""

    init: str | None = setting(None, "blocks", "common")
    """checkpoint to start from, with its network and tokenizer: a folder of this project, the 2019 code or Hugging
    Face; tiny, which comes with the package; or a model on the Hugging Face Hub, such as xlnet/xlnet-base-cased"""
    tokenizer: str | None = operational(None, "blocks", "common")
    """SentencePiece model with XLNet's special symbols, folder of a tokenizer, or name of a model on the Hugging Face
    Hub; None = that of --init, or one trained on the corpus"""
    workdir: str | None = operational(None, "common")
    """folder of the run; None = a folder in runs with the name of the corpus and the preset, or of the task"""
    steps: int = setting(500_000, at_least(1), "common")
    """number of training steps; if not given, the demo preset takes fewer for a small text"""
    seed: int = setting(0, at_least(0), "common")
    """seed of the initial parameters, dropout and data order; finetune and compare set it by --seeds"""
    tpu: bool = operational(False, "common")
    """refuse to run without a TPU"""
    auto_fit: bool = operational(False, "common")
    """if a step does not fit the memory of a device, choose remat, micro-batches and fsdp that fit; the global batch
    stays the same"""
    trace_steps: str | None = operational(None)
    """steps to profile into WORKDIR/tensorboard, such as 10:15 (10 to 14); None = none"""
    model: ModelConfig = ModelConfig()
    data: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()


DIALS = ("minutes", "hours", "flops")
"""Settings of which one chooses all sizes of a run"""


@dataclass(frozen=True)
class Config(RunConfig, RecordSettings):
    """One pretraining run."""

    corpus: tuple[str, ...] = operational((), "text", "common")
    """training text: files, globs, folders, URLs, tfds:NAME, hf:NAME, or one folder made by data_pipelines.prepare;
    none = the novels in the package"""
    validation: tuple[str, ...] = operational((), "text", "common")
    """held-out text, in the same forms; none = hold out some documents of the corpus"""
    preset: str = operational("demo", "common")
    """set of defaults for all other settings: demo, small, base, long, large, large_v1, bert-base, roberta-base,
    albert-base, electra-small, transformer-xl-wt103, transformer-xl-wt103-large, vanilla, modern-small, modern-base or
    modern-large"""
    objective: str = setting("plm", "common")
    """training objective (listed above in --help); also changes the defaults of other settings"""
    data: DataConfig = DataConfig()
    rtd: ReplacedConfig = ReplacedConfig()
    eval: EvalConfig = EvalConfig()
    selection: SelectionConfig = SelectionConfig()
    minutes: float | None = operational(None, above(0), "common")
    """minutes for the whole run: network, vocabulary, batch and steps are chosen to fit (docs/scale.md)"""
    hours: float | None = operational(None, above(0))
    """the same in hours"""
    flops: float | None = operational(None, above(0))
    """the same for FLOPs of training, whatever the time; config.json stores the choice instead of these three"""

    @property
    def dial(self) -> str:
        """Name of the dial that the user gave: minutes, hours or flops; "" = none."""
        return next((name for name in DIALS if getattr(self, name) is not None), "")
