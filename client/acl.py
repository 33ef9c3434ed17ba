"""The ACL runtime through ctypes: load a kernel image, launch it, wait for it.

Works alike on CANN's ``libascendcl.so`` and on the CPU twin's. Signatures follow the public ACL documents.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

from kaas.proto.errors import DeviceError

_ALREADY_INITIALISED = 100002
_DYNAMIC_UB_SIZE = 2  # launch attribute

_ATTRIBUTES = {
    "cube_cores": 102,
    "vector_cores": 201,
    "ub_bytes": 204,
    "memory_bytes": 301,
    "l2_bytes": 302,
    "npu_arch": 601,
}


class _AttributeValue(ctypes.Union):
    _fields_ = [("number", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 4)]


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("value", _AttributeValue)]


class _Config(ctypes.Structure):
    _fields_ = [("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_size_t)]


class DeviceInfo(NamedTuple):
    """What the live device says of itself; a number is None when the runtime does not know the attribute."""

    cube_cores: int | None
    vector_cores: int | None
    ub_bytes: int | None
    memory_bytes: int | None
    l2_bytes: int | None
    npu_arch: int | None


class AclRuntime:
    """One process's view of an ACL runtime library; thread-safe, usable again after a fork.

    Nothing is loaded or initialised before the first call that needs it. Every method raises DeviceError with
    the ACL code and the runtime's own message.
    """

    def __init__(self, library: Path | str, *, device: int = 0) -> None:
        self._path = str(library)
        self._device = device
        self._lock = threading.RLock()
        self._library: Any = None
        self._launch: Any = None
        self._threads = threading.local()
        self._generation = 0
        self._configs: dict[int, tuple[Any, ...]] = {}
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # The library stays mapped in the child; its runtime state has to be made anew.
        self._lock = threading.RLock()
        self._generation += 1
        self._launch = None

    def _ready(self) -> Any:
        if self._launch is None:
            with self._lock:
                if self._launch is None:
                    self._initialise()
        if getattr(self._threads, "generation", None) != self._generation:
            self._bind_thread()
        return self._library

    def _initialise(self) -> None:
        if self._library is None:
            try:
                self._library = _declare(ctypes.CDLL(self._path))
            except (OSError, AttributeError) as error:
                raise DeviceError(f"cannot use {self._path} as an ACL runtime: {error}") from None
        status = self._library.aclInit(None)
        if status not in (0, _ALREADY_INITIALISED):
            self._fail("aclInit", status)
        self._launch = self._library.aclrtLaunchKernelWithHostArgs

    def _bind_thread(self) -> None:
        # ACL keeps the current device per thread; torch_npu may have chosen one already.
        current = ctypes.c_int32(-1)
        if self._library.aclrtGetDevice(ctypes.byref(current)) != 0 or current.value < 0:
            self._check("aclrtSetDevice", self._library.aclrtSetDevice(self._device))
        self._threads.generation = self._generation

    def _check(self, call: str, status: int) -> None:
        if status != 0:
            self._fail(call, status)

    def _fail(self, call: str, status: int) -> None:
        text = self._library.aclGetRecentErrMsg()
        message = text.decode("utf-8", "replace").strip() if text else ""
        raise DeviceError(
            f"{call} failed with ACL error {status}" + (f": {message}" if message else ""),
            acl_code=status,
            call=call,
            runtime_message=message or None,
        )

    @property
    def is_twin(self) -> bool:
        """True when the library is the CPU twin's."""
        return hasattr(self._ready(), "kaasTwinConfigureDevice")

    def configure_twin(self, soc: str, cube_cores: int, vector_cores: int) -> None:
        """Say which SKU the twin's device pretends to be; an error on a real runtime."""
        library = self._ready()
        if not hasattr(library, "kaasTwinConfigureDevice"):
            raise DeviceError(f"{self._path} is a real ACL runtime, its device cannot be configured")
        self._check(
            "kaasTwinConfigureDevice",
            library.kaasTwinConfigureDevice(soc.encode(), cube_cores, vector_cores),
        )

    @property
    def soc_name(self) -> str:
        """Full name of the live device, for example ``Ascend950PR_9579``."""
        name = self._ready().aclrtGetSocName()
        if not name:
            raise DeviceError("the ACL runtime does not name its device")
        return str(name.decode())

    @property
    def device_info(self) -> DeviceInfo:
        """Core counts and memory sizes of the live device."""
        library = self._ready()
        current = ctypes.c_int32(self._device)
        self._check("aclrtGetDevice", library.aclrtGetDevice(ctypes.byref(current)))
        values: dict[str, int | None] = {}
        for name, attribute in _ATTRIBUTES.items():
            value = ctypes.c_int64(-1)
            status = library.aclrtGetDeviceInfo(current.value, attribute, ctypes.byref(value))
            values[name] = value.value if status == 0 else None
        return DeviceInfo(**values)

    def load(self, image: bytes | bytearray | memoryview) -> int:
        """Load a kernel image; returns a binary handle for :meth:`function` and :meth:`unload`."""
        library = self._ready()
        view = memoryview(image)
        data: Any = (
            image if isinstance(image, bytes) else (ctypes.c_char * view.nbytes).from_buffer_copy(view)
        )
        handle = ctypes.c_void_p()
        self._check(
            "aclrtBinaryLoadFromData",
            library.aclrtBinaryLoadFromData(data, view.nbytes, None, ctypes.byref(handle)),
        )
        return handle.value or 0

    def function(self, binary: int, entry: str) -> int:
        """Handle of a kernel by its entry name."""
        library = self._ready()
        handle = ctypes.c_void_p()
        self._check(
            "aclrtBinaryGetFunction",
            library.aclrtBinaryGetFunction(binary, entry.encode(), ctypes.byref(handle)),
        )
        return handle.value or 0

    def launch(
        self,
        function: int,
        blocks: int,
        args_buffer: Any,
        args_size: int,
        stream: int | None = None,
        dynamic_ub_bytes: int = 0,
    ) -> None:
        """Queue one launch of ``blocks`` blocks on a stream.

        ``args_buffer`` (bytes, a ctypes array or an address) holds the arguments at natural alignment;
        ``args_size`` is a multiple of 8. The buffer may be reused when this returns. A failure of the kernel
        itself shows at :meth:`synchronize`.
        """
        if self._launch is None or getattr(self._threads, "generation", None) != self._generation:
            self._ready()
        config = self._config(dynamic_ub_bytes) if dynamic_ub_bytes else None
        status = self._launch(function, blocks, stream, config, args_buffer, args_size, None, 0)
        if status != 0:
            self._fail("aclrtLaunchKernelWithHostArgs", status)

    def _config(self, dynamic_ub_bytes: int) -> Any:
        made = self._configs.get(dynamic_ub_bytes)
        if made is None:
            attribute = _Attribute()
            attribute.id = _DYNAMIC_UB_SIZE
            attribute.value.number = dynamic_ub_bytes
            config = _Config(ctypes.pointer(attribute), 1)
            made = self._configs[dynamic_ub_bytes] = (ctypes.byref(config), config, attribute)
        return made[0]

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream; raises DeviceError when a kernel on it failed (and then at every later use)."""
        status = self._ready().aclrtSynchronizeStream(stream)
        if status != 0:
            self._fail("aclrtSynchronizeStream", status)

    def create_stream(self) -> int:
        """A new stream of the current device."""
        library = self._ready()
        handle = ctypes.c_void_p()
        self._check("aclrtCreateStream", library.aclrtCreateStream(ctypes.byref(handle)))
        return handle.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Give a stream back."""
        library = self._ready()
        self._check("aclrtDestroyStream", library.aclrtDestroyStream(stream))

    def reset_device(self) -> None:
        """Clear the device after a failed kernel; on a real device everything allocated on it is lost."""
        library = self._ready()
        self._check("aclrtResetDevice", library.aclrtResetDevice(self._device))
        self._generation += 1  # every thread binds to the device again

    def unload(self, binary: int) -> None:
        """Unload an image; its functions may not be used afterwards."""
        library = self._ready()
        self._check("aclrtBinaryUnLoad", library.aclrtBinaryUnLoad(binary))


def _declare(library: Any) -> Any:
    status, pointer, address = ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    signatures: dict[str, tuple[Any, ...]] = {
        "aclInit": (ctypes.c_char_p,),
        "aclrtSetDevice": (ctypes.c_int32,),
        "aclrtResetDevice": (ctypes.c_int32,),
        "aclrtGetDevice": (ctypes.POINTER(ctypes.c_int32),),
        "aclrtGetDeviceInfo": (ctypes.c_uint32, ctypes.c_int, ctypes.POINTER(ctypes.c_int64)),
        "aclrtCreateStream": (address,),
        "aclrtDestroyStream": (pointer,),
        "aclrtSynchronizeStream": (pointer,),
        "aclrtBinaryLoadFromData": (pointer, ctypes.c_size_t, pointer, address),
        "aclrtBinaryUnLoad": (pointer,),
        "aclrtBinaryGetFunction": (pointer, ctypes.c_char_p, address),
        "aclrtLaunchKernelWithHostArgs": (
            pointer,
            ctypes.c_uint32,
            pointer,
            pointer,
            pointer,
            ctypes.c_size_t,
            pointer,
            ctypes.c_size_t,
        ),
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = status, arguments
    for name in ("aclrtGetSocName", "aclGetRecentErrMsg"):
        getattr(library, name).restype = ctypes.c_char_p
        getattr(library, name).argtypes = ()
    if hasattr(library, "kaasTwinConfigureDevice"):
        library.kaasTwinConfigureDevice.restype = status
        library.kaasTwinConfigureDevice.argtypes = (ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32)
    return library
