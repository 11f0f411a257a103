"""A small random decoder in float64: exact enough that two ways of computing one thing choose the same token."""

from __future__ import annotations

import pytest
import torch

from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder


@pytest.fixture(scope="session")
def tiny_model() -> Decoder:
    torch.manual_seed(7)
    config = DecoderConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=96,
        eos_token_id=63,
    )
    model = Decoder(config).double().eval().requires_grad_(False)
    for parameter in model.parameters():  # far from the init's near-uniform logits, so that argmax is never a toss-up
        if parameter.dim() > 1:
            parameter.normal_(std=0.3)
    return model
