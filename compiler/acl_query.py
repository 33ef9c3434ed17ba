"""Ask ACL about device 0 and print the answer as JSON. Runs as a script of its own, then ends.

ACL starts driver threads and keeps device contexts; the daemon forks and must hold neither, so it never loads
the library itself. Attribute numbers are those of ``aclrtDevAttr`` in the public ACL documentation.
"""

from __future__ import annotations

import ctypes
import json
import sys

CUBE_CORE_NUM = 102
VECTOR_CORE_NUM = 201
UBUF_PER_VECTOR_CORE = 204
L2_CACHE_SIZE = 302
NPU_ARCH = 601

ALREADY_INITIALIZED = 100002


def query(library: str) -> dict[str, object]:
    """SoC name and attributes of device 0; an attribute that the runtime does not know is absent."""
    acl = ctypes.CDLL(library)
    acl.aclrtGetSocName.restype = ctypes.c_char_p
    acl.aclrtGetDeviceInfo.argtypes = [ctypes.c_uint32, ctypes.c_int, ctypes.POINTER(ctypes.c_int64)]
    status = acl.aclInit(None)
    if status not in (0, ALREADY_INITIALIZED):
        return {"error": f"aclInit returned {status}"}
    try:
        count = ctypes.c_uint32(0)
        status = acl.aclrtGetDeviceCount(ctypes.byref(count))
        if status != 0 or count.value == 0:
            return {"error": f"aclrtGetDeviceCount returned {status}, {count.value} devices"}
        status = acl.aclrtSetDevice(0)
        if status != 0:
            return {"error": f"aclrtSetDevice returned {status}"}
        name = acl.aclrtGetSocName()
        facts: dict[str, object] = {"soc_name": name.decode() if name else ""}
        attributes = {
            "cube_cores": CUBE_CORE_NUM,
            "vector_cores": VECTOR_CORE_NUM,
            "ub_bytes": UBUF_PER_VECTOR_CORE,
            "l2_bytes": L2_CACHE_SIZE,
            "npu_arch": NPU_ARCH,
        }
        for field, attribute in attributes.items():
            value = ctypes.c_int64(0)
            if acl.aclrtGetDeviceInfo(0, attribute, ctypes.byref(value)) == 0 and value.value > 0:
                facts[field] = value.value
        acl.aclrtResetDevice(0)
        return facts
    finally:
        acl.aclFinalize()


if __name__ == "__main__":
    try:
        answer = query(sys.argv[1])
    except (OSError, AttributeError) as error:
        answer = {"error": str(error)}
    print("\n" + json.dumps(answer))
