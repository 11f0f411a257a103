"""Traces: what a running engine did, as typed events with the source lines that caused them.

>>> from pagedlab.trace import Trace
>>> Trace.from_records([]).num_steps
0

`record` attaches a `Recorder` to an engine; `Trace.save` and `Trace.load` write and read JSON Lines.
Loading a trace needs neither torch nor numpy.
"""

from pagedlab.trace.recorder import Recorder, record
from pagedlab.trace.store import Record, SourceFunction, SourceLine, Trace

__all__ = ["Record", "Recorder", "SourceFunction", "SourceLine", "Trace", "record"]
