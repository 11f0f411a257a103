"""How fast pagedlab is on this machine.

Each row is one claim; of the host: one thread, the best of three runs. The figures of vLLM 0.25.1 beside it were
measured in the same way, but on another machine (`VLLM_MEASURED`). Figures that stand in ``docs/`` come from here, with
the machine and the date (`pagedlab bench`).
"""

from pagedlab.bench.host import host_rows
from pagedlab.bench.measure import VLLM_MEASURED, Row, machine, report, to_markdown

__all__ = ["VLLM_MEASURED", "Row", "host_rows", "machine", "report", "to_markdown"]
