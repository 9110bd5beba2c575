"""The one process that answers all requests for inference, from its start at the first of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading

from onnx import onnx_cpp2py_export

from jaxrnn.onnx import inference_process
from jaxrnn.onnx.inference_process import HEADER, LENGTH, PATIENCE

#: Whether there are groups of processes.
_GROUPS = hasattr(os, "killpg")


class InferenceServer:
    """A process that is started at the first request, and anew after it has died.

    Threads take turns. A fork of the caller's process has a server of its own: the parent's pipes are the parent's. The
    server ends with the caller's process, however that ends, since its input does then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def ask(self, model: bytes, *options: bool) -> bytes:
        """The answer to one request, as `inference_process` has it; empty where there is none."""
        with self._lock:
            was_running = self._process is not None
            answer = self._answer(model, options)
            if answer is None and was_running:  # it may have died since the last request
                answer = self._answer(model, options)
            return answer or b""

    def stop(self) -> None:
        """End the process, if there is one; the next request starts another."""
        with self._lock:
            self._stop()

    def _answer(self, model: bytes, options: tuple[bool, ...]) -> bytes | None:
        """The answer, or None where the process cannot be started or has died."""
        answer = None
        try:
            process = self._process = self._process or _started()
            patience = threading.Timer(PATIENCE + 5, _kill, (process,))
            patience.daemon = True
            patience.start()
            try:
                answer = _exchange(process, HEADER.pack(len(model), *options) + model)
            finally:
                patience.cancel()
        except (OSError, RuntimeError):
            pass  # no process or no thread can be started, or the process has died
        finally:
            if answer is None:  # interrupted, too: what is left of the answer is not that of the next request
                self._stop()
        return answer

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.communicate()

    def _forget(self) -> None:
        """In a fork: leave the process to the parent."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None:
            process.returncode = 0  # it is no child of this process, which cannot wait for it
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _started() -> subprocess.Popen[bytes]:
    """A new process.

    Raises:
        OSError: it cannot be started.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("a frozen program has no interpreter to start")
    command = [sys.executable, "-I", "-S", inference_process.__file__, str(onnx_cpp2py_export.__file__)]
    # A group of its own, which can be killed with its forks, and which an interrupt of the terminal does not reach.
    return subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0 if _GROUPS else None,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if _GROUPS:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
    """The answer to a request; None where the process ends before it is complete.

    Raises:
        OSError: the process does not take the request.
    """
    requests, answers = process.stdin, process.stdout
    assert requests is not None
    assert answers is not None
    view = memoryview(request)
    while view:
        view = view[requests.write(view) :]

    def received(count: int) -> bytes | None:
        content = b""
        while len(content) < count:
            part = answers.read(count - len(content))
            if not part:
                return None
            content += part
        return content

    header = received(LENGTH.size)
    return None if header is None else received(*LENGTH.unpack(header))
