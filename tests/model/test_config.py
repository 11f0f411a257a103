"""A decoder's settings are checked once, when they are written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagedlab.errors import ConfigError
from pagedlab.model.config import DecoderConfig

SMALL = DecoderConfig(
    vocab_size=257,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"hidden_size": 48.0}, "hidden_size is 48.0, a float"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": 5}, "5 query heads cannot share 2 key/value heads"),
        ({"head_dim": 7}, "head_dim is 7: RoPE turns pairs"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"eos_token_id": 257}, "eos_token_id is 257: give a whole number of 0 to 256"),
        ({"bos_token_id": [1, 2]}, r"bos_token_id is \[1, 2\]"),
    ],
)
def test_an_impossible_shape_is_refused_with_its_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SMALL, **change)


def test_config_json_round_trips() -> None:
    config = replace(SMALL, eos_token_id=256, rope_theta=500_000.0, tie_word_embeddings=False)
    assert DecoderConfig.from_dict(config.to_dict()) == config


def test_what_hugging_face_leaves_out_gets_its_default() -> None:
    values = SMALL.to_dict()
    del values["num_key_value_heads"]
    values["head_dim"] = None
    config = DecoderConfig.from_dict(values | {"torch_dtype": "float16", "transformers_version": "5.0"})
    assert (config.num_key_value_heads, config.head_dim) == (6, 8)


def test_the_base_of_rope_is_read_where_newer_configs_keep_it() -> None:
    values = SMALL.to_dict()
    del values["rope_theta"]
    rope = {"rope_type": "default", "rope_theta": 500_000.0}
    assert DecoderConfig.from_dict(values | {"rope_parameters": rope}).rope_theta == 500_000.0


@pytest.mark.parametrize(
    "change",
    [
        {"rope_scaling": {"type": "linear"}},
        {"rope_parameters": {"rope_type": "yarn"}},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"model_type": "gpt2"},
    ],
)
def test_maths_that_the_decoder_does_not_do_is_refused_not_ignored(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        DecoderConfig.from_dict(SMALL.to_dict() | change)


def test_missing_keys_are_named() -> None:
    values = SMALL.to_dict()
    del values["hidden_size"], values["vocab_size"]
    with pytest.raises(ConfigError, match="lacks vocab_size, hidden_size"):
        DecoderConfig.from_dict(values)
