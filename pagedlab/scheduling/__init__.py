"""Scheduling: who gets how many tokens of a step's budget. Needs neither torch nor numpy."""

from pagedlab.scheduling.output import CachedRequestData, NewRequestData, RequestUpdate, SchedulerOutput
from pagedlab.scheduling.scheduler import Scheduler

__all__ = ["CachedRequestData", "NewRequestData", "RequestUpdate", "Scheduler", "SchedulerOutput"]
