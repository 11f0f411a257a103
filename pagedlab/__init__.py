"""pagedlab: how an LLM server keeps its GPU busy, re-implemented to be read, run and watched.

    from pagedlab import LLMEngine, SamplingParams

    engine = LLMEngine("quill")
    print(engine.generate("To be, or not", SamplingParams(max_tokens=40, temperature=0))[0].text)

Nothing heavy is loaded until it is used: importing this package needs neither torch nor Jupyter.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedlab.config import CacheConfig, SchedulerConfig
    from pagedlab.engine import LLMEngine
    from pagedlab.errors import PagedlabError
    from pagedlab.outputs import RequestOutput
    from pagedlab.request import SamplingParams
    from pagedlab.scheduling.output import TokenLogprobs
    from pagedlab.trace import Trace, record

try:
    __version__ = version("pagedlab")
except PackageNotFoundError:  # a checkout that is on the path but not installed
    __version__ = "0+unknown"

_HOMES = {
    "CacheConfig": "pagedlab.config",
    "LLMEngine": "pagedlab.engine",
    "PagedlabError": "pagedlab.errors",
    "RequestOutput": "pagedlab.outputs",
    "SamplingParams": "pagedlab.request",
    "SchedulerConfig": "pagedlab.config",
    "TokenLogprobs": "pagedlab.scheduling.output",
    "Trace": "pagedlab.trace",
    "record": "pagedlab.trace",
}

__all__ = [
    "CacheConfig",
    "LLMEngine",
    "PagedlabError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "TokenLogprobs",
    "Trace",
    "__version__",
    "record",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pagedlab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
