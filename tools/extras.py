"""Each extra without the packages of other extras: ``python -m tools.extras [NAME ...]``.

For each extra, an environment has the packages that the extra requires, directly or not, and no other package. There
the main commands of the extra must work. The files of the packages are links to the files of the environment that runs
this script, so nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
_DENOISER = "jaxrnn/demo/denoiser.onnx"
_SPECTRA = "--stft 256 --hop 128 --window sqrt_hann --gives mask"
_FINETUNE = (
    "jaxrnn finetune configs/finetune_denoiser.yaml --set data.arguments.count=16 --set validation.arguments.count=2 "
    "--set epochs=1 --set export=OUT/tuned.onnx --set plot=null"
)
_NODE = """
import io, jaxrnn, numpy, onnx
from onnx import TensorProto, helper
def run(operator, x, kind, **attributes):
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    inputs, outputs = ([helper.make_tensor_value_info(name, each, None)] for name, each in zip("xy", kind))
    graph = helper.make_graph([node], "graph", inputs, outputs)
    model = jaxrnn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    return model.apply(model.params, {"x": x})["y"]
"""
#: Commands and programs of Python for each extra, in the root of the checkout. ``OUT`` is an empty folder. ``+`` joins
#: extras.
COMMANDS: dict[str, tuple[str, ...]] = {
    "cli": (f"jaxrnn inspect {_DENOISER}", f"jaxrnn stream {_DENOISER} --symbol time --random"),
    "verify": (f"jaxrnn verify {_DENOISER}",),
    "audio": (
        "import numpy, soundfile; soundfile.write('OUT/x.flac', numpy.linspace(-0.5, 0.5, 8000), 16000)",
        f"jaxrnn stream {_DENOISER} {_SPECTRA} --inputs OUT/x.flac --output OUT/y.wav",
    ),
    "litert": (f"jaxrnn export {_DENOISER} --dim time=1 -o OUT/step.tflite --verify",),
    "plot": ("jaxrnn demo --out OUT/demo",),
    "graph": (f"jaxrnn inspect {_DENOISER} --html OUT/page.html",),
    "images": (
        _NODE
        + """
from PIL import Image
file = io.BytesIO()
Image.new("RGB", (4, 4), (255, 0, 0)).save(file, "PNG")
assert (run("ImageDecoder", numpy.frombuffer(file.getvalue(), "u1"), (2, 2)) == numpy.array([255, 0, 0])).all()
""",
    ),
    "strings": (
        _NODE
        + """
found = run("RegexFullMatch", numpy.array(["aa", "b"], object), (TensorProto.STRING, TensorProto.BOOL), pattern="a+")
assert list(found) == [True, False]
""",
    ),
    "train": (_FINETUNE,),
    "train+log": (f"{_FINETUNE} --set checkpoints=OUT/run --set log=[tensorboard]",),
    "evaluate": (
        "examples/make_corpus.py OUT/corpus --noisy 4 --labelled 0",
        "jaxrnn evaluate configs/evaluate_denoiser.yaml --set out=OUT/run"
        " --set corpus.manifest=OUT/corpus/denoising.csv",
    ),
    "torch": (
        "import torch, jaxrnn\n"
        "model = jaxrnn.from_torch(torch.nn.GRU(3, 4, batch_first=True), torch.zeros(1, 5, 3))\n"
        "print(model.outputs)",
    ),
    "keras": (
        "import keras, jaxrnn\n"
        "model = jaxrnn.from_keras(keras.Sequential([keras.Input((None, 3)), keras.layers.GRU(4)]))\n"
        "print(model.outputs)",
    ),
    "evaluate+texts": (
        "from pathlib import Path; from jaxrnn.evaluation import evaluate_table; "
        "Path('OUT/t.csv').write_text('reference,hypothesis\\na b,a c\\n'); "
        "assert evaluate_table('OUT/t.csv', ['wer'], 'OUT/out').column('wer')[0] == 50",
    ),
}
#: Packages that tests install in place of others.
_STAND_INS = {"tensorflow": "tensorflow-cpu"}
#: The extras without a row, and why.
LEFT_OUT = {
    "bench": "its engines are not installed for tests",
    "cluster": "its commands need a cluster",
    "docs": "`.ci/site` builds the pages",
    "serve": "its program is a server",
    "speech": "its package pesq is not installed for tests",
    "test": "the tests run in it",
}


def main() -> None:
    """Run the commands of the named extras, or of all extras, and list the extras that fail."""
    failed = [name for name in sys.argv[1:] or COMMANDS if not _works(name)]
    if failed:
        sys.exit(f"these extras do not have all packages that they need: {', '.join(failed)}")


def _works(name: str) -> bool:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        required, absent = _required(name.split("+"))
        python = _environment(place / "environment", required)
        (place / "out").mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JAXRNN_GALLERY"))}
        for text in COMMANDS[name]:
            text = text.replace("OUT", str(place / "out"))
            first, *more = text.split(" ")
            if first.endswith(".py"):
                command = [first, *more]
            else:
                command = ["-P", *(["-m", first, *more] if first == "jaxrnn" else ["-c", text])]
            done = subprocess.run(
                [python, *command], cwd=ROOT, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode:
                print(f"+ {name}: {text}\n{done.stdout}", flush=True)
                return False
    note = f", without {', '.join(sorted(absent))}" if absent else ""
    print(f"{name}: works with {len(required)} packages{note} ({time.monotonic() - begun:.0f} s)", flush=True)
    return True


def _required(extras: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the packages that jaxrnn with these extras requires, and those of them that are not installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    waiting = [Requirement(text) for text in (*project["dependencies"], f"jaxrnn[{','.join(extras)}]")]
    seen, names, absent = set[str](), set[str](), set[str]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        name = _STAND_INS.get(name, name)
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        if name == "jaxrnn":
            waiting += [Requirement(text) for extra in requirement.extras for text in optional[extra]]
            continue
        try:
            further = metadata.distribution(name).requires or ()
        except metadata.PackageNotFoundError:
            absent.add(name)
            continue
        names.add(name)
        for text in further:
            other = Requirement(text)
            if other.marker is None or any(
                other.marker.evaluate({"extra": each}) for each in (*requirement.extras, "")
            ):
                waiting.append(other)
    return names, absent


def _environment(folder: Path, required: set[str]) -> Path:
    """Make an environment of links to the files of these packages and of jaxrnn, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    owners, files = defaultdict[str, set[str]](set), dict[str, list[PurePosixPath]]()
    places = dict[str, Path]()
    for each in metadata.distributions():
        name = canonicalize_name(each.metadata["Name"])
        if name not in files:  # the first on the path is the package that is imported
            files[name] = [path for path in each.files or () if ".." not in path.parts]
            places[name] = Path(str(each.locate_file("")))
            for path in files[name]:
                owners[path.parts[0]].add(name)
    for name in required:
        tops = {path.parts[0] for path in files[name]}
        alone = {top for top in tops if len(owners[top]) == 1}
        shared = [path for path in files[name] if path.parts[0] not in alone]
        for path in (*map(PurePosixPath, alone), *shared):
            link = packages / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(places[name] / path)
    (packages / "jaxrnn").symlink_to(ROOT / "jaxrnn")
    return folder / "bin" / "python"


if __name__ == "__main__":
    main()
