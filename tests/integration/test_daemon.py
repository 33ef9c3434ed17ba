"""The daemon as a process: real socket, real store, real compiles on the CPU twin."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import jsonschema_rs
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.compiling import LENGTH
from support.daemon import DaemonProcess, process_name, until
from support.fake_toolkit import families_path

from kaas.cache.artifact import open_artifact
from kaas.cache.environment_file import read_environment
from kaas.kernel_library import registry
from kaas.proto.v1 import kernel_service_pb2 as pb
from kaas.proto.v1 import kernel_service_pb2_grpc as pb_grpc

ASK = Path(__file__).parents[1] / "support" / "ask_daemon.py"


def gemm(k: int, **fields: Any) -> bytes:
    return json.dumps({"family": "gemm", "n": 128, "k": k, **fields}).encode()


def client(daemon: DaemonProcess, *specs: bytes, timeout_s: float = 120) -> subprocess.Popen[str]:
    command = [sys.executable, str(ASK), daemon.socket, str(timeout_s), *(spec.decode() for spec in specs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answers(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


def compiler_starts(daemon: DaemonProcess) -> int:
    return daemon.log_text().count("compiler start")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon")) as process:
        process.wait_ready()
        yield process


@pytest.fixture(scope="module")
def stub(daemon: DaemonProcess) -> Iterator[pb_grpc.KernelServiceStub]:
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        yield pb_grpc.KernelServiceStub(channel)


@pytest.fixture(scope="module")
def rest(daemon: DaemonProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=daemon.rest_url, timeout=120) as session:
        yield session


@pytest.fixture(scope="module")
def cached(stub: pb_grpc.KernelServiceStub) -> str:
    """Key of a kernel that is in the store."""
    return stub.GetKernel(pb.GetKernelRequest(spec_json=gemm(64)), timeout=120).key


def error_of(call: grpc.RpcError) -> dict[str, Any]:
    return json.loads(dict(call.trailing_metadata())["kaas-error-bin"])


def test_the_banner_says_what_is_served_and_labels_the_twin(daemon: DaemonProcess) -> None:
    assert "Ascend950PR_9579 (28 cube cores)" in daemon.banner
    assert "CPU TWIN" in daemon.banner


def test_the_socket_is_for_its_owner_and_group_only(daemon: DaemonProcess) -> None:
    assert stat.S_IMODE(Path(daemon.socket).stat().st_mode) == 0o660


def test_sixteen_clients_asking_for_four_cold_kernels_start_four_compiles(daemon: DaemonProcess) -> None:
    before = compiler_starts(daemon)
    specs = [gemm(192 + 64 * number) for number in range(4)]
    clients = [client(daemon, specs[number % 4]) for number in range(16)]
    replies = [reply for process in clients for reply in answers(process)]
    assert [reply["status"] for reply in replies] == ["OK"] * 16
    outcomes = Counter(reply["outcome"] for reply in replies)
    assert outcomes["compiled"] == 4
    assert compiler_starts(daemon) - before == 4
    images = {(reply["key"], reply["image"]) for reply in replies}
    assert len(images) == len({key for key, _ in images}) == 4


def test_a_hit_starts_no_compile_and_its_file_is_the_kernel(
    daemon: DaemonProcess, stub: pb_grpc.KernelServiceStub, cached: str
) -> None:
    before = compiler_starts(daemon)
    answer = stub.GetKernel(pb.GetKernelRequest(spec_json=gemm(64), inline_artifact=True), timeout=60)
    assert answer.outcome == pb.OUTCOME_HIT
    assert compiler_starts(daemon) == before
    assert Path(answer.artifact_path).read_bytes() == answer.artifact
    with open_artifact(answer.artifact_path, cached) as artifact:
        assert artifact.passport.target.soc_name == "Ascend950PR_9579"
        assert artifact.passport.toolchain.kind == "twin"


def test_a_killed_compile_worker_costs_nobody_the_kernel(daemon: DaemonProcess) -> None:
    waiting = [client(daemon, gemm(576)) for _ in range(3)]
    (worker,) = until(daemon.workers, what="a compile worker")
    os.kill(worker, signal.SIGKILL)
    replies = [reply for process in waiting for reply in answers(process)]
    assert [reply["status"] for reply in replies] == ["OK"] * 3
    assert len({reply["image"] for reply in replies}) == 1


def test_a_callers_deadline_ends_its_wait_and_the_compile_goes_on(
    stub: pb_grpc.KernelServiceStub,
) -> None:
    request = pb.GetKernelRequest(spec_json=gemm(640))
    with pytest.raises(grpc.RpcError) as refusal:
        stub.GetKernel(request, timeout=0.05)
    assert refusal.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert stub.GetKernel(request, timeout=120).outcome in (pb.OUTCOME_JOINED, pb.OUTCOME_HIT)


def test_strict_mode_refuses_to_compile_and_says_why(stub: pb_grpc.KernelServiceStub, cached: str) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        stub.GetKernel(pb.GetKernelRequest(spec_json=gemm(64, n=256), strict=True), timeout=60)
    record = error_of(refusal.value)
    assert record["code"] == "strict_miss"
    assert "spec.n is" in record["message"]
    hit = stub.GetKernel(pb.GetKernelRequest(spec_json=gemm(64), strict=True), timeout=60)
    assert hit.key == cached


@pytest.mark.parametrize(
    ("spec", "soc_name", "code", "status"),
    [
        (b"{", "", "invalid_spec", grpc.StatusCode.INVALID_ARGUMENT),
        (b'{"family": "gemn"}', "", "unknown_family", grpc.StatusCode.NOT_FOUND),
        (gemm(0), "", "invalid_spec", grpc.StatusCode.INVALID_ARGUMENT),
        (gemm(64), "Ascend950PR_9578", "unsupported_target", grpc.StatusCode.FAILED_PRECONDITION),
        (gemm(64), "Ascend910B1", "unsupported_target", grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_a_bad_request_is_refused_with_its_record(
    stub: pb_grpc.KernelServiceStub, spec: bytes, soc_name: str, code: str, status: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        stub.GetKernel(pb.GetKernelRequest(spec_json=spec, soc_name=soc_name), timeout=60)
    assert refusal.value.code() is status
    assert error_of(refusal.value)["code"] == code


def test_explain_names_the_differing_sku(stub: pb_grpc.KernelServiceStub, cached: str) -> None:
    reply = stub.Explain(pb.ExplainRequest(spec_json=gemm(64), soc_name="ascend950dt_9581"), timeout=60)
    assert not reply.hit
    assert reply.nearest[0].key == cached
    paths = {difference.path for difference in reply.nearest[0].differences}
    assert paths == {"target.soc_name", "target.cube_cores", "target.vector_cores"}
    assert "target.soc_name is Ascend950PR_9579 there and Ascend950DT_9581 here" in reply.reason
    assert stub.Explain(pb.ExplainRequest(spec_json=gemm(64)), timeout=60).hit


def test_prewarm_streams_one_event_per_entry_and_a_summary(stub: pb_grpc.KernelServiceStub) -> None:
    entries = [pb.PrewarmEntry(spec_json=spec) for spec in (gemm(64), gemm(0), gemm(704))]
    events = list(stub.Prewarm(pb.PrewarmRequest(entries=entries), timeout=120))
    assert sorted(event.index for event in events[:-1]) == [0, 1, 2]
    summary = events[-1]
    assert (summary.finished, summary.total, summary.ready, summary.failed) == (True, 3, 2, 1)
    failed = next(event for event in events if event.error_json)
    assert (failed.index, json.loads(failed.error_json)["code"]) == (1, "invalid_spec")


def test_a_prewarm_call_that_is_given_up_ends_its_job(
    stub: pb_grpc.KernelServiceStub, rest: httpx.Client
) -> None:
    entries = [pb.PrewarmEntry(spec_json=gemm(2048 + 64 * number)) for number in range(50)]
    call = stub.Prewarm(pb.PrewarmRequest(entries=entries, label="given up"), timeout=120)
    next(call)
    call.cancel()

    def job() -> dict[str, Any] | None:
        jobs = rest.get("/v1/prewarm").json()["jobs"]
        return next((job for job in jobs if job["label"] == "given up" and job["state"] != "running"), None)

    ended = until(job, what="the end of the job")
    assert ended["state"] == "cancelled"
    assert ended["done"] < ended["total"]


def test_a_call_without_a_deadline_is_served(stub: pb_grpc.KernelServiceStub, cached: str) -> None:
    assert stub.GetKernel(pb.GetKernelRequest(spec_json=gemm(64))).key == cached


def test_health_tells_serving_and_ready(daemon: DaemonProcess) -> None:
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "kaas.v1.KernelService", "kaas.ready"):
            status = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status
            assert status == health_pb2.HealthCheckResponse.SERVING


def kill_zygote(daemon: DaemonProcess) -> None:
    (zygote,) = (pid for pid in daemon.children() if process_name(pid) == "kaas-zygote")
    os.kill(zygote, signal.SIGKILL)


def test_health_and_readyz_fall_and_rise_together(daemon: DaemonProcess, rest: httpx.Client) -> None:
    serving, not_serving = (
        health_pb2.HealthCheckResponse.ServingStatus.Value(n) for n in ("SERVING", "NOT_SERVING")
    )
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        request = health_pb2.HealthCheckRequest(service="kaas.ready")
        updates = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=120)
        assert next(updates).status == serving
        kill_zygote(daemon)
        assert next(updates).status == not_serving
        unready = rest.get("/readyz")
        assert unready.status_code == 503
        assert unready.json()["checks"] == {"workers_warm": False, "store_usable": True}
        assert next(updates).status == serving
        assert rest.get("/readyz").status_code == 200
        updates.cancel()


def test_the_environment_names_generation_and_toolchain(
    daemon: DaemonProcess, stub: pb_grpc.KernelServiceStub
) -> None:
    environment = json.loads(stub.GetEnvironment(pb.GetEnvironmentRequest(), timeout=60).environment_json)
    assert environment["generation"] == 1
    assert environment["toolchain"]["kind"] == "twin"
    assert environment["locality"]["socket"] == daemon.socket


def test_families_wear_the_same_face_on_both_transports(
    stub: pb_grpc.KernelServiceStub, rest: httpx.Client
) -> None:
    told = stub.ListFamilies(pb.ListFamiliesRequest(), timeout=60).families
    listed = rest.get("/v1/families").json()["families"]
    assert [(one.name, one.summary, json.loads(one.spec_schema_json)) for one in told] == [
        (one["name"], one["summary"], one["spec_schema"]) for one in listed if one["kind"] == "kernel"
    ]
    (one,) = stub.ListFamilies(pb.ListFamiliesRequest(name="gemm"), timeout=60).families
    shown = rest.get("/v1/families/gemm").json()
    assert one.page == shown["page"]
    assert "`block_m`" in one.page
    for spec in shown["examples"]:
        assert jsonschema_rs.is_valid(shown["spec_schema"], spec)
    missing = rest.get("/v1/families/gem")
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:kaas:error:unknown_family")
    with pytest.raises(grpc.RpcError) as refused:
        stub.ListFamilies(pb.ListFamiliesRequest(name="gem"), timeout=60)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_rest_lists_composites_beside_families_and_shows_their_kernels(rest: httpx.Client) -> None:
    listed = rest.get("/v1/families").json()
    assert listed["total"] == len(listed["families"])
    names = [one["name"] for one in listed["families"]]
    assert names == sorted(names)
    several = [one for one in listed["families"] if one["kind"] == "composite"]
    assert [one["name"] for one in several] == list(registry.composite_names())
    for one in several:
        shown = rest.get(f"/v1/families/{one['name']}").json()
        assert shown["kind"] == "composite"
        assert "## Kernels" in shown["page"]
        for spec in shown["examples"]:
            assert jsonschema_rs.is_valid(one["spec_schema"], spec)


def test_the_daemon_never_loads_the_compiler_itself(daemon: DaemonProcess, cached: str) -> None:
    loaded = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "grpc" in loaded
    assert not re.search(r"libtorch|libtvm|tilelang", loaded)


def test_rest_lists_and_describes_what_grpc_compiled(rest: httpx.Client, cached: str) -> None:
    listed = rest.get("/v1/kernels", params={"text": cached, "soc_name": "ascend950pr_9579"}).json()
    assert [kernel["key"] for kernel in listed["kernels"]] == [cached]
    assert listed["kernels"][0]["state"] == "ready"
    assert listed["kernels"][0]["current"] is True
    kernel = rest.get(f"/v1/kernels/{cached[:12]}").json()
    assert kernel["passport"]["spec"]["k"] == 64
    assert kernel["launch"]["block_count"] >= 1
    source = rest.get(f"/v1/kernels/{cached}/source")
    assert source.headers["content-type"].startswith("text/plain")
    assert "__global__" in source.text
    assert rest.get(f"/v1/kernels/{cached}/log").status_code == 200


def test_rest_pages_reach_every_kernel_once(rest: httpx.Client, cached: str) -> None:
    rest.post("/v1/kernels", json={"spec": json.loads(gemm(768)), "timeout_s": 120}).raise_for_status()
    everything = rest.get("/v1/kernels").json()
    assert everything["total"] >= 2
    seen, token = [], ""
    while True:
        page = rest.get("/v1/kernels", params={"page_size": 1, "page_token": token}).json()
        assert page["total"] == everything["total"]
        seen += [kernel["key"] for kernel in page["kernels"]]
        token = page["next_page_token"]
        if not token:
            break
    assert sorted(seen) == sorted(kernel["key"] for kernel in everything["kernels"])


def test_rest_prewarm_can_be_followed_by_server_sent_events(rest: httpx.Client) -> None:
    body = {"label": "two", "entries": [{"spec": json.loads(gemm(k))} for k in (64, 832)]}
    started = rest.post("/v1/prewarm", json=body)
    assert started.status_code == 202
    job = started.json()["id"]
    with rest.stream("GET", f"/v1/prewarm/{job}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = list(stream.iter_lines())
    assert [line for line in lines if line.startswith("event:")] == ["event: entry"] * 2 + ["event: finished"]
    status = rest.get(f"/v1/prewarm/{job}").json()
    assert (status["state"], status["ready"]) == ("finished", 2)
    assert job in [known["id"] for known in rest.get("/v1/prewarm").json()["jobs"]]


def test_rest_refuses_by_problem_document(rest: httpx.Client) -> None:
    reply = rest.post("/v1/kernels", json={"spec": {"family": "gemm", "n": 0, "k": 1}})
    assert reply.status_code == 400
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["type"] == "urn:kaas:error:invalid_spec"
    assert reply.json()["details"]["field"] == "n"
    assert rest.get("/v1/kernels", headers={"Host": "evil.example"}).status_code == 403
    assert rest.get("/v1/kernels", headers={"Origin": "http://evil.example"}).status_code == 403
    assert rest.post("/v1/kernels", content=b" " * (9 << 20)).status_code == 413


def test_readiness_names_its_checks(rest: httpx.Client) -> None:
    reply = rest.get("/readyz")
    assert reply.status_code == 200
    assert reply.json()["checks"] == {"workers_warm": True, "store_usable": True}


def test_every_request_leaves_one_log_line(daemon: DaemonProcess, stub: pb_grpc.KernelServiceStub) -> None:
    request = pb.GetKernelRequest(
        spec_json=gemm(64), client=pb.ClientIdentity(pid=7, job="night\nrun", rank="3")
    )
    stub.GetKernel(request, timeout=60)
    lines = [line for line in daemon.log_text().splitlines() if "night" in line]
    assert len(lines) == 1
    assert "outcome=" in lines[0]
    assert "family=gemm" in lines[0]
    assert "job:night\\nrun" in lines[0]


def test_a_second_daemon_on_a_live_socket_refuses_in_one_line(
    daemon: DaemonProcess, stub: pb_grpc.KernelServiceStub, cached: str
) -> None:
    second = subprocess.run(
        daemon.command(), env=daemon.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert "already listening" in second.stderr
    assert stub.GetKernel(pb.GetKernelRequest(spec_json=gemm(64)), timeout=60).key == cached


def test_a_second_daemon_on_a_store_in_use_refuses_in_one_line(daemon: DaemonProcess, tmp_path: Path) -> None:
    other = DaemonProcess(tmp_path, store=daemon.options["store"])
    second = subprocess.run(
        other.command(), env=other.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 2
    assert second.stderr.splitlines()[-1].startswith("kaas: ")
    assert "Traceback" not in second.stderr
    assert not Path(other.socket).exists()
    other.discard()


def test_a_killed_daemons_socket_is_replaced_and_its_kernels_are_hits(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        assert [reply["outcome"] for reply in answers(client(daemon, gemm(64)))] == ["compiled"]
        daemon.kill()
        assert Path(daemon.socket).exists()
        until(lambda: not daemon.children(), what="the end of the dead daemon's processes")
        daemon.start()
        assert [reply["outcome"] for reply in answers(client(daemon, gemm(64)))] == ["hit"]


def test_the_generation_grows_exactly_when_the_environment_changes(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, rest_address="off") as daemon:
        seen = []
        for soc_name in ("Ascend950PR_9579", "Ascend950PR_9579", "Ascend950DT_9581"):
            daemon.options["soc_name"] = soc_name
            if seen:
                daemon.stop()
                daemon.start()
            environment = read_environment(daemon.store)
            assert environment is not None
            assert environment.target.soc_name == soc_name
            seen.append(environment.generation)
        assert seen == [1, 1, 2]


def test_a_family_upgraded_under_a_running_daemon_never_reaches_the_old_key(tmp_path: Path) -> None:
    folder = families_path(tmp_path / "families")
    source = folder / "kaas_staged.py"

    def staged(turns: int) -> bytes:
        return json.dumps({"family": "staged", "length": turns * LENGTH}).encode()

    def stored() -> set[str]:
        return {path.name for path in (daemon.store / "artifacts").rglob("*.kernel")}

    environ = {"PYTHONPATH": str(folder)}
    with DaemonProcess(tmp_path / "node", environ=environ, rest_address="off") as daemon:
        with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
            old = pb_grpc.KernelServiceStub(channel)
            first = old.GetKernel(pb.GetKernelRequest(spec_json=staged(1)), timeout=120)
            before = stored()
            assert before
            source.write_text(source.read_text() + "\n# the next release\n")
            kill_zygote(daemon)
            daemon.wait_ready()
            with pytest.raises(grpc.RpcError) as refusal:
                old.GetKernel(pb.GetKernelRequest(spec_json=staged(2)), timeout=120)
            record = error_of(refusal.value)
            assert record["code"] == "compile_failed"
            assert record["details"]["stage"] == "generator"
            assert record["details"]["fields"] == ["generator.family_digest"]
            assert "restart the daemon" in record["hint"]
            assert stored() == before
            hit = old.GetKernel(pb.GetKernelRequest(spec_json=staged(1), strict=True), timeout=60)
            assert hit.key == first.key
        daemon.stop()
        daemon.start()
        with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
            new = pb_grpc.KernelServiceStub(channel)
            reply = new.Explain(pb.ExplainRequest(spec_json=staged(1)), timeout=60)
            assert reply.nearest[0].key == first.key
            assert [d.path for d in reply.nearest[0].differences] == ["generator.family_digest"]
            second = new.GetKernel(pb.GetKernelRequest(spec_json=staged(1)), timeout=120)
            assert second.outcome == pb.OUTCOME_COMPILED
            assert second.key == reply.key != first.key


def test_a_stop_while_starting_ends_without_a_banner(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path, rest_address="off")
    process = subprocess.Popen(
        daemon.command(), env=daemon.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "configuration" in process.stderr.readline()
    process.terminate()
    output, errors = process.communicate(timeout=60)
    daemon.discard()
    assert (process.returncode, output) == (0, "")
    assert "Traceback" not in errors
    assert not Path(daemon.socket).exists()


def test_sigterm_while_compiling_wakes_waiters_and_leaves_nothing(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        daemon.wait_ready()
        waiting = client(daemon, gemm(1024))
        until(lambda: compiler_starts(daemon) == 1, what="a compile")
        assert daemon.stop() == 0
        (reply,) = answers(waiting)
        assert reply["status"] == "UNAVAILABLE"
        assert reply["error"]["code"] == "shutting_down"
        assert not Path(daemon.socket).exists()
        assert daemon.children() == []
        assert list((daemon.store / "staging").iterdir()) == []


def test_rest_can_be_a_unix_socket_or_off(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "a", rest_address=f"unix:{tmp_path}/r.sock") as daemon:
        transport = httpx.HTTPTransport(uds=f"{tmp_path}/r.sock")
        with httpx.Client(transport=transport, base_url="http://node") as session:
            assert session.get("/healthz").json() == {"status": "serving"}
        daemon.stop()
        assert not (tmp_path / "r.sock").exists()
    with DaemonProcess(tmp_path / "b", rest_address="off") as daemon:
        assert "REST" not in daemon.banner


def test_a_lost_environment_file_is_published_again_at_the_next_request(
    daemon: DaemonProcess, stub: pb_grpc.KernelServiceStub, cached: str
) -> None:
    published = daemon.store / "environment.json"
    before = published.read_bytes()
    for damage in (published.unlink, lambda: published.write_bytes(b"{")):
        damage()
        assert stub.GetKernel(pb.GetKernelRequest(spec_json=gemm(64)), timeout=120).key == cached
        assert published.read_bytes() == before


def test_rest_refuses_parameters_that_it_does_not_have(rest: httpx.Client) -> None:
    answer = rest.get("/v1/kernels", params={"limit": "1"})
    assert answer.status_code == 400
    assert "page_size" in answer.json()["details"]["legal"]
