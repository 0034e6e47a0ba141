"""Page of attention weights for a browser: one HTML file that loads nothing, to choose layer, head and row in."""

import base64
import json
from importlib import resources

import numpy as np

from xlnet_jax.inference.attention_view import AttentionView

UNIT = 65535  # weights are whole numbers of 1 / 65535 in the page; 0 = not seen
TEMPLATE = "attention_page.html"


def attention_page(view: AttentionView, text: str, origin: str, layer: int, head: int | None) -> str:
    """Return the page. origin: name of the model. layer, head: shown first, from 0; head None = the mean of all."""
    layers, heads = view.content_ZNLK.shape[:2]
    data = {
        "text": text,
        "origin": origin,
        "pieces": view.pieces,
        "targets": view.targets,
        "layers": layers,
        "heads": heads,
        "layer": layer,
        "head": heads if head is None else head,
        "content": _encoded(view.content_ZNLK),
        "query": None if view.query_ZNPK is None else _encoded(view.query_ZNPK),
    }
    # No text can end the element that holds the data, or begin another.
    escaped = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    template = resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    return template.replace("{{data}}", escaped)


def _encoded(weights: np.ndarray) -> str:
    units = np.where(weights > 0, np.maximum(np.round(weights * UNIT), 1), 0)
    return base64.b64encode(units.astype("<u2").tobytes()).decode()
