"""The generated corpus is what it says, the configurations for it are valid, and what they promise comes out."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import onnx
import polars
import pytest
import soundfile
from click.testing import CliRunner, Result
from tiers import of_tiers

from jaxrnn.cli import main as jaxrnn_command
from jaxrnn.cli.evaluate import evaluate
from jaxrnn.demo import signals
from jaxrnn.evaluation.metrics import METRICS, si_sdr
from jaxrnn.evaluation.results import read_results
from jaxrnn.evaluation.settings import EvaluationSettings, prepare_evaluation
from jaxrnn.settings.files import SettingsFile
from jaxrnn.settings.models import reference
from jaxrnn.training import Mixtures
from tools.examples import import_example

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("evaluate_*.yaml"))
RATE = 16_000


def run(example: str, *arguments: object) -> Result:
    return CliRunner().invoke(import_example(example).main, list(map(str, arguments)))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float64")
    assert rate == RATE
    return samples


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("corpus")
    ran = run("make_corpus", out, "--noisy", 6, "--labelled", 3, "--seconds", 0.8, 1.5)
    assert ran.exit_code == 0, ran.output
    return out


def test_noises_and_rooms_serve_a_training(tmp_path):
    """The script's folders are those of configs/train_denoiser.yaml, and a room has an echo of the voice."""
    size = ("--noisy", 2, "--labelled", 0, "--noises", 4, "--rooms", 2, "--seconds", 0.5, 0.6)
    ran = run("make_corpus", tmp_path, *size)
    assert ran.exit_code == 0, ran.output
    assert "4 noises and 2 rooms" in ran.output
    (path,) = {*(tmp_path / "rooms").glob("0000.wav")}
    response = read(path)
    assert np.abs(response).argmax() == 0
    assert -15.5 < 10 * np.log10(np.sum(response[1:] ** 2) / response[0] ** 2) < 0.5
    folders = {kind: tmp_path / kind for kind in ("clean", "noise", "rooms")}
    mixed = Mixtures(**folders, dry=True, seconds=0.5, snr=(30, 30))(np.random.default_rng(0))
    assert 0.5 < np.corrcoef(mixed["samples"], mixed["clean"])[0, 1] < 0.999


@pytest.mark.parametrize("wanted", [-20.0, 0.0, 35.0])
@pytest.mark.parametrize("alike", [0.0, 0.9, -0.9])
def test_noise_that_is_like_the_speech_changes_no_si_sdr(wanted, alike):
    """Of the part of the noise along the speech, and of means, nothing is left."""
    rng = np.random.default_rng(0)
    speech = signals.voiced(rng, 8_000)
    pair = import_example("make_corpus").mix(speech + 0.3, signals.hum(rng, 8_000) + alike * speech - 2, wanted)
    judge = si_sdr().start(RATE)
    judge.add(pair.noisy, pair.clean, None)
    assert judge.result()["si_sdr"] == pytest.approx(wanted, abs=1e-4)
    assert 10 * np.log10(np.mean(np.square(pair.clean, dtype=np.float64))) == pytest.approx(-26, abs=1e-4)


@pytest.mark.thorough
def test_the_corpus_has_the_si_sdr_that_its_table_says(corpus):
    rows = table(corpus / "denoising.csv")
    assert [int(row["snr"]) for row in rows] == [-5, 0, 5, 10, -5, 0]
    assert {row["noise"] for row in rows} == {"white", "pink"}
    for row in rows:
        noisy, clean = read(corpus / row["path"]), read(corpus / row["reference"])
        assert len(noisy) == len(clean)
        assert 0.8 * RATE <= len(noisy) <= 1.5 * RATE
        judge = si_sdr().start(RATE)
        judge.add(noisy, clean, None)
        # Files have 16 bits: their rounding is 60 dB below the weakest noise.
        assert judge.result()["si_sdr"] == pytest.approx(float(row["snr"]), abs=1e-3)


@pytest.mark.thorough
def test_a_larger_corpus_begins_with_the_smaller_one(corpus, tmp_path):
    ran = run("make_corpus", tmp_path, "--noisy", 7, "--labelled", 0, "--seconds", 0.8, 1.5)
    assert ran.exit_code == 0, ran.output
    assert not (tmp_path / "detection.csv").exists()
    for path in sorted((corpus / "noisy").iterdir()):
        assert (tmp_path / "noisy" / path.name).read_bytes() == path.read_bytes()
    other = run("make_corpus", tmp_path, "--noisy", 1, "--labelled", 0, "--seconds", 0.8, 1.5, "--seed", 1)
    assert other.exit_code == 0, other.output
    assert (tmp_path / "noisy/0000.wav").read_bytes() != (corpus / "noisy/0000.wav").read_bytes()


def test_labels_are_where_speech_is(corpus):
    """There are some, in order, inside the recording; and what is silence by construction has none."""
    make = import_example("make_corpus")
    for row in table(corpus / "detection.csv"):
        seconds = len(read(corpus / row["path"])) / RATE
        found = [(float(each["start"]), float(each["end"])) for each in table(corpus / row["reference"])]
        times = [time for segment in found for time in segment]
        assert found
        assert times == sorted(times)
        assert times[0] >= 0
        assert times[-1] <= seconds
        assert 0.05 * seconds < sum(end - start for start, end in found) < 0.8 * seconds
    clean = np.zeros(4 * RATE, np.float32)
    clean[RATE : 2 * RATE] = 0.1 * signals.white(np.random.default_rng(0), RATE)
    (start, end), block = make.speech_segments(clean)[0], make.BLOCK / RATE
    assert (start, end) == (pytest.approx(1, abs=block), pytest.approx(2, abs=block))


def test_speech_is_taken_from_recordings(tmp_path):
    """Of another rate, in parts that are not silent."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    tone = np.sin(2 * np.pi * 440 / 8_000 * np.arange(8_000 * 4))
    soundfile.write(folder / "tone.flac", np.concatenate([np.zeros(8_000 * 6), 0.5 * tone]), 8_000)
    options = ["--labelled", 0, "--seconds", 1, 1, "--speech"]
    ran = run("make_corpus", tmp_path / "out", "--noisy", 4, *options, folder)
    assert ran.exit_code == 0, ran.output
    for row in table(tmp_path / "out" / "denoising.csv"):
        clean = read(tmp_path / "out" / row["reference"])
        assert abs(np.fft.rfft(clean)).argmax() == pytest.approx(440, abs=2)
    assert "there is no .wav or .flac in" in run("make_corpus", tmp_path, *options, tmp_path / "out/absent").output
    longer = run("make_corpus", tmp_path, "--noisy", 1, "--seconds", 20, 30, "--speech", folder)
    assert "take a smaller --seconds" in longer.output
    soundfile.write(folder / "tone.flac", np.zeros(8_000 * 4), 8_000)
    assert "are silent" in run("make_corpus", tmp_path, "--noisy", 1, *options, folder).output
    assert "the shortest comes first" in run("make_corpus", tmp_path, "--seconds", 3, 2).output


def test_there_is_a_configuration_for_each_system():
    names = ("bounded", "denoiser", "dtln", "gtcrn", "silero")
    assert [path.stem for path in CONFIGS] == [f"evaluate_{name}" for name in names]


# Of the quick tests, others run the configurations of the denoiser and of Silero VAD.
@pytest.mark.parametrize(
    "path", of_tiers(CONFIGS, [ROOT / "configs/evaluate_denoiser.yaml"]), ids=lambda path: path.stem
)
def test_configurations_find_their_models_and_recordings(path, models, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXRNN_MODELS", str(models))
    monkeypatch.setenv("JAXRNN_CORPUS", str(corpus))
    monkeypatch.setenv("JAXRNN_BIDIRECTIONAL", str(tmp_path))
    onnx.save(import_example("bidirectional_denoiser").build(np.random.default_rng(0), 4), tmp_path / "offline.onnx")
    settings = SettingsFile(EvaluationSettings, path).settings
    assert settings.out.resolve().parent == ROOT / "runs"
    assert settings.title
    prepared = prepare_evaluation(path, {"out": str(tmp_path / "out"), "corpus.limit": 2})
    assert len(prepared.corpus) == 2
    assert all(item.path.is_file() and item.reference and item.reference.is_file() for item in prepared.corpus)
    assert not prepared.rows()
    assert len(prepared.units) == 1


@pytest.fixture(scope="module")
def denoised(corpus, tmp_path_factory) -> Path:
    """The packaged denoiser's results, by the configuration."""
    out, variables = tmp_path_factory.mktemp("denoised") / "out", {"JAXRNN_CORPUS": str(corpus)}
    command = ["evaluate", str(ROOT / "configs/evaluate_denoiser.yaml"), "--set", f"out={out}", "--json"]
    ran = CliRunner().invoke(jaxrnn_command, command, env=variables)
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["recordings"]["failed"] == 0
    return out


@pytest.mark.thorough
def test_the_packaged_denoiser_gains_some_decibels(denoised, corpus):
    rows = polars.read_parquet(denoised / "results.parquet")
    # The metrics say themselves what the recordings were before.
    before = (rows["si_sdr"] - rows["si_sdr_improvement"]).to_numpy()
    np.testing.assert_allclose(before, rows["snr"].to_numpy(), rtol=0, atol=1e-3)
    assert rows["si_sdr_improvement"].min() > 2
    assert rows["si_sdr_improvement"].mean() > 5
    for row in rows.iter_rows(named=True):
        samples, clean = read(denoised / "outputs" / f"{row['id']}.wav"), read(Path(row["reference"]))
        judge = si_sdr().start(RATE)
        judge.add(samples, clean, None)
        assert judge.result()["si_sdr"] == pytest.approx(row["si_sdr"], abs=1e-6)
    said = json.loads((denoised / "results.json").read_text())
    assert [cut["label"] for cut in said["slices"]["snr"]] == ["-5", "0", "5", "10"]
    report = (denoised / "report.html").read_text(encoding="utf-8")
    assert "The packaged denoiser" in report
    assert report.count("data:audio") >= 3


@pytest.mark.nightly
def test_the_script_gives_the_same_as_the_configuration(denoised, corpus, tmp_path):
    """The same values to the last bit, by API; and a second run computes nothing."""
    ran = run("evaluate_corpus", corpus / "denoising.csv", "--out", tmp_path / "out")
    assert ran.exit_code == 0, ran.output
    files = [folder / "results.parquet" for folder in (denoised, tmp_path / "out")]
    assert polars.read_parquet(files[0]).equals(polars.read_parquet(files[1]))
    assert (tmp_path / "out" / "report.html").is_file()
    mean = polars.read_parquet(files[1])["si_sdr"].mean()
    assert float(re.findall(r"si_sdr: (-?[\d.]+) dB", ran.output)[0]) == pytest.approx(mean, abs=0.005)
    times = tmp_path / "out" / "times.json"
    assert json.loads(times.read_text())["seconds_of_recordings"] > 0
    assert run("evaluate_corpus", corpus / "denoising.csv", "--out", tmp_path / "out").exit_code == 0
    assert json.loads(times.read_text())["seconds_of_recordings"] == 0
    refused = run("evaluate_corpus", tmp_path / "absent.csv")
    assert refused.exit_code == 1
    assert "there is no manifest" in refused.output


@pytest.mark.nightly
def test_silero_finds_most_of_the_speech(models, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXRNN_MODELS", str(models))
    monkeypatch.setenv("JAXRNN_CORPUS", str(corpus))
    prepared = prepare_evaluation(ROOT / "configs/evaluate_silero.yaml", {"out": str(tmp_path)})
    prepared.run()
    said = prepared.conclude({}).document
    prepared.conclude({}, read_results(tmp_path))
    assert "Both systems, frames of all files counted together" in (tmp_path / "report.html").read_text("utf-8")
    assert said["corpus"]["detection"]["values"]["auc"]["value"] > 0.8
    curve = said["corpus"]["detection"]["curve"]
    assert curve["true_positive_rate"][-1] == curve["false_positive_rate"][-1] == 1


def page() -> str:
    return (ROOT / "docs/evaluation.md").read_text(encoding="utf-8")


def test_the_page_shows_valid_settings_and_explains_every_key(tmp_path):
    (block,) = re.findall(r"^```yaml title=\S+\n(.*?)^```$", page(), re.MULTILINE | re.DOTALL)
    (tmp_path / "shown.yaml").write_text(block)
    settings = SettingsFile(EvaluationSettings, tmp_path / "shown.yaml").settings
    assert [metric.name for metric in settings.metrics] == ["si_sdr", "si_sdr"]
    for key, default, text in reference(EvaluationSettings):
        assert f"| `{key}` | {f'`{default}`' if default not in ('', 'needed') else default} | {text} |" in page()


def test_the_page_names_every_metric():
    names = page().split("## Metrics")[1].split("\n## ")[0]
    assert set(METRICS) <= set(re.findall(r"`(\w+)`", names))


def test_the_page_names_every_option_of_the_command():
    options = {option for each in evaluate.params for option in each.opts if "--" in option}
    assert options - {"--json", "--help"} <= set(re.findall(r"--[a-z-]+", page()))
