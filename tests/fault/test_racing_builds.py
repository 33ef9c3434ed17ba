"""A compiler that writes other bytes every time, and races: every artifact ever seen is one build, whole."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.service_node import SPEC, Node, environment
from support.staged_node import StagedNode

from kaas.cache.artifact import Artifact, open_artifact
from kaas.compiler.job import CompileJob, CompileOutput
from kaas.proto.errors import ArtifactDamaged
from kaas.proto.launch import LaunchMetadata
from kaas.server.kernel_request import KernelRequest

RACERS = 4


class FickleCompiler:
    """Stands where the pool stands; each build is marked alike in all of its parts, sizes included."""

    def __init__(self) -> None:
        self.builds = 0

    def hurry(self, tag: str) -> None:
        """Nothing is built in the background."""

    async def compile(self, job: CompileJob, tag: str) -> CompileOutput:
        self.builds += 1
        build = os.urandom(16).hex()
        await asyncio.sleep(0)
        return CompileOutput(
            image=build.encode() * random.randint(1, 2000),
            source=f"// {build}\n" * random.randint(1, 50),
            log=build,
            launch=LaunchMetadata(
                entry=build, block_count=28, dynamic_ub_bytes=0, parameters=(), signature=()
            ),
            choices={"build": build},
            compile_seconds=0.1,
            cpu_seconds=0.1,
            peak_rss_bytes=1,
        )


def build_of(artifact: Artifact) -> str:
    """The one build that made every part; fails when two did."""
    build = artifact.log
    image = bytes(artifact.image).decode()
    assert image == build * (len(image) // len(build))
    assert set(artifact.source.splitlines()) == {f"// {build}"}
    assert (artifact.launch.entry, artifact.choices["build"]) == (build, build)
    return build


class Onlooker:
    """A client that opens the same path all the time, and keeps what it has seen mapped."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.seen: set[str] = set()
        self.trouble: BaseException | None = None

    def __enter__(self) -> Onlooker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        held: list[tuple[Artifact, str]] = []
        try:
            while not self._stop.is_set():
                try:
                    artifact = open_artifact(self._path, self._key)
                except (FileNotFoundError, ArtifactDamaged):
                    continue  # removed, or damaged by the test itself
                held.append((artifact, build_of(artifact)))
                self.seen.add(held[-1][1])
                if len(held) > 20:
                    old, build = held.pop(0)
                    assert build_of(old) == build  # bytes behind a live handle do not change
                    old.close()
        except BaseException as error:
            self.trouble = error


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_artifact_mixes_two_builds(tmp_path: Path, rounds: int) -> None:
    """Each round: racers through the service, others that publish builds of their own, one that takes the
    artifact away or damages it meanwhile."""

    async def scenario(node: Node, compiler: FickleCompiler) -> None:
        question = node.service.question(SPEC)
        path = node.store.layout.artifact_path(question.key)
        chance = random.Random(5)

        async def ask() -> str:
            delivery = await node.service.get_kernel(KernelRequest(spec=SPEC, inline=True))
            assert delivery.artifact is not None
            return build_of(Artifact(delivery.artifact, expected_key=delivery.key))

        async def rebuild() -> None:
            output = await compiler.compile(None, "")  # type: ignore[arg-type]
            encoded = node.encoded(question, output)
            await asyncio.to_thread(node.store.publish, question.key, encoded)

        def spoil() -> None:
            if chance.random() < 0.5:
                node.store.remove(question.key)
                return
            try:
                content = bytearray(path.read_bytes())
            except FileNotFoundError:
                return  # not built yet, or just quarantined for the damage of the round before
            content[chance.randrange(len(content))] ^= 0xFF
            spoilt = path.with_suffix(".spoilt")
            spoilt.write_bytes(content)
            spoilt.replace(path)

        with Onlooker(path, question.key) as onlooker:
            for _ in range(rounds):
                racing = [ask() for _ in range(RACERS)] + [rebuild() for _ in range(2)]
                racing.append(asyncio.to_thread(spoil))  # type: ignore[arg-type]
                chance.shuffle(racing)
                await asyncio.gather(*racing)
        if onlooker.trouble is not None:
            raise onlooker.trouble
        assert len(onlooker.seen) > 1
        assert compiler.builds > rounds * 2

    compiler = FickleCompiler()

    async def run() -> None:
        node = Node(tmp_path / "store", environment(), compiler)
        try:
            await scenario(node, compiler)
        finally:
            await node.close()

    asyncio.run(run())


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_no_artifact_of_a_real_daemon_mixes_two_builds(tmp_path: Path, rounds: int) -> None:
    """With real processes: a device compiler that names its build in the image and in its log."""
    with StagedNode(tmp_path, "differ", rest_address="off") as node:
        builds = set()
        with ThreadPoolExecutor(2) as threads:
            for _ in range(rounds):
                pair = [threads.submit(node.ask, 1, 1, 1, 1) for _ in range(2)]
                replies = [reply for asked in pair for reply in asked.result()]
                (path,) = {Path(reply.artifact_path) for reply in replies}
                with open_artifact(path, replies[0].key) as artifact:
                    build = bytes(artifact.image).rpartition(b"BUILD ")[2].decode()
                    assert f"build {build}" in artifact.log
                builds.add(build)
                path.unlink()
        assert len(builds) == rounds == len(node.toolkit.starts())
