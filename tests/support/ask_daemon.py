"""Client process for tests: ask for kernels over gRPC, print one JSON line per answer.

``python ask_daemon.py SOCKET TIMEOUT_S SPEC_JSON [SPEC_JSON ...]``
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import grpc

from kaas.cache.artifact import open_artifact
from kaas.proto.v1 import kernel_service_pb2 as pb
from kaas.proto.v1 import kernel_service_pb2_grpc as pb_grpc


def main() -> None:
    socket, timeout_s, *specs = sys.argv[1:]
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = pb_grpc.KernelServiceStub(channel)
        for spec in specs:
            try:
                answer = stub.GetKernel(
                    pb.GetKernelRequest(spec_json=spec.encode()), timeout=float(timeout_s)
                )
            except grpc.RpcError as error:
                record = dict(error.trailing_metadata() or ()).get("kaas-error-bin", b"{}")
                print(json.dumps({"status": error.code().name, "error": json.loads(record)}), flush=True)
                continue
            with open_artifact(answer.artifact_path, answer.key) as artifact:
                image = hashlib.sha256(artifact.image).hexdigest()
            outcome = pb.Outcome.Name(answer.outcome).removeprefix("OUTCOME_").lower()
            print(
                json.dumps(
                    {"status": "OK", "key": answer.key, "outcome": outcome, "image": image}
                    | {"file": Path(answer.artifact_path).name}
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
