"""Live streams on Ray Serve: clients that come, go and send odd sizes, and a replica that is killed or stopped."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
NEEDED = ("ray", "fastapi", "websockets")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
CLIENTS, TRIES = 60, 30
#: A replica is killed, or Ray stops a replica because fewer are wanted.
KILLED, STOPPED = "killed", "stopped"


async def client(address, sound, keeps, seed):
    """Return the outputs, the ranges of frames that were lost, and how often the client was asked to move."""
    import websockets

    rng, lost, at, outputs = np.random.default_rng(seed), [], 0, np.full(len(sound), np.nan, np.float32)
    asked, ended = 0, False
    for _ in range(TRIES):
        try:
            async with websockets.connect(f"{address}?next={at}") as socket:
                hello = json.loads(await socket.recv())
                if at > hello["from"]:
                    assert hello["lost"] == at - hello["from"]
                    if keeps:
                        at = hello["from"]
                    else:
                        lost.append((hello["from"], at))

                moves = asyncio.Event()

                async def send(moves=moves):
                    nonlocal at
                    while at < len(sound) and not moves.is_set():
                        block = sound[at : at + int(rng.integers(1, 700))]
                        await socket.send(block.tobytes())
                        at += len(block)
                        await asyncio.sleep(0.03)
                    await socket.send("move" if moves.is_set() else "end")

                sending = asyncio.create_task(send())
                try:
                    async for message in socket:
                        if isinstance(message, bytes):
                            first, block = int(np.frombuffer(message[:8], "<i8")[0]), np.frombuffer(message[8:], "f4")
                            outputs[first : first + len(block)] = block
                            continue
                        said = json.loads(message)
                        if "saving" in said or "end" in said:
                            await socket.send(f"got {said.get('saving', said.get('end'))}")
                        if "move" in said:
                            moves.set()
                            asked += 1
                        ended |= "end" in said
                finally:
                    sending.cancel()
        except (websockets.exceptions.WebSocketException, OSError):
            await asyncio.sleep(0.3)
        if ended:
            return outputs, lost, asked
    raise AssertionError(f"{address} was not served to the end")


async def clients_of(port, sounds, disturb):
    """Run all clients, and end a replica after some seconds."""
    tasks = [
        asyncio.create_task(client(f"ws://127.0.0.1:{port}/client-{index}", sound, index % 2 == 0, index))
        for index, sound in enumerate(sounds)
    ]
    await asyncio.sleep(3)
    await asyncio.to_thread(disturb)
    return await asyncio.gather(*tasks)


def replicas():
    """Return the processes of the replicas."""
    listed = subprocess.run(["pgrep", "-f", "ray::ServeReplica:default:Streams"], capture_output=True, text=True)
    return list(map(int, listed.stdout.split()))


def serve_and_check(folder, how):
    """Serve with two replicas, of which one ends, and compare what clients get with the offline outputs."""
    import ray
    from ray import serve

    from examples import serve_streams

    ray.init(num_cpus=4, include_dashboard=False)
    rng = np.random.default_rng(0)
    longest = 60_000 if how == KILLED else 200_000
    sounds = [rng.normal(size=rng.integers(longest // 20, longest)).astype(np.float32) / 10 for _ in range(CLIENTS)]

    def run(count):
        streams = serve_streams.Streams.options(
            num_replicas=count,
            max_ongoing_requests=CLIENTS,
            health_check_period_s=0.5,
            graceful_shutdown_timeout_s=60,
        )
        serve.run(streams.bind(folder, CLIENTS, 0.5, 3.0))

    def disturb():
        assert len(replicas()) == 2
        os.kill(replicas()[0], signal.SIGKILL) if how == KILLED else run(1)

    try:
        serve.start(http_options={"port": 8123})
        run(2)
        found = asyncio.run(clients_of(8123, sounds, disturb))
    finally:
        serve.shutdown()
        ray.shutdown()
    streamed, params = serve_streams.denoiser()
    for index, (sound, (outputs, lost, _)) in enumerate(zip(sounds, found, strict=True)):
        assert not lost or (index % 2 and how == KILLED), "a client that keeps its frames, or moves, loses nothing"
        exists = np.ones(len(sound), bool)
        for start, end in lost:
            exists[start:end] = False
        whole = np.asarray(streamed.run(params, {"samples": sound[exists]})["audio"])
        np.testing.assert_allclose(outputs[: len(whole)], whole, atol=1e-5)
    print("lost:", sum(bool(lost) for _, lost, _ in found), "moved:", sum(bool(moves) for _, _, moves in found))
    assert any(lost if how == KILLED else moves for _, lost, moves in found), "the replica served nobody"
    assert not [*Path(folder).glob("*.npz")], "a stream that has ended leaves no state"


@pytest.mark.nightly
@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install 'ray[serve]' websockets")
@pytest.mark.parametrize("how", [KILLED, STOPPED])
def test_streams_outlive_a_replica(how, tmp_path):
    """In a process of its own, because Ray's threads and warnings stay."""
    command = [sys.executable, "-W", "ignore", __file__, str(tmp_path / "states"), how]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    serve_and_check(*sys.argv[1:])
