"""The decoder computes what a Llama-style decoder is: checked against plain loops in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagedlab.errors import ModelError
from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder, DenseAttention, RotaryEmbedding, apply_rope

CONFIG = DecoderConfig(
    vocab_size=29,
    hidden_size=20,
    intermediate_size=28,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    rope_theta=100.0,
)
Array = npt.NDArray[np.float64]


def make_decoder(config: DecoderConfig = CONFIG, dtype: torch.dtype = torch.float64) -> Decoder:
    """A decoder with weights large enough that every part of it matters, norms included."""
    torch.manual_seed(7)
    decoder = Decoder(config)
    for parameter in decoder.parameters():
        parameter.data = torch.randn_like(parameter) / (1 if parameter.ndim == 1 else math.sqrt(parameter.shape[1]))
    return decoder.to(dtype).eval().requires_grad_(False)


# --- the reference: one token, one head, one number at a time ---------------------------------------------------


def reference_logits(config: DecoderConfig, weights: dict[str, Tensor], token_ids: list[int]) -> Array:
    """Logits of every position of one sequence, from the checkpoint's tensors."""
    w: dict[str, Array] = {name: tensor.numpy() for name, tensor in weights.items()}
    stream = [w["model.embed_tokens.weight"][token_id] for token_id in token_ids]
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        normed = [rms_norm(x, w[prefix + "input_layernorm.weight"], config.rms_norm_eps) for x in stream]
        queries, keys, values = (
            [(w[f"{prefix}self_attn.{name}_proj.weight"] @ x).reshape(-1, config.head_dim) for x in normed]
            for name in "qkv"
        )
        for position in range(len(stream)):
            heads = []
            for head in range(config.num_attention_heads):
                kv_head = head // (config.num_attention_heads // config.num_key_value_heads)
                query = turn(queries[position][head], position, config.rope_theta)
                scores = [
                    query @ turn(keys[earlier][kv_head], earlier, config.rope_theta) / math.sqrt(config.head_dim)
                    for earlier in range(position + 1)
                ]
                shares = np.exp(scores) / np.exp(scores).sum()
                heads.append(sum(share * values[earlier][kv_head] for earlier, share in enumerate(shares)))
            stream[position] = stream[position] + w[prefix + "self_attn.o_proj.weight"] @ np.concatenate(heads)
            x = rms_norm(stream[position], w[prefix + "post_attention_layernorm.weight"], config.rms_norm_eps)
            gate, up = w[prefix + "mlp.gate_proj.weight"] @ x, w[prefix + "mlp.up_proj.weight"] @ x
            stream[position] = stream[position] + w[prefix + "mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    head_weight = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return np.stack([head_weight @ rms_norm(x, w["model.norm.weight"], config.rms_norm_eps) for x in stream])


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / math.sqrt(sum(value * value for value in x) / len(x) + eps) * weight


def turn(x: Array, position: int, theta: float) -> Array:
    """RoPE as complex numbers: coordinates i and i + d/2 are one number, multiplied by e^(i angle)."""
    half = len(x) // 2
    pairs = [complex(x[i], x[i + half]) * np.exp(1j * position * theta ** (-i / half)) for i in range(half)]
    return np.array([pair.real for pair in pairs] + [pair.imag for pair in pairs])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
def test_logits_equal_plain_loops(tied: bool, num_kv_heads: int) -> None:
    config = replace(CONFIG, tie_word_embeddings=tied, num_key_value_heads=num_kv_heads)
    decoder = make_decoder(config)
    token_ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 28, 0]
    hidden = decoder(torch.tensor(token_ids), torch.arange(len(token_ids)), DenseAttention(1))
    expected = reference_logits(config, decoder.checkpoint(), token_ids)
    np.testing.assert_allclose(decoder.compute_logits(hidden).numpy(), expected, rtol=1e-11, atol=1e-11)


# --- properties that serving relies on --------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_token_does_not_notice_its_neighbours_in_the_batch(data: st.DataObject) -> None:
    decoder = make_decoder()
    length = data.draw(st.integers(1, 12))
    sequences = data.draw(
        st.lists(st.lists(st.integers(0, 28), min_size=length, max_size=length), min_size=1, max_size=5)
    )
    flat, positions = torch.tensor(sequences).flatten(), torch.arange(length).repeat(len(sequences))
    together = decoder(flat, positions, DenseAttention(len(sequences))).view(len(sequences), length, -1)
    for ids, hidden in zip(sequences, together, strict=True):
        alone = decoder(torch.tensor(ids), torch.arange(length), DenseAttention(1))
        torch.testing.assert_close(hidden, alone, rtol=1e-12, atol=1e-12)


def test_a_token_does_not_see_later_tokens() -> None:
    decoder = make_decoder()
    short, long = torch.tensor([5, 6, 7]), torch.tensor([5, 6, 7, 8, 9])
    torch.testing.assert_close(
        decoder(long, torch.arange(5), DenseAttention(1))[:3], decoder(short, torch.arange(3), DenseAttention(1))
    )


def test_attention_gets_each_layer_once_with_the_heads_it_must_cache() -> None:
    calls: list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []

    def attention(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append((layer, tuple(query.shape), tuple(key.shape), tuple(value.shape)))
        return query

    hidden = make_decoder()(torch.arange(4, dtype=torch.int32), torch.arange(4), attention)
    assert calls == [(layer, (4, 6, 8), (4, 2, 8), (4, 2, 8)) for layer in range(3)]
    assert hidden.shape == (4, 20)


def test_query_heads_share_key_value_heads_in_consecutive_groups() -> None:
    query, key = torch.randn(5, 6, 8), torch.randn(5, 2, 8)
    value = torch.zeros(5, 2, 8)
    value[:, 1] = 1  # the second key/value head gives ones, the first zeros
    output = DenseAttention(1)(0, query, key, value)
    torch.testing.assert_close(output, torch.tensor([0.0, 0, 0, 1, 1, 1])[None, :, None].expand(5, 6, 8))


@given(near=st.integers(0, 20), distance=st.integers(0, 20), shift=st.integers(0, 20))
@settings(deadline=None)
def test_rope_makes_a_score_depend_on_distance_alone(near: int, distance: int, shift: int) -> None:
    torch.manual_seed(near)
    query, key = torch.randn(2, 1, 1, CONFIG.head_dim, dtype=torch.float64)
    rope = RotaryEmbedding(CONFIG)

    def score(query_position: int, key_position: int) -> Tensor:
        turned_query = apply_rope(query, *rope(torch.tensor([query_position]), query.dtype))
        turned_key = apply_rope(key, *rope(torch.tensor([key_position]), key.dtype))
        return (turned_query * turned_key).sum()

    torch.testing.assert_close(score(near + distance, near), score(near + distance + shift, near + shift))


def test_rope_turns_a_token_alike_in_any_batch() -> None:
    rope = RotaryEmbedding(CONFIG).to(torch.float32)
    x = torch.randn(37, 2, CONFIG.head_dim)
    positions = torch.randperm(64)[:37]
    together = apply_rope(x, *rope(positions, x.dtype))
    for index in range(37):
        alone = apply_rope(x[index : index + 1], *rope(positions[index : index + 1], x.dtype))
        assert torch.equal(alone[0], together[index])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]
)
def test_every_dtype_computes_the_same_function(dtype: torch.dtype, tolerance: float) -> None:
    exact = make_decoder()
    decoder = make_decoder(dtype=dtype)
    ids, positions = torch.randint(29, (24,)), torch.arange(12).repeat(2)
    expected = exact.compute_logits(exact(ids, positions, DenseAttention(2)))
    logits = decoder.compute_logits(decoder(ids, positions, DenseAttention(2)))
    assert logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (logits.double() - expected).norm() / expected.norm() < tolerance


# --- checkpoints ------------------------------------------------------------------------------------------------


def test_a_checkpoint_has_hugging_face_names_and_separate_projections() -> None:
    tensors = make_decoder(replace(CONFIG, tie_word_embeddings=True)).checkpoint()
    names = {name for name in tensors if name.startswith("model.layers.0.")}
    assert names == {
        f"model.layers.0.{name}.weight"
        for name in (
            *("input_layernorm", "post_attention_layernorm"),
            *(f"self_attn.{letter}_proj" for letter in "qkvo"),
            *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        )
    }
    assert set(tensors) - {name for name in tensors if ".layers." in name} == {
        "model.embed_tokens.weight",
        "model.norm.weight",
    }
    assert tensors["model.layers.0.self_attn.k_proj.weight"].shape == (16, 20)


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_loaded_elsewhere_gives_the_same_model(tied: bool) -> None:
    config = replace(CONFIG, tie_word_embeddings=tied)
    original, copy = make_decoder(config), Decoder(config).double()
    copy.load_weights(original.checkpoint())
    ids, positions = torch.arange(9), torch.arange(9)
    logits = [decoder.compute_logits(decoder(ids, positions, DenseAttention(1))) for decoder in (original, copy)]
    assert torch.equal(*logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "lacks model.norm.weight"),
        ({"model.extra.weight": torch.zeros(3)}, "holds model.extra.weight"),
        ({"model.layers.1.self_attn.v_proj.weight": torch.zeros(8, 20)}, r"shape \(8, 20\).*asks for \(16, 20\)"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(
    change: dict[str, Tensor | None], message: str
) -> None:
    decoder = make_decoder()
    before = {name: tensor.clone() for name, tensor in decoder.checkpoint().items()}
    weights = {name: tensor + 1 for name, tensor in before.items()} | change
    with pytest.raises(ModelError, match=message):
        decoder.load_weights({name: tensor for name, tensor in weights.items() if tensor is not None})
    assert all(torch.equal(before[name], tensor) for name, tensor in decoder.checkpoint().items())
