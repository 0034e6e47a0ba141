# Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
"""XLNet that predicts tokens in any order, for transformers with trust_remote_code=True. Needs torch and transformers.

XLNet predicts a token from its query stream (Yang et al. 2019, section 2.3): log p(x) = sum over t of
log p(x_z(t) | x_z(<t)) for a factorization order z. `forward` reads from left to right and returns logits where a
causal language model returns them, so that programs that score and generate with such models work; `score` takes any
order. A text has no special tokens: give add_special_tokens=False to the tokenizer. <s>, which some programs put before
a text, is hidden: the network has never read it, and the first token of a text sees nothing.
"""

from typing import Any

import torch
from torch.nn.functional import pad
from transformers import XLNetConfig, XLNetLMHeadModel
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

BOS, CLS = 1, 3  # ids of <s> and <cls> in every XLNet vocabulary
OF_XLNET = ("perm_mask", "target_mapping", "mems", "inputs_embeds")


class _AnyOrderAttention(XLNetRelativeAttention):
    """Attention in which a row that sees nothing reads zeros: with all scores masked, a softmax is uniform and would
    reveal all tokens, including the row's own."""

    def rel_attn_core(self, *args: Any, **kwargs: Any) -> Any:
        found, mask_TKB1 = super().rel_attn_core(*args, **kwargs), kwargs["attn_mask"]
        if mask_TKB1 is None:
            return found
        sees_TB11 = (mask_TKB1.amin(1) == 0)[..., None]
        if not isinstance(found, tuple):
            return found * sees_TB11
        return found[0] * sees_TB11, found[1] * sees_TB11.squeeze(-1)[:, None]


class AnyOrderXLNet(XLNetLMHeadModel):
    """XLNetLMHeadModel whose `forward` is that of a causal language model, with `score` for any order."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__(config)
        for layer in self.transformer.layer:
            layer.rel_attn = _AnyOrderAttention(config)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> Any:
        """Return an output whose `logits` [B, L, V] at position i predict token i + 1 from tokens 0 to i.

        attention_mask: 0 = padding, on either side. labels: int64 [B, L], as a rule input_ids; position i is compared
        with the logits at i - 1, and -100 is ignored. token_type_ids are ignored. With perm_mask, target_mapping, mems
        or inputs_embeds this is the forward of XLNetLMHeadModel. Raises ValueError for a text with <cls>.
        """
        kwargs |= {"labels": labels, "logits_to_keep": logits_to_keep}
        if input_ids is None or any(kwargs.get(name) is not None for name in OF_XLNET):
            return super().forward(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **kwargs)
        if labels is not None:
            kwargs["labels"] = pad(labels[:, 1:], (0, 1), value=-100)
        mask_BL = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        length = input_ids.shape[1] + 1  # one more, which the last logits predict
        rank_BL = torch.arange(length, device=input_ids.device)[None]
        return self._predict(pad(input_ids, (0, 1)), pad(mask_BL, (0, 1)), rank_BL, 1, **kwargs)

    def score(
        self,
        input_ids: torch.Tensor,
        order: torch.Tensor | list[int] | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the log-probability of each token, float32 [B, L], nats; their sum is the log-likelihood of the text.

        order: positions in the order of prediction, [P] or [B, P]; None = all, from left to right. Positions that it
        leaves out are context: all tokens see them, and their score is 0, as is that of padding and of <s>.
        attention_mask: 0 = padding, on either side. Raises ValueError for a text with <cls>.
        """
        rows, length = input_ids.shape
        order_BP = torch.as_tensor(range(length) if order is None else order, device=input_ids.device).expand(rows, -1)
        places_BP = torch.arange(order_BP.shape[1], device=input_ids.device).expand(rows, -1)
        rank_BL = torch.full_like(input_ids, -1).scatter(1, order_BP, places_BP)
        mask_BL = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        log_probs_BLV = self._predict(input_ids, mask_BL, rank_BL, 0).logits.float().log_softmax(-1)
        scores_BL = log_probs_BLV.gather(2, input_ids[..., None])[..., 0]
        return scores_BL.masked_fill((rank_BL < 0) | (mask_BL == 0) | (input_ids == BOS), 0)

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of `forward` for the next token."""
        return {"input_ids": input_ids, "attention_mask": kwargs.get("attention_mask"), "logits_to_keep": 1}

    def _predict(
        self, ids_BL: torch.Tensor, mask_BL: torch.Tensor, rank_BL: torch.Tensor, first: int, **kwargs: Any
    ) -> Any:
        """Return the output of XLNetLMHeadModel for the tokens from position `first` on. Each sees those of lower rank
        and all of rank -1."""
        if (ids_BL == CLS).any():
            raise ValueError(
                "a text has no <cls>: give add_special_tokens=False to the tokenizer, or add_bos_token=False to "
                "lm-evaluation-harness"
            )
        hidden_BLL = (rank_BL[:, None] >= rank_BL[:, :, None]) & (rank_BL[:, None] >= 0)
        targets_PL = torch.eye(ids_BL.shape[1], device=ids_BL.device, dtype=self.dtype)[first:]
        return super().forward(
            ids_BL,
            attention_mask=((mask_BL != 0) & (ids_BL != BOS)).to(self.dtype),
            perm_mask=hidden_BLL.expand(len(ids_BL), -1, -1).to(self.dtype),
            target_mapping=targets_PL.expand(len(ids_BL), -1, -1),
            use_mems=False,
            **kwargs,
        )
