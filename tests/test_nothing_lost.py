"""Interrupts, kills and second writers lose nothing: streams, files, checkpoints, evaluations and exports."""

from __future__ import annotations

import dis
import errno
import functools
import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from evaluation_cases import CONFIG, evaluation_of, leftovers, make_corpus, outputs, write_config
from refusals import check_refused
from small_models import FEATURES, draws, layers_model
from training_cases import examples, flat_fit, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn._files.writing import deferred_interrupts, in_place_of, remove_folder, replace_all, scratch
from jaxrnn._jax import context
from jaxrnn.demo import PACKAGED
from jaxrnn.export.files import write_files
from jaxrnn.steps import numpy_step

#: The instructions after which CPython handles signals, if they call C or jump backwards.
HANDLING = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}


def counting():
    """Each step returns the sum of all frames so far, and the frame before."""

    def sums(x):
        return {"y": jnp.cumsum(x["x"], 0), "late": jnp.pad(x["x"], ((1, 0), (0, 0)))[:-1]}

    return jaxrnn.stream(sums, {"x": jax.ShapeDtypeStruct((8, 4), jnp.float32)}, axes=0)


def frame(number):
    return {"x": np.full((1, 4), number, np.float32)}


@functools.cache
def instructions(code):
    return {each.offset: each.opname for each in dis.get_instructions(code)}


def interrupted_at(place, call):
    """Raise KeyboardInterrupt at the n-th place in `jaxrnn.runtime` or the bound step where a signal can arrive.

    A call that raises is done again by the caller, and a call that returns was not interrupted.
    """
    folders, left = (str(Path(jaxrnn.runtime.__file__).parent), numpy_step.__file__), [place]

    def traced(code_frame, event, argument):
        if not code_frame.f_code.co_filename.startswith(folders):
            return None
        code_frame.f_trace_opcodes, code_frame.f_trace_lines = True, False
        names, before = instructions(code_frame.f_code), [None]

        def step(code_frame, event, argument):
            if event == "opcode":
                now = names[code_frame.f_lasti]
                if before[0] in HANDLING and not now.startswith("RETURN"):
                    left[0] -= 1
                    if left[0] == 0:
                        raise KeyboardInterrupt
                before[0] = now
            return step

        return step

    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks when tracing starts
    sys.settrace(traced)
    try:
        return call()
    finally:
        sys.settrace(None)


def insisted(call, image):
    """Interrupt a call at each place in turn; the image stays as before. Return the result of the last call."""
    before, place = image(), 0
    while True:
        place += 1
        try:
            result = interrupted_at(place, call)
        except KeyboardInterrupt:
            jax.tree.map(np.testing.assert_array_equal, image(), before)
            continue
        assert place > 1, "nothing was interrupted"
        return result


@pytest.mark.thorough
def test_an_interrupt_anywhere_leaves_a_pool_as_before():
    pool = jaxrnn.StreamPool(counting(), None, 3)

    def image():
        now = pool._live.value
        return {name: (now.waiting.frames[entry.slot], pool.state(name)) for name, entry in now.open.items()}

    def do(method, *arguments):
        return insisted(lambda: getattr(pool, method)(*arguments), image)

    first, second = do("open"), do("open")
    for number in range(1, 4):
        do("push", first, frame(1))
        do("push", second, frame(number))
        found = do("run")
        assert [found[each]["y"][0, 0] for each in (first, second)] == [number, number * (number + 1) / 2]
    do("push", first, frame(5))
    do("reset", first)
    assert do("run") == {}
    do("push", first, frame(7))
    assert do("run")[first]["y"][0, 0] == 7
    do("flush", second)
    do("close", first)
    assert do("open") not in (first, second)
    do("push_many", [second], {"x": np.full((1, 2, 4), 9, np.float32)})
    assert [do("run")[second]["y"][0, 0] for _ in range(2)] == [9, 18]
    assert len(pool) == 2


def test_an_interrupt_anywhere_leaves_a_runner_as_before():
    run = jaxrnn.Runner(counting())
    for total in (2, 4):
        assert insisted(lambda: run(frame(2)), lambda: run.state)["y"][0, 0] == total
    insisted(run.flush, lambda: run.state)
    assert insisted(lambda: run(frame(2)), lambda: run.state)["y"][0, 0] == 2
    insisted(run.reset, lambda: run.state)
    assert run(frame(3))["y"][0, 0] == 3


def test_a_call_inside_of_a_call_is_refused():
    """Of a signal handler, or of a callback in this thread: the outer call has no effect, the inner one has."""
    run = jaxrnn.Runner(counting())
    run(frame(1))
    step, state, resets = run._live.value

    def nested(state, inputs):
        run.reset()
        return step(state, inputs)

    nested.begin = step.begin
    run._live.value = nested, state, resets
    check_refused(jaxrnn.StateError, "in the middle of this call, which therefore had no effect", run, frame(1))
    run._live.value = step, *run._live.value[1:]
    assert run(frame(1))["y"][0, 0] == 1


def test_a_fork_of_a_process_that_has_used_jax_is_refused(monkeypatch):
    streamed = counting()
    run, pool = jaxrnn.Runner(streamed), jaxrnn.StreamPool(streamed, None, 1)
    stream = pool.open()
    monkeypatch.setattr(context, "_computed_in", os.getpid() + 1)
    calls = (
        (jaxrnn.Runner, streamed),
        (jaxrnn.StreamPool, streamed, None, 1),
        (run, frame(0)),
        (run.flush,),
        (run.reset,),
    )
    calls += (pool.open,), (pool.push, stream, frame(0)), (pool.run,), (pool.state, stream), (getattr, run, "state")
    for call in calls:
        check_refused(jaxrnn.StateError, r"is a fork of process \d+, .*get_context\('spawn'\)", *call)


FORKING = """
import multiprocessing, sys, warnings
import numpy as np
import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.export.files import write_files
from jaxrnn.steps import numpy_step

warnings.simplefilter("ignore")
model, frame = jaxrnn.load(PACKAGED), {"magnitude": np.ones((1, 1, 129), np.float32)}
def run(): print(jaxrnn.Runner(model)(frame)["mask"].shape, flush=True)
def late():
    try: run()
    except jaxrnn.StateError as error: print("refused", flush=True)
def child(target):
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start(); process.join(60); print(process.exitcode, flush=True); process.kill()
child(run)  # JAX was not used yet
run()
child(late)
"""


@pytest.mark.thorough
def test_forks():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["(1, 1, 129)", "0", "(1, 1, 129)", "refused", "0"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with in_place_of(path) as written:
            written.write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"old")]
    with in_place_of(path) as written:
        written.write_bytes(b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"new")]


def test_an_error_names_the_file_that_was_asked_for(tmp_path, monkeypatch):
    with pytest.raises(jaxrnn.InputError, match="none/file cannot be written: there is no folder"):
        in_place_of(tmp_path / "none" / "file").__enter__()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write to all others
        check_refused(jaxrnn.InputError, "the folder .* is read-only", in_place_of(tmp_path / "file").__enter__)


def test_an_error_names_no_temporary_file(tmp_path):
    def write(*raised):
        with in_place_of(tmp_path / "file") as written:
            raise OSError(*(str(written) if each is ... else each for each in raised))

    for raised, named in (
        ((errno.ENOSPC, "No space left on device"), tmp_path / "file"),  # as of `write`, which knows no name
        ((errno.EISDIR, "Is a directory", ...), tmp_path / "file"),
        ((errno.ENOSPC, "No space left on device", "source", None, ...), tmp_path / "file"),  # as of a copy
        ((errno.ENOENT, "No such file", "other"), "other"),
        (("a message",), None),
    ):
        with pytest.raises(OSError, match=raised[-1] if named is None else raised[1]) as caught:
            write(*raised)
        assert caught.value.filename == (named and str(named))


def test_a_file_is_not_written_in_place_of_a_device(tmp_path):
    device = tmp_path / "device"
    os.mkfifo(device)
    with pytest.raises(jaxrnn.InputError, match="is a FIFO, not a regular file"), in_place_of(device):
        pytest.fail("written")
    with pytest.raises(jaxrnn.InputError, match="is a folder"), in_place_of(tmp_path):
        pytest.fail("written")
    assert device.is_fifo()


WRITING = """
import sys
from pathlib import Path
from jaxrnn._files import writing

with writing.in_place_of(Path(sys.argv[1])) as written:
    written.write_text("half")
    print(flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    path, environment = tmp_path / "file", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command, pipe = [sys.executable, "-c", WRITING, str(path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as running:
        running.stdout.readline()
        with in_place_of(path) as written, in_place_of(path) as other:
            written.write_text("new")
            other.write_text("also new")
            assert sorted(each.name for each in tmp_path.iterdir()) == [".file.0", ".file.1", ".file.2"]
        alone = scratch(path, alone=True)
        check_refused(jaxrnn.InputError, "another process writes .*file: wait for its end", alone.__enter__)
        assert {each.name for each in tmp_path.iterdir()} == {".file.0", "file"}
        running.kill()
    with in_place_of(path) as written:
        assert written.parent.name == ".file.0"
        assert not written.exists()
        written.write_text("newer")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "newer")]


def test_a_folder_that_somebody_else_has_made_is_not_used(tmp_path):
    (tmp_path / ".file.0").write_text("mine")
    (tmp_path / ".file.1").symlink_to(tmp_path)
    with in_place_of(tmp_path / "file") as written:
        assert written.parent.name == ".file.2"
        written.write_text("new")
    assert (tmp_path / ".file.0").read_text() == "mine"


def test_without_locks_each_folder_has_a_name_of_its_own(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", fail)
    with in_place_of(tmp_path / "file") as written, in_place_of(tmp_path / "file") as other:
        assert not {written.parent.name, other.parent.name} & {".file.0", ".file.1"}
        written.write_text("new")
        other.write_text("newer")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_files_appear_together(tmp_path, monkeypatch):
    """None after a failed move, and all after interrupts in the middle, which come behind."""

    def files(folder):
        (tmp_path / folder / "new").mkdir(parents=True)
        paths = {tmp_path / folder / name: tmp_path / folder / "new" / name for name in "abc"}
        for path, written in paths.items():
            written.write_text("new")
            path.write_text("old")
        return paths

    failing, whole = files("failing"), files("whole")
    first, *others = failing
    first.unlink()
    failing[others[1]].unlink()
    check_refused(FileNotFoundError, "new/c", replace_all, failing)
    assert not first.exists()
    assert [path.read_text() for path in others] == ["old"] * 2
    replace = os.replace

    def interrupting(*paths):
        signal.raise_signal(signal.SIGINT)
        replace(*paths)

    monkeypatch.setattr(os, "replace", interrupting)
    with pytest.raises(KeyboardInterrupt), python_interrupts():
        replace_all(whole)
    assert [path.read_text() for path in whole] == ["new"] * 3


def test_an_interrupt_waits_for_the_removal_of_a_folder(tmp_path, monkeypatch):
    close = os.close

    def interrupted(descriptor):
        close(descriptor)
        signal.raise_signal(signal.SIGINT)

    (folder := tmp_path / "left").mkdir()
    (folder / "file").touch()
    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt), python_interrupts():
        remove_folder(folder)
    assert not folder.exists()


def test_an_interrupt_is_not_lost_behind_an_error():
    def fail():
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            raise OSError("the disk is full")

    with pytest.raises(KeyboardInterrupt) as caught, python_interrupts():
        fail()
    assert isinstance(caught.value.__context__, OSError)


class python_interrupts:
    """SIGINT raises KeyboardInterrupt, also in a process that was started in the background and ignores SIGINT."""

    def __enter__(self):
        self._before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *exception):
        signal.signal(signal.SIGINT, self._before)


class Interrupting:
    """Ctrl-C by another thread, some seconds after the begin of a call; `count` have ended a call.

    Python drops an interrupt that arrives in a callback of the garbage collector, as JAX has one: a call that goes on
    is interrupted again.
    """

    def __init__(self, seed):
        self.count, self.sent, self._rng = 0, 0, np.random.default_rng(seed)

    def __call__(self, call, seconds, *arguments):
        """Return the result of the call, or None if the interrupt came before."""
        result, ended = None, threading.Event()
        delay, main = self._rng.uniform(0, seconds), threading.main_thread().ident

        def send():
            wait = delay
            while not ended.wait(wait):
                self.sent, wait = self.sent + 1, max(0.2, 5 * seconds)
                signal.pthread_kill(main, signal.SIGINT)

        sender = threading.Thread(target=send)
        try:
            sender.start()
            try:
                result = call(*arguments)
            finally:
                ended.set()
                sender.join()
        except (KeyboardInterrupt, SystemError) as error:
            # An interrupt in a function in Python that NumPy calls can arrive as a SystemError.
            if not isinstance(error if isinstance(error, KeyboardInterrupt) else error.__cause__, KeyboardInterrupt):
                raise
            self.count += 1
            ended.set()
            sender.join()
        return result


#: 1,000 interrupts in all.
COUNTS = {"pool": 400, "runner": 400, "fit": 70, "evaluate": 60, "export": 70}


# Python drops an interrupt that arrives in a callback of a weak reference or of the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.nightly
@pytest.mark.parametrize("what", COUNTS)
def test_a_thousand_real_interrupts(what, tmp_path):
    gc.collect()
    interrupting = Interrupting(seed=len(what))
    with python_interrupts():
        globals()[f"interrupt_{what}"](interrupting, COUNTS[what], tmp_path)
    print(f"{what}: {interrupting.sent} interrupts sent, of which {interrupting.count} ended a call")
    assert interrupting.count >= COUNTS[what]


def interrupt_runner(interrupting, count, folder):
    """Steps in a loop, with an interrupt at any moment: each frame is computed once, and its outputs come."""
    model = jaxrnn.load(PACKAGED)
    frames = [draws(model.spec.inputs, seed, time=1) for seed in range(50)]
    # A bound method, because ``run(frame)`` is a call of C: an interrupt can arrive between its end and an assignment.
    run, expected = jaxrnn.Runner(model).__call__, jaxrnn.Runner(model)
    jaxrnn.Runner(model)(frames[0])  # JAX cannot be imported again after an interrupted import
    in_loop(interrupting, count, lambda number: run(frames[number % 50]), lambda number: expected(frames[number % 50]))


def interrupt_pool(interrupting, count, folder):
    """As for a runner; the frames of an interrupted run are not pushed again."""
    model = jaxrnn.load(PACKAGED)
    frames = [draws(model.spec.inputs, seed, time=1) for seed in range(50)]

    def stepping():
        pool, pushed = jaxrnn.StreamPool(model, model.params, 512), set()
        streams = [pool.open() for _ in range(8)]

        def step(number):
            for place, stream in enumerate(streams):
                if (number, place) not in pushed:
                    pool.push(stream, frames[(number + place) % 50])
                    pushed.add((number, place))
            return pool.run()

        step(-1)
        return step

    in_loop(interrupting, count, stepping(), stepping())


def in_loop(interrupting, count, step, expected):
    results = []

    def loop():
        found = None
        try:
            while True:
                found = None
                found = step(len(results))
                results.append(found)
        except KeyboardInterrupt:
            if found is not None and (not results or results[-1] is not found):
                results.append(found)
            raise

    while interrupting.count < count:
        interrupting(loop, 0.01)
    for number, found in enumerate(results):
        jax.tree.map(np.testing.assert_array_equal, found, expected(number))


def interrupt_fit(interrupting, count, folder):
    """Trainings that go on after each interrupt end as if there had been none."""
    model, data = recurrent_model("time"), examples([5, 9, 7, 4, 6, 8, 3])
    options = {"steps": 23, "batch_size": 3, "time_axis": 1, "chunk": 3, "learning_rate": 0.02}
    options |= {"validation": examples([4, 6, 5], seed=5), "every": 4, "keep": 2}

    def train(place):
        return flat_fit(model, data, mean_square, checkpoints=place, **options)

    whole, began = train(folder / "whole"), time.monotonic()
    train(folder / "again")
    seconds = time.monotonic() - began
    while interrupting.count < count:
        place, kept = folder / str(interrupting.count), 0
        while (fitted := interrupting(train, seconds, place)) is None:
            steps = [int(path.name) for path in place.iterdir() if path.name.isdigit()] if place.exists() else []
            assert max(steps, default=0) >= kept
            kept = max(steps, default=0)
        assert same(fitted.params, whole.params)
        assert same(fitted.last_params, whole.last_params)
        assert [each["loss"] for each in fitted.history] == [each["loss"] for each in whole.history]
        names = {path.name for path in place.iterdir()}
        assert {"23", "lock"} < names
        assert all(name.isdigit() for name in names - {"lock"})


def interrupt_evaluate(interrupting, count, folder):
    """Evaluations that go on after each interrupt have the same rows and outputs, and leave nothing torn."""
    make_corpus(folder, [4000, 9000, 2000, 7000, 5000, 3000, 8000, 1000, 6000], seed=1)

    def evaluate(out):
        evaluation = evaluation_of(folder, out, batch=2)
        evaluation.run()
        return evaluation.write_results([])

    whole, began = evaluate("whole"), time.monotonic()
    evaluate("again")
    seconds = time.monotonic() - began
    while interrupting.count < count:
        out, finished = str(interrupting.count), 0
        while (results := interrupting(evaluate, seconds, out)) is None:
            now = len(evaluation_of(folder, out, batch=2).parts.finished())
            assert now >= finished
            finished = now
        assert list(results.rows) == list(whole.rows)
        jax.tree.map(np.testing.assert_array_equal, outputs(folder / out), outputs(folder / "whole"))
        assert not leftovers(folder / out)


def interrupt_export(interrupting, count, folder):
    """The files and the example are those of one version, the one before or the new one."""
    export = exporting(folder)

    def both(version):
        jaxrnn.export.write_example(export(version), folder / "example")
        return version

    both(1)
    began, version = time.monotonic(), 2
    both(version)
    seconds = time.monotonic() - began
    while interrupting.count < count:
        version += 1
        done = interrupting(both, seconds, version)
        (written,), (shown,) = versions(folder), versions(folder / "example")
        assert written in ((version,) if done else (version - 1, version))
        assert shown in ((version,) if done else (version - 1, written))
        both(version)
        assert {path.name for path in folder.iterdir()} == {
            "step.onnx",
            "flush.onnx",
            "step.first_state.npz",
            "example",
        }
        assert not [path for path in (folder / "example").iterdir() if path.name.startswith(".")]


def exporting(folder):
    """A function that exports a version of a stream to a folder. The version is in the labels and the first state."""

    def smooth(params, x):
        def step(carry, new):
            after = params["decay"] * carry + new
            return after, after

        return {"y": jax.lax.scan(step, params["start"], x["x"])[1]}

    def params(version):
        return {"decay": jnp.full(3, 0.5), "start": jnp.full(3, float(version))}

    streamed = jaxrnn.stream(smooth, {"x": np.zeros((8, 3), np.float32)}, axes=0, params=params(0))

    def export(version):
        paths = {"path": folder / "step.onnx", "flush": folder / "flush.onnx"}
        return jaxrnn.export_onnx(streamed, params(version), **paths, label=f"version {version}")

    return export


def versions(folder):
    """The versions of the files of an export or an example, of those that exist."""
    found = {name: folder / name for name in ("step.onnx", "flush.onnx") if (folder / name).exists()}
    found = {int(onnx.load(path).doc_string.split(",")[0].removeprefix("version ")) for path in found.values()}
    if (beside := folder / "step.first_state.npz").exists():
        found |= {int(array[0]) for array in np.load(beside).values() if array.dtype == np.float32}
    if (facts := folder / "stream.json").exists():
        facts = json.loads(facts.read_text())
        found |= {int(facts["label"].removeprefix("version "))}
        if (state := folder / "state.bin").exists():
            (place,) = (each for each in facts["state"] if each["type"] == "float32")
            found |= {int(np.frombuffer(state.read_bytes(), np.float32, 3, place["offset"])[0])}
    return found


def killed(call, *, moves=0, seconds=0.0):
    """Call in a fork that is killed before the n-th move of a file, or after some seconds; return whether it was."""
    child = os.fork()
    if child:
        if seconds:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        return code != 0
    count, left = itertools.count(1), 1
    try:
        for name in ("replace", "link") if moves else ():
            move = getattr(os, name)
            setattr(os, name, lambda *a, m=move, **k: (next(count) == moves and os.kill(os.getpid(), 9)) or m(*a, **k))
        call()
        left = 0
    finally:
        os._exit(left)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_kill_between_two_moves_leaves_files_of_one_version(tmp_path):
    """The last file, which readers open first, is never missing."""
    for moves in range(1, 99):
        folder = tmp_path / str(moves)
        (folder / "new").mkdir(parents=True)
        files = {folder / name: folder / "new" / name for name in "abcd"}
        for path, written in files.items():
            written.write_text("new")
            path.write_text("old")
        (folder / "b").unlink()
        done = not killed(functools.partial(replace_all, files), moves=moves)
        (version,) = {path.read_text() for path in files if path.exists()}
        assert version == "new" if done else (folder / "d").exists()
        if done:
            assert all(path.exists() for path in files)
            break
    assert moves == 8  # two files away, a link and a move of the last, three files in


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("what", ["files", "example"])
def test_exports_that_are_killed_leave_files_of_one_version(what, tmp_path):
    """Before each move, and at 100 random times; the next export needs no help."""
    made, folder, entry = {}, tmp_path / "folder", {"files": "step.onnx", "example": "stream.json"}[what]
    for version in (1, 2):
        (tmp_path / str(version)).mkdir()
        made[version] = exporting(tmp_path / str(version))(version)
    folder.mkdir()

    def write(version):
        exported = made[version]
        if what == "example":
            jaxrnn.export.write_example(exported, folder)
            return
        graphs = {folder / each.path.name: ir.load(each.path) for each in (exported.flush, exported.step)}
        write_files(graphs, {folder / path.name: dict(np.load(path)) for path in exported.files if ".npz" in path.name})

    write(1)
    began, before, outcomes = time.monotonic(), 1, Counter()
    write(1)
    rng, seconds = np.random.default_rng(0), time.monotonic() - began
    every = {path.name for path in folder.iterdir()}
    trials = itertools.chain(({"moves": number} for number in range(1, 22)), ({"seconds": 1} for _ in range(100)))
    for trial in trials:
        version = 3 - before
        limits = {
            name: value * rng.uniform(0, 2 * seconds) if name == "seconds" else value for name, value in trial.items()
        }
        was = killed(functools.partial(write, version), **limits)
        (found,) = versions(folder)
        missing = every - {path.name for path in folder.iterdir()}
        assert entry not in missing
        assert was or (found == version and not missing)
        outcomes["killed" if was else "ended", "new" if found == version else "old", len(missing)] += 1
        before = found
    print(what, dict(outcomes))
    write(version)
    assert versions(folder) == {version}
    assert {path.name for path in folder.iterdir()} == every
    assert sum(count for (end, *_), count in outcomes.items() if end == "killed") > 50


#: Runs the command of its arguments, with a pause before each file is moved to its place.
TOGETHER = """
import os, pathlib, sys, time
from jaxrnn.cli import main
replace = os.replace
def slowly(*paths, **options):
    time.sleep(0.2)
    replace(*paths, **options)
print(flush=True)
sys.stdin.readline()
os.replace = slowly
main(sys.argv[1:])
"""
STREAM = ("export", PACKAGED, "--stft", "256", "--window", "sqrt_hann", "--gives", "mask", "--rate", "16000")
#: Commands in two variants that write to the same place, in a folder beside the files of `prepare_writers`.
WRITERS = {
    "step": [("export", PACKAGED, "--dim", "time=1", "--opset", n, "-o", "step.onnx") for n in ("17", "18")],
    "stream": [
        (*STREAM, "--hop", hop, "-o", "step.onnx", "--flush", "flush.onnx", "--example", "example")
        for hop in ("128", "64")
    ],
    "graph": [("export", "../net.onnx", "--params", f"../{n}.npz", "-o", "net.onnx") for n in "01"],
    "compile": [("compile", f"../{net}.onnx", "--symbol", "T", "-o", "out.jaxrnn") for net in ("first", "second")],
    "run": [("run", PACKAGED, "--random", "--dim", "time=3", "--seed", n, "--output", "out.npz") for n in "01"],
    "live": [("stream", PACKAGED, "--random", "--steps", n, "--output", "out.npz") for n in "34"],
    "inspect": [("inspect", f"../{net}.onnx", "--html", "page.html") for net in ("first", "second")],
    "demo": [("demo", "--seconds", "1", "--seed", n, "--out", ".") for n in "01"],
    "evaluate": [("evaluate", "../corpus.yaml", "--set", f"corpus.limit={n}") for n in "23"],
    "finetune": [("finetune", "../training.yaml", "--set", f"seed={n}") for n in "01"],
}
#: The files of a command that are equal in all runs, if not all are.
EQUAL = {"evaluate": ("*.parquet", "*.wav"), "finetune": ("*.onnx",)}
#: How to read the parameters of a command whose files differ in details: a graph may leave the data of an earlier one.
LOADED = {
    "graph": lambda folder: jaxrnn.load(folder / "net.onnx"),
    "compile": lambda folder: jaxrnn.load_compiled(folder / "out.jaxrnn"),
}


@pytest.fixture(scope="module")
def writing_folder(tmp_path_factory):
    """Files for the commands of `WRITERS`; evaluations and trainings write to the folder "both"."""
    folder = tmp_path_factory.mktemp("writers")
    onnx.save(layers_model(), folder / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    model = jaxrnn.load(folder / "net.onnx")
    for number in range(2):
        np.savez(folder / f"{number}.npz", **{name: array + number for name, array in model.params.items()})
    onnx.save(layers_model(), folder / "first.onnx")
    jaxrnn.export_onnx(jaxrnn.load(folder / "first.onnx"), dict(np.load(folder / "1.npz")), folder / "second.onnx")
    make_corpus(folder, [8000, 16000, 4000])
    write_config(folder, name="corpus.yaml", text=CONFIG.replace("out: out", "out: both/out"))
    rng = np.random.default_rng(0)
    (folder / "data").mkdir()
    for number in range(4):
        drawn = {"x": rng.standard_normal((4, 1, FEATURES)), "wanted": rng.standard_normal((4, 1, 2))}
        np.savez(folder / "data" / f"{number}.npz", **{name: x.astype(np.float32) for name, x in drawn.items()})
    (folder / "training.yaml").write_text(
        "{model: first.onnx, data: {npz: data}, steps: 5, batch_size: 2, sequences: {time_axis: 0}, "
        "loss: {name: mse, output: logits, target: wanted}, checkpoints: {folder: both/kept}, export: both/tuned.onnx}"
    )
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("what", WRITERS)
def test_two_commands_at_once_write_what_one_of_them_writes(what, writing_folder):
    """Or the second is refused, with a line."""

    def started(command):
        environment, pipe = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, subprocess.PIPE
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), pipe)
        place = writing_folder / "both"
        return subprocess.Popen(
            [sys.executable, "-c", TOGETHER, *map(str, command)], **pipes, text=True, cwd=place, env=environment
        )

    def ended(*commands):
        """The exit statuses and errors of commands at once, and the files that are there after."""
        folder = writing_folder / "both"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        processes = [started(command) for command in commands]
        for process in processes:
            process.stdout.readline()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        errors = [process.communicate(timeout=300)[1] for process in processes]
        files = {path for pattern in EQUAL.get(what, ("*",)) for path in folder.rglob(pattern) if path.is_file()}
        assert not [path for path in folder.rglob(".*") if path.is_dir()]
        contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        if what in LOADED:
            contents = [np.asarray(array).tobytes() for array in jax.tree.leaves(LOADED[what](folder).params)]
        return [process.returncode for process in processes], errors, contents

    alone = []
    for command in WRITERS[what]:
        (status,), (error,), files = ended(command)
        assert status == 0, error
        alone.append(files)
    assert alone[0] != alone[1]
    statuses, errors, files = ended(*WRITERS[what])
    print(what, statuses, [error.splitlines()[-1:] for error in errors])
    assert files in [each for each, status in zip(alone, statuses, strict=True) if status == 0]
    for status, error in zip(statuses, errors, strict=True):
        refused = [line for line in error.splitlines() if line.startswith("error: ")]
        assert (status, len(refused)) in ((0, 0), (2, 1)), error
        assert all("another process" in line or "was replaced" in line or "differs in" in line for line in refused)
