"""KernelSpec: the question a client asks, one frozen class per family."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from kaas.proto.canonical import canonical_json
from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.target import Target

Dtype = Literal["bf16", "fp16", "fp32"]
DTYPE_BYTES: dict[str, int] = {name: element.bytes for name, element in ELEMENT_TYPES.items()}
DYNAMIC: Literal["dynamic"] = "dynamic"


def within(low: float, high: float, multiple_of: int = 1) -> msgspec.Meta:
    """Bounds of a numeric field for its JSON Schema; the spec itself checks them in ``__post_init__``."""
    bounds: dict[str, float] = {"minimum": low, "maximum": high}
    return msgspec.Meta(extra_json_schema=bounds | ({"multipleOf": multiple_of} if multiple_of > 1 else {}))


LEAST_NORMAL = 2.0**-126
"""The smallest fp32 that is no subnormal number; vector units take what is smaller for zero."""

Epsilon = Annotated[
    float,
    msgspec.Meta(
        extra_json_schema={
            "anyOf": [{"enum": [0.0]}, {"type": "number", "minimum": LEAST_NORMAL, "maximum": 1.0}]
        }
    ),
]
"""What is added to a sum of squares or to a divisor: nothing, or no subnormal number of fp32."""

Dim = Annotated[int, within(1, 2**31 - 1)] | Literal["dynamic"]
"""A dimension that is fixed at compile time, or ``"dynamic"``: bound at launch."""


def shown(value: Any) -> str:
    """``value`` for an error message: short, whatever somebody passed."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return f"a huge {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"


class _SpecMeta(msgspec.StructMeta):
    """Makes a wrong keyword an :class:`InvalidSpec` instead of a bare ``TypeError``."""

    def __call__(cls, *positional: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*positional, **fields)
        except TypeError:
            declared = msgspec.structs.fields(cls)  # type: ignore[arg-type]  # every class of ours is a struct
            names = [field.name for field in declared]
            required = [field.name for field in declared if field.required]
            if positional:
                raise InvalidSpec(f"{cls.__name__} takes keywords only", field="spec", legal=names) from None
            for name in fields:
                if name not in names:
                    message = f"{cls.__name__} has no field {name!r}; legal: {', '.join(names)}"
                    raise InvalidSpec(message, field=name, legal=names) from None
            for name in required:
                if name not in fields:
                    message = f"{cls.__name__} needs the field {name!r}"
                    raise InvalidSpec(message, field=name, legal=names) from None
            raise


class Spec(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="family",
    metaclass=_SpecMeta,
):
    """Base of all questions. A subclass sets ``tag=<family name>`` and checks itself in ``__post_init__``.

    The checks run on construction and on decoding alike, and raise :class:`InvalidSpec` with the field and
    its legal values. Two specs are equal exactly when their canonical JSON is.
    """

    @property
    def family(self) -> str:
        """The family's name."""
        return str(self.__struct_config__.tag)

    def to_record(self) -> dict[str, Any]:
        """Plain JSON-able form with every field, defaults included."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record

    def canonical(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(self)


class KernelSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the specs of one kernel."""

    MAX_EXTENT: ClassVar[int] = 2**31 - 1

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "check_target" in vars(cls):
            cls.check_target = _naming_what_fits(cls.check_target)  # type: ignore[assignment]

    def check_target(self, target: Target) -> None:
        """Refuse a target that this spec cannot be built for; families override as needed.

        Where a number is too large for a buffer, the refusal names a smaller one that has been tried.
        """


def _naming_what_fits(check: Callable[[Any, Target], None]) -> Callable[[Any, Target], None]:
    """``check``, whose refusals of a number in a field of its own name the largest one that fits."""

    @functools.wraps(check)
    def check_target(self: KernelSpec, target: Target) -> None:
        try:
            check(self, target)
        except DoesNotFit as refusal:
            field = refusal.details["field"]
            value = getattr(self, field, None)
            if type(value) is not int:
                raise
            fitting = _largest_fitting(self, field, value, functools.partial(_fits, check, target))
            legal = f"at most {fitting} with these options" if fitting else "none with these options"
            raise DoesNotFit(
                f"{refusal.message}; legal: {legal}", **(refusal.details | {"legal": legal})
            ) from None

    return check_target


def _fits(check: Callable[[Any, Target], None], target: Target, spec: KernelSpec) -> bool:
    try:
        check(spec, target)
    except DoesNotFit:
        return False
    return True


def _largest_fitting(
    spec: KernelSpec, field: str, value: int, fits: Callable[[KernelSpec], bool]
) -> int | None:
    """The largest value below ``value`` that is legal and fits, found by bisection."""
    annotation = next(one.type for one in msgspec.structs.fields(type(spec)) if one.name == field)
    step = msgspec.json.schema(annotation).get("multipleOf", 1)
    found, low, high = None, 0, value // step
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            is_fitting = fits(msgspec.structs.replace(spec, **{field: middle * step}))
        except InvalidSpec:
            is_fitting = False
        if is_fitting:
            found, low = middle * step, middle
        else:
            high = middle
    return found


def require_one_of(value: Any, field: str, legal: Sequence[Any]) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is one of ``legal`` (type and value)."""
    if not any(type(value) is type(choice) and value == choice for choice in legal):
        choices = ", ".join(map(str, legal))
        raise InvalidSpec(f"{field} is {shown(value)}; legal values: {choices}", field=field, legal=legal)


def require_int(value: Any, field: str, low: int, high: int, multiple_of: int = 1) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is an int in ``low..high`` and a multiple."""
    if type(value) is not int or not low <= value <= high or value % multiple_of:
        legal = f"an integer from {low} to {high}" + (
            f", a multiple of {multiple_of}" if multiple_of > 1 else ""
        )
        raise InvalidSpec(f"{field} is {_given(value)}; legal: {legal}", field=field, legal=legal)


def require_dim(value: Any, field: str, high: int = KernelSpec.MAX_EXTENT) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a positive int up to ``high`` or ``"dynamic"``."""
    if isinstance(value, str) and value == DYNAMIC:
        return
    if type(value) is not int or not 1 <= value <= high:
        legal = f'an integer from 1 to {high}, or "{DYNAMIC}"'
        raise InvalidSpec(f"{field} is {_given(value)}; legal: {legal}", field=field, legal=legal)


def _given(value: Any) -> str:
    """``value``, with advice for NumPy's and torch's own integers, which print like ints and are none."""
    is_foreign = type(value) is not int and not isinstance(value, bool) and hasattr(value, "__index__")
    return shown(value) + (f" (pass int({shown(value)}))" if is_foreign else "")


def require_bool(value: Any, field: str) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a bool."""
    require_one_of(value, field, (True, False))


def require_float(value: Any, field: str, low: float, high: float) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a finite float in ``low..high``."""
    # Minus zero equals zero but has another JSON text: two equal specs would have two keys.
    is_negative_zero = type(value) is float and value == 0.0 and math.copysign(1.0, value) < 0
    if type(value) is not float or not low <= value <= high or is_negative_zero:
        legal = f"a float from {low} to {high}"
        raise InvalidSpec(f"{field} is {shown(value)}; legal: {legal}", field=field, legal=legal)


def require_epsilon(value: Any, field: str, low: float = 0.0) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a float from ``low`` to 1.0, not subnormal in fp32.

    0.0 is legal where ``low`` is 0.0: then there is no such term.
    """
    if low == 0.0 and type(value) is float and 0.0 < value < LEAST_NORMAL:
        legal = f"0.0, or a float from {LEAST_NORMAL} to 1.0"
        raise InvalidSpec(
            f"{field} is {shown(value)}, which is 0 in fp32; legal: {legal}", field=field, legal=legal
        )
    require_float(value, field, low, 1.0)
