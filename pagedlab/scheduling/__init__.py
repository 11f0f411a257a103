"""Scheduling: who gets how many tokens of a step's budget. Needs neither torch nor numpy."""

from pagedlab.scheduling.output import CachedRequestData, NewRequestData, SchedulerOutput, StepResult
from pagedlab.scheduling.scheduler import Scheduler
from pagedlab.scheduling.static import StaticBatchScheduler

__all__ = ["CachedRequestData", "NewRequestData", "Scheduler", "SchedulerOutput", "StaticBatchScheduler", "StepResult"]
