"""XLNet's SentencePiece tokenizer: normalise text, train a vocabulary, encode, find words and sentences.

A tokenizer on disk is a folder: spiece.model, and tokenizer_settings.json with the settings that SentencePiece does not
store. A model without settings is read with those of the original's English models. BERT's and RoBERTa's tokenizers are
a tokenizer.json instead.
"""

from data_pipelines.tokenizer.foreign import TOKENIZER_JSON
from data_pipelines.tokenizer.model import MODEL_FILE, SETTINGS_FILE, Tokenizer
from data_pipelines.tokenizer.normalization import Normalization, Survey, guess_normalization, normalize
from data_pipelines.tokenizer.settings import SAMPLE_LINES, Settings, TokenLevel, read_settings
from data_pipelines.tokenizer.symbols import BOS, CLS, EOD, EOP, EOS, MASK, PAD, SEP, SPECIAL_PIECES, UNK
from data_pipelines.tokenizer.training import SAMPLE_BYTES

__all__ = [
    "BOS",
    "CLS",
    "EOD",
    "EOP",
    "EOS",
    "MASK",
    "MODEL_FILE",
    "PAD",
    "SAMPLE_BYTES",
    "SAMPLE_LINES",
    "SEP",
    "SETTINGS_FILE",
    "SPECIAL_PIECES",
    "TOKENIZER_JSON",
    "UNK",
    "Normalization",
    "Settings",
    "Survey",
    "TokenLevel",
    "Tokenizer",
    "guess_normalization",
    "normalize",
    "read_settings",
]
