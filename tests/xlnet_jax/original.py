"""The original's network in float64 (`transformer_xl` and `two_stream_rel_attn` of modeling.py), batch first."""

import numpy as np

HIDDEN = 1e30


class Refused(Exception):
    """TensorFlow ends with an error."""


def demand(*conditions):
    if not all(conditions):
        raise Refused


def normed(weights, x):
    w = weights["LayerNorm_0"]
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * w["scale"] + w["bias"]


def fed_forward(weights, x):
    inner = x @ weights["inner"]["kernel"] + weights["inner"]["bias"]
    inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    return normed(weights["norm"], x + inner @ weights["outer"]["kernel"] + weights["outer"]["bias"])


def position_keys(weights, length, keys, width):
    """[i, j, N, H], by the distance from row i to key j."""
    distance = np.arange(length)[:, None] + keys - length - np.arange(keys)
    angles = distance[..., None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.einsum("ijd,dnh->ijnh", np.concatenate([np.sin(angles), np.cos(angles)], -1), weights["r"])


def logits(
    config,
    params,
    input_ids_BL,
    segment_ids_BL=None,
    attention_mask_BL=None,
    perm_mask_BLL=None,
    target_mapping_BPL=None,
    predicted_BL=None,
    mems_ZBMD=None,
):
    """[B, P or L, V] of the query stream, or, without one, of the content stream. Memory is attended to."""
    demand(np.ndim(input_ids_BL) == 2, input_ids_BL.dtype.kind in "iu")
    (batch, length), backbone = input_ids_BL.shape, params["backbone"]
    demand(((input_ids_BL >= 0) & (input_ids_BL < config.vocab_size)).all())  # tf.gather
    for array, kinds, *shape in (
        (segment_ids_BL, "iu", length),
        (attention_mask_BL, "iufb", length),
        (perm_mask_BLL, "iufb", length, length),
        (target_mapping_BPL, "iufb", *np.shape(target_mapping_BPL)[1:2], length),
        (predicted_BL, "iufb", length),
    ):
        demand(array is None or (array.shape == (batch, *shape) and array.dtype.kind in kinds))
    if mems_ZBMD is None:
        mems_ZBMD = np.zeros((config.num_layers, batch, 0, config.d_model))
    demand(mems_ZBMD.ndim == 4, mems_ZBMD.dtype.kind == "f")
    memory = mems_ZBMD.shape[2]
    demand(mems_ZBMD.shape == (config.num_layers, batch, memory, config.d_model))

    masked = np.zeros((batch, length, memory + length))
    if attention_mask_BL is not None:
        masked[:, :, memory:] += 1 - attention_mask_BL[:, None].astype(float)
    if perm_mask_BLL is not None:
        masked[:, :, memory:] += perm_mask_BLL
    masked_g = masked > 0
    masked_h = masked_g.astype(float) - np.eye(length, memory + length, memory) > 0
    h, g = backbone["word_embedding"][input_ids_BL].astype(float), None
    if target_mapping_BPL is not None:
        g = np.broadcast_to(backbone["mask_embedding"], (batch, target_mapping_BPL.shape[1], config.d_model))
    elif predicted_BL is not None:
        share = predicted_BL[..., None].astype(float)
        g = share * backbone["mask_embedding"] + (1 - share) * h
    other = None
    if segment_ids_BL is not None:
        of_keys = np.pad(segment_ids_BL.astype(np.int64), ((0, 0), (memory, 0)))
        other = (segment_ids_BL[:, :, None] != of_keys[:, None]).astype(int)

    for z in range(config.num_layers):
        attention, feed_forward = (
            {name: _of_layer(tree, z) for name, tree in backbone["layers"][part].items()}
            for part in ("attention", "feed_forward")
        )
        context = np.concatenate([mems_ZBMD[z], h], 1)
        key, value = (np.einsum("bjd,dnh->bjnh", context, attention[name]) for name in "kv")
        place = position_keys(attention, length, memory + length, config.d_model)
        r_w, r_r, r_s = attention["biases"]

        def attended(query, hidden, key=key, value=value, place=place, r=(r_w, r_r, r_s), attention=attention):
            score = np.einsum("binh,bjnh->bijn", query + r[0], key) + np.einsum("binh,ijnh->bijn", query + r[1], place)
            if other is not None:
                by_segment = np.einsum("binh,snh->bins", query + r[2], attention["segment_embedding"])
                score += np.einsum("bins,bijs->bijn", by_segment, np.eye(2)[other])
            score = score / np.sqrt(config.d_head) - HIDDEN * hidden[..., None]
            probs = np.exp(score - score.max(2, keepdims=True))
            return np.einsum("bijn,bjnh->binh", probs / probs.sum(2, keepdims=True), value)

        def after(rows, read, attention=attention, feed_forward=feed_forward):
            added = rows + np.einsum("binh,dnh->bid", read, attention["o"])
            return fed_forward(feed_forward, normed(attention["norm"], added))

        asking = None if g is None else np.einsum("bid,dnh->binh", g, attention["q"])
        if target_mapping_BPL is not None:
            asking = np.einsum("bmnh,bml->blnh", asking, target_mapping_BPL)
        new_h = after(h, attended(np.einsum("bid,dnh->binh", h, attention["q"]), masked_h))
        if g is not None:
            read = attended(asking, masked_g)
            if target_mapping_BPL is not None:
                read = np.einsum("blnh,bml->bmnh", read, target_mapping_BPL)
            g = after(g, read)
        h = new_h
    return (h if g is None else g) @ backbone["word_embedding"].T + params["output_bias"]


def _of_layer(tree, z):
    return {name: _of_layer(part, z) for name, part in tree.items()} if isinstance(tree, dict) else tree[z]
