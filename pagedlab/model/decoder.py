"""The decoder: token ids and positions in, hidden states out, with attention left to whoever owns the memory.

A model that serves many requests at once sees one flat row of tokens: two of request A, one of B, five of C. All of
its layers but one treat a token alone, so the flat row costs them nothing. The exception is attention, where a token
looks back at *its own* request. So the decoder computes queries, keys and values and hands them to an ``attention``
callable. The engine passes one that reads and writes paged KV blocks; training and tests pass `DenseAttention`.

>>> import torch
>>> from pagedlab.model.config import DecoderConfig
>>> config = DecoderConfig(
...     vocab_size=257,
...     hidden_size=32,
...     intermediate_size=64,
...     num_hidden_layers=2,
...     num_attention_heads=4,
...     num_key_value_heads=2,
...     head_dim=8,
...     max_position_embeddings=64,
... )
>>> decoder = Decoder(config)
>>> hidden = decoder(torch.tensor([84, 111, 32]), torch.arange(3), DenseAttention(num_sequences=1))
>>> decoder.compute_logits(hidden[-1:]).shape  # one row per token that is to be sampled
torch.Size([1, 257])

vLLM counterpart: ``vllm/model_executor/models/llama.py`` at 0.25.1 (``LlamaForCausalLM``, ``LlamaDecoderLayer``,
``LlamaAttention``, ``LlamaMLP``). As there, the three projections of attention are one matrix (``qkv_proj``), and so
are the two of the feed-forward (``gate_up_proj``): fewer, larger products. On disk they are separate, under Hugging
Face's names. What differs: one process holds the whole model, the residual is added in the open, and the attention
layer gets its cache from the caller rather than from a global forward context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor, nn

from pagedlab.errors import ModelError
from pagedlab.model.config import DecoderConfig

# A fused parameter here -> the parameters it is made of on disk, in order (vLLM: `packed_modules_mapping`).
PACKED_MODULES = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


class Attention(Protocol):
    """Causal attention of one layer over a flat batch; where earlier keys and values live is its own affair."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend.

        Parameters
        ----------
        layer : int
            Which decoder layer asks: each has its own cache.
        query : Tensor
            ``[num_tokens, num_attention_heads, head_dim]``, already turned by RoPE.
        key, value : Tensor
            ``[num_tokens, num_key_value_heads, head_dim]``: the new entries of the cache.

        Returns
        -------
        Tensor
            ``[num_tokens, num_attention_heads, head_dim]``.
        """


class DenseAttention:
    """Attention without a cache, over ``num_sequences`` whole sequences of equal length laid end to end.

    This is what paged attention must equal, and what training uses.
    """

    def __init__(self, num_sequences: int) -> None:
        self.num_sequences = num_sequences

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Attention`."""
        # [sequences * length, heads, head_dim] -> [sequences, heads, length, head_dim]
        query, key, value = (x.view(self.num_sequences, -1, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return output.transpose(1, 2).flatten(0, 1)


class RotaryEmbedding(nn.Module):
    """RoPE: turn each pair ``(x[i], x[i + head_dim/2])`` of a head by an angle that grows with the position.

    The dot product of a query and a key then depends on how far apart they are, not on where they are. The cosines and
    sines are a table, made once in float64 (it follows the model to its dtype and device), and a token's row is picked
    by its position: a token is turned by exactly the same numbers whichever batch it comes in.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
        angles = positions[:, None, None] * config.rope_theta**-exponents  # [max_position_embeddings, 1, head_dim / 2]
        self.register_buffer("cos_sin_cache", torch.stack((angles.cos(), angles.sin()), dim=1), persistent=False)
        self.cos_sin_cache: Tensor  # [max_position_embeddings, 2, 1, head_dim / 2]

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Pick cosines and sines for ``positions [num_tokens]``; each ``[num_tokens, 1, head_dim / 2]``."""
        cos, sin = self.cos_sin_cache[positions].to(dtype).unbind(1)
        return cos, sin


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x [num_tokens, heads, head_dim]``; the two halves of a head hold the two coordinates of its pairs."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class SelfAttention(nn.Module):
    """Project to heads, turn queries and keys, attend, project back."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, config.q_size + 2 * config.kv_size, bias=False)
        self.o_proj = nn.Linear(config.q_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """Mix ``x [num_tokens, hidden_size]`` with earlier tokens of the same request."""
        qkv = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))  # [num_tokens, heads + 2 * kv_heads, head_dim]
        query_key, value = torch.split(qkv, [self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        query_key = apply_rope(query_key, cos, sin)
        query, key = torch.split(query_key, [self.num_heads, self.num_kv_heads], dim=1)
        output: Tensor = self.o_proj(attention(self.layer, query, key, value).flatten(1))
        return output


class MLP(nn.Module):
    """SwiGLU: one half of a widened projection, through SiLU, gates the other."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token of ``x [num_tokens, hidden_size]`` alone."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        output: Tensor = self.down_proj(F.silu(gate) * up)
        return output


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each normalised before and added to the residual stream after."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = SelfAttention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """Add both branches to ``x [num_tokens, hidden_size]``."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attention)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class DecoderModel(nn.Module):
    """Embedding, layers, final norm: everything below the logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary_emb = RotaryEmbedding(config)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, input_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `Decoder.forward`."""
        x: Tensor = self.embed_tokens(input_ids)
        cos, sin = self.rotary_emb(positions, x.dtype)  # the same for every layer
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        hidden: Tensor = self.norm(x)
        return hidden


class Decoder(nn.Module):
    """A Llama-style language model whose attention is an argument.

    Parameters
    ----------
    config : DecoderConfig
        Its shape. The weights start random; `load_weights` fills them.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def max_model_len(self) -> int:
        """The longest sequence, prompt and output together."""
        return self.config.max_position_embeddings

    def forward(self, input_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Compute the hidden state of every token of a flat batch.

        Parameters
        ----------
        input_ids : Tensor
            ``[num_tokens]`` int32 or int64.
        positions : Tensor
            ``[num_tokens]`` int64: the place of each token in its own sequence.
        attention : Attention
            Called once a layer.

        Returns
        -------
        Tensor
            ``[num_tokens, hidden_size]``.
        """
        hidden: Tensor = self.model(input_ids, positions, attention)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Score every token of the vocabulary; float32 at least, so that close scores are told apart.

        Only rows that will be sampled need this: ``hidden [n, hidden_size]`` gives ``[n, vocab_size]``.
        """
        logits: Tensor = self.lm_head(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy a checkpoint in, by Hugging Face's Llama names; a fused parameter gets its parts side by side.

        Raises
        ------
        ModelError
            If a tensor is missing, is left over or has another shape. Nothing has been copied then.
        """
        shapes = {name: part.shape for name, part in self.checkpoint().items()}
        if missing := shapes.keys() - weights.keys():
            raise ModelError(f"the checkpoint lacks {_some(missing)}: is it complete, and of the Llama family?")
        known = shapes.keys() | ({"lm_head.weight"} if self.config.tie_word_embeddings else set())
        if unknown := weights.keys() - known:
            raise ModelError(f"the checkpoint holds {_some(unknown)}, which the model that config.json describes lacks")
        for name, shape in shapes.items():
            if weights[name].shape != shape:
                raise ModelError(
                    f"{name} has shape {tuple(weights[name].shape)}, but config.json asks for {tuple(shape)}: "
                    "weights and config belong to different models"
                )
        for name, part in self.checkpoint().items():
            part.copy_(weights[name])

    def checkpoint(self) -> dict[str, Tensor]:
        """The parameters under Hugging Face's Llama names, as views: fused ones cut into their parts."""
        config = self.config
        sizes = {
            "qkv_proj": [config.q_size, config.kv_size, config.kv_size],
            "gate_up_proj": [config.intermediate_size, config.intermediate_size],
        }
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.named_parameters():  # a tied lm_head is listed once, as the embedding
            prefix, _, module = name.removesuffix(".weight").rpartition(".")
            if module in PACKED_MODULES:
                parts = torch.split(parameter.detach(), sizes[module])
                for part_name, part in zip(PACKED_MODULES[module], parts, strict=True):
                    tensors[f"{prefix}.{part_name}.weight"] = part
            else:
                tensors[name] = parameter.detach()
        return tensors


def _some(names: set[str]) -> str:
    """The first few of a set of names, for a message."""
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
