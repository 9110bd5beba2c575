"""The workflows call the scripts of `.ci`, and no copy of these; a release is what its tag says."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tools.release import notes

ROOT = Path(__file__).parent.parent
CI = ROOT / ".ci"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def commands(workflow: str) -> list[str]:
    """Return the commands of all jobs, with each value of their matrix."""
    found = list[str]()
    for job in WORKFLOWS[workflow]["jobs"].values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        steps = [step["run"] for step in job.get("steps", ()) if "run" in step]
        found += [
            re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda key, row=row: row[key[1]], step)
            for step in steps
            for row in rows
        ]
    return found


def scripts(lines: list[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r"(?:^|\s)\.ci/(\w+)", line)}


def test_each_job_calls_a_script():
    assert set(WORKFLOWS) == {"tests", "nightly", "site", "release"}
    own = {"release": (".venv/bin/python -m tools.release", "gh release create")}
    for workflow in WORKFLOWS:
        for command in commands(workflow):
            assert command.startswith((".ci/", *own.get(workflow, ()))), f"{workflow}: {command}"
        for name in scripts(commands(workflow)):
            assert (CI / name).stat().st_mode & 0o100, f"{workflow} calls .ci/{name}, which is no program"


def test_workflows_run_all_parts():
    """The jobs call the same scripts as `.ci/run` on one machine; the nightly tier has its own workflow."""
    run = [line for line in (CI / "run").read_text().splitlines() if not line.startswith("#")]
    assert scripts(commands("tests")) == scripts(run)
    assert "nightly" in scripts(commands("nightly"))
    assert {path.name for path in CI.iterdir()} - scripts(run) == {"beside", "common", "nightly", "run", "site"}


def test_versions_of_python_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.", line)]
    rows = WORKFLOWS["tests"]["jobs"]["quick"]["strategy"]["matrix"]["include"]
    assert [row["python"] for row in rows] == named
    assert project["requires-python"] == f">={named[0]}"
    assert all((ROOT / row["constraints"]).is_file() for row in rows)


def test_a_release_is_tested_and_built_once():
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert jobs["publish"]["needs"] == ["tests", "build"]
    assert sum(".ci/package" in command for command in commands("release")) == 1


CHANGELOG = "# Changelog\n\n## 1.2.3 (2027-01-31)\n\n- A change.\n\n## 1.2.2 (2027-01-01)\n\n- Another.\n"


def test_notes_of_a_release():
    assert notes("v1.2.3", "1.2.3", CHANGELOG) == "- A change.\n"
    for tag, version, changelog, words in (
        ("v1.2.4", "1.2.3", CHANGELOG, "expected the tag v1.2.3"),
        ("v1.2.4", "1.2.4", CHANGELOG, r"begins with '1\.2\.3 \(2027-01-31\)'"),
        ("v1.2.3", "1.2.3", CHANGELOG.replace("## 1.2.3 (2027-01-31)", "## Unreleased"), "begins with 'Unreleased'"),
    ):
        with pytest.raises(ValueError, match=words):
            notes(tag, version, changelog)
