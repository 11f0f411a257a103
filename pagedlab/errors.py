"""The named errors of pagedlab: every one says what was given, what is allowed and what to do.

>>> from pagedlab.errors import ConfigError, PagedlabError
>>> issubclass(ConfigError, PagedlabError) and issubclass(ConfigError, ValueError)
True

When one of these is raised, nothing has changed: the engine goes on as if the call had not been made.
vLLM raises plain ``ValueError`` or ``AssertionError`` in most of these places (or waits for ever).
"""


class PagedlabError(Exception):
    """Base of every error that pagedlab raises on purpose."""


class ConfigError(PagedlabError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class RequestError(PagedlabError, ValueError):
    """A request that can never be served as it was given."""


class DuplicateRequestError(RequestError):
    """A request id that is already in use by a live request."""


class EngineBusyError(PagedlabError, RuntimeError):
    """A call to an engine that is in the middle of a step: from an observer, or from another thread."""


class CapacityError(PagedlabError, RuntimeError):
    """Something is full: the block pool, a block-table row, the batch."""


class IntegrityError(PagedlabError, AssertionError):
    """The engine's own books do not add up. Always a defect of pagedlab, never of its user."""


class ModelError(PagedlabError, ValueError):
    """A model, checkpoint or tokenizer that cannot be loaded, and why."""


class TraceError(PagedlabError, ValueError):
    """A trace that cannot be read, or that does not hold what a scene needs."""


class LessonError(PagedlabError, ValueError):
    """A lesson that does not exist or cannot run here."""


class ExerciseError(PagedlabError, ValueError):
    """An exercise that does not exist, is not written as its contract asks, or cannot be checked here."""


class ChartError(PagedlabError, ValueError):
    """A chart that cannot be drawn from what was given."""
