"""XLNet's SentencePiece tokenizer: normalize text, train a vocabulary, encode, find where words and sentences begin.

A tokenizer on disk is a folder with spiece.model and tokenizer_settings.json, which has the settings that SentencePiece
does not store. A model without settings gets those of the original English models. BERT's and RoBERTa's tokenizers are
a tokenizer.json instead, and a vocabulary of symbols (sequences that are not prose) is a symbols.json.
"""

# ruff: noqa: F401
# True for type checkers. Nothing is imported before a command leaves the current folder (storage/import_path.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from data_pipelines.tokenizer.foreign import TOKENIZER_JSON
    from data_pipelines.tokenizer.model import MODEL_FILE, SETTINGS_FILE, Tokenizer
    from data_pipelines.tokenizer.normalization import Normalization, guess_normalization, normalize
    from data_pipelines.tokenizer.pieces import BOS, CLS, EOD, EOP, EOS, MASK, PAD, SEP, SPACE, SPECIAL_PIECES, UNK
    from data_pipelines.tokenizer.pieces import UNSPACED as UNSPACED
    from data_pipelines.tokenizer.settings import SAMPLE_LINES, TokenizerSettings
    from data_pipelines.tokenizer.symbols import SYMBOLS_JSON
    from data_pipelines.tokenizer.training import VocabularyTooLarge


def __getattr__(name: str) -> object:
    from importlib import import_module

    modules = ("pieces", "settings", "normalization", "model", "training", "foreign", "symbols")
    for module in () if name.startswith("_") or name in modules else modules:
        if hasattr(found := import_module(f"{__name__}.{module}"), name):
            globals()[name] = getattr(found, name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
