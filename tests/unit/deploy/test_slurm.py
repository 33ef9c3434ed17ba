"""The examples for Slurm, run with a stand-in for ``kaas`` and ``srun`` that says what it was asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from kaas.client.cli import app

SLURM = Path(__file__).resolve().parents[3] / "deploy" / "slurm"


class Site:
    """A node with a manifest and a daemon of which ``health`` says whether it answers."""

    def __init__(self, folder: Path) -> None:
        self.said = folder / "said"
        os.mkfifo(folder / "prewarming")
        self.fifo = folder / "prewarming"
        self.manifest = folder / "rollout.yaml"
        self.manifest.write_text("version: 2\nkernels: []\n")
        self.kaas = self._program(
            folder / "kaas",
            f'echo "kaas $*" >>{self.said}\n'
            f'[ "$1" != prewarm ] || echo done >{self.fifo}\n'
            '[ "$1" != "$FAILING" ] || exit "$STATUS"\n',
        )
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._program(
            self.bin / "srun",
            f'echo "srun $* KAAS_STRICT=${{KAAS_STRICT:-}}" >>{self.said}\n'
            "while [ $# -gt 0 ]; do case $1 in -*) shift ;; *) break ;; esac; done\n"
            'exec "$@"\n',
        )

    def _program(self, path: Path, body: str) -> Path:
        path.write_text(f"#!/bin/sh\n{body}")
        path.chmod(0o755)
        return path

    def run(
        self, script: str, *words: str, failing: str = "", status: int = 1, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SLURM / script), *words],
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "KAAS_COMMAND": str(self.kaas),
                "KAAS_MANIFEST": str(self.manifest),
                "SLURM_JOB_ID": "17",
                "FAILING": failing,
                "STATUS": str(status),
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    def asked(self) -> list[str]:
        return self.said.read_text().splitlines() if self.said.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def require_known(line: str) -> None:
    """That a line of the stand-in is a call of a command with options that it has."""
    _, command, *words = line.split()
    options = {flag for parameter in get_command(app).commands[command].params for flag in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options


def test_the_prolog_starts_to_warm_and_does_not_wait(site: Site) -> None:
    done = site.run("prolog")
    assert done.returncode == 0
    assert "job 17: warming from" in done.stderr
    # Pre-warming could not have ended: it waits for somebody to read.
    assert site.fifo.read_text() == "done\n"
    health, prewarm = site.asked()
    assert prewarm == f"kaas prewarm --label job 17 --json {site.manifest}"
    for line in (health, prewarm):
        require_known(line)


def test_the_prolog_never_drains_a_node(site: Site) -> None:
    without_daemon = site.run("prolog", failing="health")
    assert (without_daemon.returncode, "does not answer" in without_daemon.stderr) == (0, True)
    without_manifest = site.run("prolog", KAAS_MANIFEST="/nowhere/rollout.yaml")
    assert (without_manifest.returncode, "no manifest" in without_manifest.stderr) == (0, True)
    assert [line for line in site.asked() if "prewarm" in line] == []


def test_ranks_start_when_all_nodes_are_warm_and_are_strict(site: Site) -> None:
    done = site.run("train.sbatch", str(site.manifest), "echo", "training")
    assert (done.returncode, done.stdout) == (0, "training\n")
    first, wait, second = site.asked()
    assert "--ntasks-per-node=1" in first
    assert wait == f"kaas wait --manifest {site.manifest} --coverage 1.0 --timeout 1800"
    require_known(wait)
    assert second == "srun echo training KAAS_STRICT=1"


def test_no_rank_starts_when_a_node_stays_cold(site: Site) -> None:
    done = site.run("train.sbatch", str(site.manifest), "echo", "training", failing="wait", status=5)
    assert (done.returncode, done.stdout) == (5, "")


def test_a_task_of_the_array_takes_its_shard(site: Site) -> None:
    with subprocess.Popen(["cat", str(site.fifo)], stdout=subprocess.DEVNULL):
        done = site.run("prewarm.sbatch", str(site.manifest), SLURM_ARRAY_JOB_ID="9")
    assert done.returncode == 0
    (line,) = site.asked()
    assert line == f"kaas prewarm --shard auto --label job 9 --json {site.manifest}"
    require_known(line)
