"""Attention weights of one text, as its pictures show them: its pieces, those predicted, and the weights."""

from collections.abc import Iterable

from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.inference.attention_weights import attention_weights
from xlnet_jax.inference.factorization import find_words
from xlnet_jax.inference.query_stream import scoring_tokenizer
from xlnet_jax.plots.attention import TextAttention
from xlnet_jax.settings.typed import list_of_texts

MOST_PIECES = 128  # a page of XLNet-Large, 24 x 16 heads, has 17 MB then


def view_attention(pretrained: Pretrained, text: str, targets: str | Iterable[str] = ()) -> TextAttention:
    """Return the attention weights of a text.

    targets: words of the text to predict, in the order of prediction, each seeing those before it; several pieces of
    one are predicted from left to right. Empty = the content stream alone.

    Raises InputError where the text has more than MOST_PIECES pieces, and as `attention_weights` and `find_words` do.
    """
    targets = list_of_texts(targets, "targets")
    tokenizer = scoring_tokenizer(pretrained) if targets else pretrained.tokenizer
    if tokenizer is None:
        raise InputError("the checkpoint has no tokenizer: put its spiece.model beside it")
    ids_L = tokenizer.encode_lines([text])[0]
    if len(ids_L) > MOST_PIECES:
        raise InputError(f"`text` has {len(ids_L):,} pieces, and a picture shows at most {MOST_PIECES}: shorten it")
    positions = [int(i) for words in targets for i in find_words(tokenizer, ids_L, words)]
    found = attention_weights(pretrained, [text], [positions] if positions else None)
    query_ZNPK = None if found.query_ZBNPK is None else found.query_ZBNPK[:, 0]
    return TextAttention(found.pieces[0], found.targets[0], found.content_ZBNLK[:, 0], query_ZNPK)
