"""The numbers that fix a decoder's shape, read from and written to a Hugging Face ``config.json``.

>>> config = DecoderConfig(
...     vocab_size=257,
...     hidden_size=64,
...     intermediate_size=128,
...     num_hidden_layers=2,
...     num_attention_heads=4,
...     num_key_value_heads=2,
...     head_dim=16,
...     max_position_embeddings=128,
... )
>>> config.num_queries_per_kv
2
>>> DecoderConfig.from_dict(config.to_dict()) == config
True

vLLM counterpart: ``vllm/config/model.py`` (``ModelConfig``) at 0.25.1, around a ``transformers`` config object. What
differs: a plain validated record of the Llama family's names, and no ``transformers``. A setting that would change the
maths in a way this decoder does not compute (scaled RoPE, biases, another activation) is refused, never ignored.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from pagedlab.config import require_bool, require_int
from pagedlab.errors import ConfigError

# What a Llama-family config.json may also say, and the only values for which our forward pass is the right one.
REQUIRED_VALUES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The shape of a Llama-style decoder. The defaults are those of Hugging Face's ``LlamaConfig``.

    Parameters
    ----------
    vocab_size : int
        Number of token ids; rows of the embedding.
    hidden_size : int
        Width of the residual stream.
    intermediate_size : int
        Width inside the SwiGLU feed-forward.
    num_hidden_layers : int
        Decoder layers.
    num_attention_heads, num_key_value_heads : int
        Query heads, and the fewer key and value heads that they share (grouped-query attention). The first must be a
        multiple of the second.
    head_dim : int
        Width of one head; even, because RoPE turns pairs.
    max_position_embeddings : int
        The longest sequence, prompt and output together.
    rope_theta : float
        Base of the RoPE wavelengths.
    rms_norm_eps : float
        Added under the root of RMSNorm.
    tie_word_embeddings : bool
        Whether the output projection is the embedding matrix itself.
    eos_token_id, bos_token_id : int or None
        The tokens that end and start a text.

    Raises
    ------
    ConfigError
        If no decoder can have this shape.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    eos_token_id: int | None = None
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            require_int(name, getattr(self, name), minimum=1)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"{self.num_attention_heads} query heads cannot share {self.num_key_value_heads} key/value heads: "
                "make num_attention_heads a multiple of num_key_value_heads"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}: RoPE turns pairs, so give an even number")
        for name in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value!r}: give a finite number above 0")
        require_bool("tie_word_embeddings", self.tie_word_embeddings)
        for name in ("eos_token_id", "bos_token_id"):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), minimum=0, maximum=self.vocab_size - 1)

    @property
    def num_queries_per_kv(self) -> int:
        """How many query heads share one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; the value heads have the same."""
        return self.num_key_value_heads * self.head_dim

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DecoderConfig:
        """Build a config from the contents of a ``config.json``.

        Keys that describe no part of the forward pass (``torch_dtype``, ``transformers_version`` …) are passed over.

        Raises
        ------
        ConfigError
            If a needed key is missing, or a known one asks for maths that this decoder does not do.
        """
        for name, required in REQUIRED_VALUES.items():
            if values.get(name, required) != required:
                raise ConfigError(f"{name} is {values[name]!r}: this decoder computes only {required!r}")
        rope = values.get("rope_parameters") or {}  # where newer configs keep RoPE's numbers
        if rope.get("rope_type", "default") != "default":
            raise ConfigError(f"rope_parameters is {rope!r}: this decoder computes only rope_type 'default'")

        found = {**values, **rope}
        given = {field.name: found[field.name] for field in fields(cls) if found.get(field.name) is not None}
        if "num_attention_heads" in given:  # older configs leave these two out
            require_int("num_attention_heads", given["num_attention_heads"], minimum=1)
            require_int("hidden_size", given.get("hidden_size", 0), minimum=0)
            given.setdefault("num_key_value_heads", given["num_attention_heads"])
            given.setdefault("head_dim", given.get("hidden_size", 0) // given["num_attention_heads"])
        if missing := [field.name for field in fields(cls) if field.default is MISSING and field.name not in given]:
            raise ConfigError(f"the config lacks {', '.join(missing)}")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """The contents of a ``config.json`` that Hugging Face's Llama classes read too."""
        return {"architectures": ["LlamaForCausalLM"], **REQUIRED_VALUES, **asdict(self)}
