"""What type checkers read in place of __init__.py, which imports public names when they are used."""

from data_pipelines.prepare.commands import PrepareSettings as PrepareSettings
from data_pipelines.prepare.commands import prepare_corpus as prepare_corpus
from xlnet_jax.checkpoints.formats import save as save
from xlnet_jax.checkpoints.pretrained import on_device as on_device
from xlnet_jax.errors import InputError as InputError
from xlnet_jax.inference.attention import AttentionSettings as AttentionSettings
from xlnet_jax.inference.attention import attention_weights as attention_weights
from xlnet_jax.inference.attention import draw_attention as draw_attention
from xlnet_jax.inference.embed import EmbedSettings as EmbedSettings
from xlnet_jax.inference.embed import embed_files as embed_files
from xlnet_jax.inference.embed import embed_texts as embed_texts
from xlnet_jax.inference.embed import embed_tokens as embed_tokens
from xlnet_jax.inference.generate import generate as generate
from xlnet_jax.inference.requests import GenerateSettings as GenerateSettings
from xlnet_jax.inference.score import ScoreSettings as ScoreSettings
from xlnet_jax.inference.score import score_files as score_files
from xlnet_jax.inference.score import score_texts as score_texts
from xlnet_jax.inference.variants import score_variants as score_variants
from xlnet_jax.inference.words import fill_in as fill_in
from xlnet_jax.interop.contents import Pretrained as Pretrained
from xlnet_jax.interop.weights import initial_params as initial_params
from xlnet_jax.measurement.evaluate import EvaluateSettings as EvaluateSettings
from xlnet_jax.measurement.evaluate import evaluate as evaluate
from xlnet_jax.measurement.factorize import factorize as factorize
from xlnet_jax.measurement.recl import ReclSettings as ReclSettings
from xlnet_jax.measurement.recl import recl as recl
from xlnet_jax.models.heads import XLNetLM as XLNetLM
from xlnet_jax.objectives.inspect import InspectSettings as InspectSettings
from xlnet_jax.objectives.inspect import inspect_window as inspect_window
from xlnet_jax.objectives.language_model import empty_memory as empty_memory
from xlnet_jax.objectives.language_model import inputs_of as inputs_of
from xlnet_jax.objectives.presets import preset as preset
from xlnet_jax.objectives.registry import batch_source as batch_source
from xlnet_jax.settings.config import Config as Config
from xlnet_jax.settings.config import DataConfig as DataConfig
from xlnet_jax.settings.config import ModelConfig as ModelConfig
from xlnet_jax.tasks.config import FinetuneConfig as FinetuneConfig
from xlnet_jax.tasks.convert import ConvertSettings as ConvertSettings
from xlnet_jax.tasks.convert import convert as convert
from xlnet_jax.tasks.doctor import examine as examine
from xlnet_jax.tasks.exporting import export as export
from xlnet_jax.tasks.finetune import finetune as finetune
from xlnet_jax.tasks.model import Model as Model
from xlnet_jax.tasks.model import load as load
from xlnet_jax.tasks.model import predict as predict
from xlnet_jax.tasks.task import Prediction as Prediction
from xlnet_jax.training.callbacks import Trackio as Trackio
from xlnet_jax.training.loop import Callback as Callback
from xlnet_jax.training.pretrain import pretrain as pretrain
from xlnet_jax.training.selection import Result as Result

__version__: str
PUBLIC: dict[str, str]
