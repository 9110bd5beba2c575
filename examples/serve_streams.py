"""Serve live streams with Ray Serve: a pool in each replica, a WebSocket for each stream, states that outlive replicas.

    pip install -e '.[cli]' 'ray[serve]>=2.50'
    serve run configs/serve_streams.yaml           # or: python examples/serve_streams.py, a single replica

A client connects to ``ws://HOST:8000/NAME?next=N``. NAME is the stream, and N is the number of its next frame, 0 at
first. The server sends the text ``{"from": F, "lost": L}``: its state has the frames before F. A client that has kept
the frames from F on sends these again, and loses nothing; otherwise the L frames from F to N are lost.

The client sends blocks of frames (``float32``, any number), and receives blocks of outputs: 8 bytes with the number of
the first frame (``int64``, little-endian), and frames. Every `SECONDS`, the server sends ``{"saving": F}``, which the
client answers with ``got F``: it has all outputs before this message. Then the state is saved where all replicas can
read it, and the client gets ``{"saved": F}``: it may forget the frames before F. The text ``end`` ends the recording;
the rest of the outputs comes, and ``{"end": T}``, which the client answers with ``got T``.

If a replica dies, its clients connect again, and go on at another replica. Outputs after the saved state come twice,
with equal numbers. A replica that Ray stops, as for fewer clients, sends ``{"move": true}`` before: a client that stops
sending, answers ``move``, and connects again after the end of the connection loses nothing.
"""

import asyncio
import contextlib
import io
import json
import time
from dataclasses import dataclass, field
from typing import Any

import fsspec
import numpy as np
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from ray import serve

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.demo import PACKAGED

#: Seconds between two saves of a state.
SECONDS = 1.0
#: Seconds without a check of health by Ray after which a replica is about to be stopped; several periods of the checks.
UNWATCHED = 5.0
#: Streams of a replica, and blocks of outputs that wait for a slow client before its connection ends.
CAPACITY, BLOCKS = 64, 64
#: Seconds for a client to answer the end of a connection.
GOODBYE = 2.0
#: Codes of a connection that ends: as it should, with frames that do not fit, too slowly read, because the replica
#: stops, or because the server is full.
ENDED, UNFIT, SLOW, MOVED, FULL = 1000, 1003, 1008, 1012, 1013

app = FastAPI()


def denoiser() -> tuple[jaxrnn.Streamed, Any]:
    """Return the stream that is served, from samples to samples, and the parameters."""
    waveform = Waveform(Network(jaxrnn.load(PACKAGED), gives="mask"), Frames(256, 128, "sqrt_hann"))
    return waveform.stream(pulse=128), waveform.params


@dataclass
class Stream:
    """A stream with a client.

    Attributes:
        number: the id in the pool.
        pushed: the frames that the state and the waiting frames have.
        left: the output frames that have left the pool, with those before frame 0.
        outputs: blocks for the client; a number ends the connection with this code.
        saving: the frames and the state to save when the client has the outputs of these frames; None without a state.
        ends: the code with which the connection ends after this save; None if the connection goes on.
        asked: True if the client has been asked to move.
    """

    number: int
    pushed: int
    left: int
    outputs: "asyncio.Queue[bytes | str | int]" = field(default_factory=lambda: asyncio.Queue(BLOCKS))
    saving: tuple[int, dict[str, np.ndarray] | None] | None = None
    ends: int | None = None
    asked: bool = False

    def end(self, code: int) -> None:
        """End the connection at once; the saved state stays, and the client can go on from there."""
        while not self.outputs.empty():
            self.outputs.get_nowait()
        self.outputs.put_nowait(code)


@serve.deployment
@serve.ingress(app)
class Streams:
    """A replica: one pool for all its connections.

    Args:
        states: a folder or URL that all replicas read, for fsspec.
        capacity: the most streams.
        seconds: between two saves of a state.
        unwatched: seconds without a check of health after which clients are asked to move.
    """

    def __init__(self, states: str, capacity: int = CAPACITY, seconds: float = SECONDS, unwatched: float = UNWATCHED):
        self._files, self._folder = fsspec.url_to_fs(states)
        self._files.makedirs(self._folder, exist_ok=True)
        self._seconds, (streamed, params) = seconds, denoiser()
        # Compiles. A stream with NaN or infinities begins anew.
        self._pool = jaxrnn.StreamPool(streamed, params, capacity, on_nonfinite="reset")
        (self._input,), (self._output,) = streamed.spec.inputs, streamed.spec.outputs
        self._delay = self._output.delay or 0
        self._streams: dict[int, Stream] = {}
        self._waiting = asyncio.Event()
        self._watched, self._unwatched = time.monotonic(), unwatched
        self._tasks: list[asyncio.Task[None]] = []

    def check_health(self) -> None:
        """Note that Ray watches the replica: Ray no longer does when it stops the replica, and calls nothing else."""
        self._watched = time.monotonic()

    @app.websocket("/{name}")
    async def connect(self, socket: WebSocket, name: str, next: int = 0) -> None:
        """Serve a client until it ends, leaves, or is too slow."""
        self._tasks = self._tasks or [asyncio.create_task(each) for each in (self._run(), self._watch())]
        await socket.accept()
        saved = await asyncio.to_thread(self._load, name)
        begin, left = (0, 0) if saved is None else (int(saved.pop(each)) for each in ("frames", "left"))
        try:
            stream = Stream(self._pool.open(state=saved), begin, left)
        except jaxrnn.StateError as error:
            return await socket.close(FULL, str(error)[:120])
        self._streams[stream.number] = stream
        await socket.send_text(json.dumps({"from": begin, "lost": max(next - begin, 0)}))
        tasks = [
            asyncio.create_task(each) for each in (self._receive(socket, name, stream), self._send(socket, stream))
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(tasks, timeout=GOODBYE)
            for task in done:
                with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client has left
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            del self._streams[stream.number]
            self._pool.close(stream.number)

    async def _receive(self, socket: WebSocket, name: str, stream: Stream) -> None:
        """Push the blocks of a client, save states whose outputs it has, and flush at the end."""
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if (block := message.get("bytes")) is not None:
                try:
                    frames = np.frombuffer(block, self._input.dtype)
                    self._pool.push(stream.number, {self._input.name: frames})
                except (ValueError, jaxrnn.InputError):
                    stream.end(UNFIT)
                    continue
                stream.pushed += len(frames)
                self._waiting.set()
            elif (text := message.get("text")) == "move":
                await self._step()
                stream.ends = MOVED
                self._ask(stream)
            elif text == "end":
                await self._step()
                rest = self._pool.flush(stream.number)[self._output.name]
                stream.ends, stream.saving = ENDED, (stream.pushed, None)
                self._deliver(stream, rest)
                self._deliver(stream, json.dumps({"end": stream.pushed}))
            elif stream.saving is not None and text == f"got {stream.saving[0]}":
                (frames, state), stream.saving = stream.saving, None
                if state is None:
                    await asyncio.to_thread(self._forget, name)
                else:
                    await asyncio.to_thread(self._save, name, state)
                    self._deliver(stream, json.dumps({"saved": frames}))
                if stream.ends is not None:
                    self._deliver(stream, stream.ends)

    def _ask(self, stream: Stream) -> None:
        """Ask whether a client has all outputs; the state of this moment is saved when it answers."""
        counts = {"frames": np.asarray(stream.pushed), "left": np.asarray(stream.left)}
        stream.saving = stream.pushed, {**self._pool.state(stream.number), **counts}
        self._deliver(stream, json.dumps({"saving": stream.pushed}))

    async def _send(self, socket: WebSocket, stream: Stream) -> None:
        """Deliver outputs, and ask from time to time: no saved state has a frame whose output the client lacks."""
        asked = time.monotonic()
        while not isinstance(block := await stream.outputs.get(), int):
            await (socket.send_text(block) if isinstance(block, str) else socket.send_bytes(block))
            if stream.saving is None and stream.ends is None and time.monotonic() - asked > self._seconds:
                self._ask(stream)
                asked = time.monotonic()
        await socket.close(block)

    async def _run(self) -> None:
        """Run all streams whose pulses wait, whenever a client has sent frames."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            await self._step()

    async def _watch(self) -> None:
        """Ask the clients to move when the replica is about to be stopped."""
        while True:
            await asyncio.sleep(self._unwatched / 10)
            stops = time.monotonic() - self._watched > self._unwatched
            for stream in self._streams.values():
                if stops and not stream.asked:
                    stream.asked = True
                    self._deliver(stream, json.dumps({"move": True}))

    async def _step(self) -> None:
        """Run until no pulse waits; outputs leave after each round, so that a queue is full only for a slow client."""
        while results := self._pool.run():
            for number, outputs in results.items():
                self._deliver(self._streams[number], outputs[self._output.name])
            await asyncio.sleep(0)

    def _deliver(self, stream: Stream, block: np.ndarray | str | int) -> None:
        """Queue a block for a client, without the frames before frame 0; end the connection of a slow client."""
        if isinstance(block, np.ndarray):
            number, stream.left = stream.left - self._delay, stream.left + len(block)
            block = block[max(-number, 0) :]
            block = np.int64(max(number, 0)).astype("<i8").tobytes() + block.tobytes()
        try:
            stream.outputs.put_nowait(block)
        except asyncio.QueueFull:
            stream.end(SLOW)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name.encode().hex()}.npz"

    def _load(self, name: str) -> dict[str, np.ndarray] | None:
        try:
            with np.load(io.BytesIO(self._files.cat_file(self._path(name)))) as saved:
                return dict(saved)
        except FileNotFoundError:
            return None

    def _save(self, name: str, state: dict[str, np.ndarray]) -> None:
        """Write a state whole or not at all: a replica that dies leaves the state before."""
        content = io.BytesIO()
        np.savez(content, **state)
        self._files.pipe_file(f"{self._path(name)}.new", content.getvalue())
        self._files.mv(f"{self._path(name)}.new", self._path(name))

    def _forget(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))


def build(arguments: dict[str, Any]) -> serve.Application:
    """Return the application for a configuration file."""
    return Streams.bind(**arguments)


if __name__ == "__main__":
    serve.run(Streams.bind("runs/states"), blocking=True)
