"""The process that runs a submission. It gets calls, answers with plain data, and knows nothing of what is right.

The judge (`pagedlab.teaching.exercises.sandbox`) starts it as ``python -I -m pagedlab.teaching.exercises.worker``, with
its settings as the only argument. Messages (`pagedlab.teaching.exercises.encoding`) come on stdin and go to stdout as
they were at the start; whatever the submission prints goes to stderr, where the judge collects it.

The first message up says what confines the process. Then each request is answered:

``load``    a source, and the name of the function or class in it
``call``    the inputs; back come the result, the inputs as they are now, or the exception
``echo``    the same, but nothing is called: to time what the message takes
``record``  a call, with every change to the watched values

vLLM has no counterpart.
"""

from __future__ import annotations

import json
import os
import sys

from pagedlab.teaching.exercises.confinement import (
    COMPILING,
    Confinement,
    enter_namespaces,
    forbid_system_calls,
    limit_resources,
)


def main() -> None:
    """Confine this process, then serve the judge until it closes the pipe."""
    settings = json.loads(sys.argv[1])
    done = Confinement()
    # Before anything starts a thread:
    enter_namespaces(done, settings["hidden"], for_driver=settings["form"] == "triton")
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    from pagedlab.teaching.exercises.serving import Server
    from pagedlab.teaching.exercises.tensors import load_tensors

    tensors = load_tensors() if settings["form"] == "triton" else None
    on_gpu = tensors is not None and tensors.device == "cuda"
    # A GPU's driver reserves more addresses than there is memory, and Triton's compiler is a program of its own.
    limits = (0, COMPILING * settings["cpu_seconds"]) if on_gpu else (settings["memory_bytes"], settings["cpu_seconds"])
    limit_resources(done, *limits)
    if not on_gpu:
        forbid_system_calls(done)
    Server(requests, replies, tensors, done).serve()


if __name__ == "__main__":
    main()
