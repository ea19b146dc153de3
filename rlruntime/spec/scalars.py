"""What a YAML scalar means: the rules that kubectl applies on the way to the API server.

kubectl reads YAML with `sigs.k8s.io/yaml`, that is go-yaml v2, and writes it as JSON; the API server reads that JSON.
So `1e3` is the integer 1000, `0o10` is 8, `y` is true, and `2024-01-01` stays a string, none of which is so for PyYAML.
The rules here are those of the two steps together, written anew; a table in the tests holds what kubectl's own reader
makes of each scalar.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from decimal import Decimal

Scalar = None | bool | int | float | str

_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_JSON_EXPONENT_FROM = 1e21

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]([0-7]+)|0[bB]([01]+)|0([0-7]+)|(0|[1-9][0-9]*))")
_BASES = (16, 8, 2, 8, 10)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_POINT_FLOAT = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?")
_SIGN_AFTER_PREFIX = re.compile(r"0b([-+][01]+)")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"([Tt][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}([.,][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})"
    r"| [0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}([.,][0-9]+)?)?"
)

_TAG_PREFIX = "tag:yaml.org,2002:"
_STR, _BOOL, _INT, _FLOAT_TAG = (_TAG_PREFIX + name for name in ("str", "bool", "int", "float"))
_NULL, _TIME, _BINARY = (_TAG_PREFIX + name for name in ("null", "timestamp", "binary"))
_RESOLVED_TAGS = ("", _BOOL, _INT, _FLOAT_TAG, _NULL, _TIME)


class ScalarError(ValueError):
    """A scalar that its tag forbids. ``str()`` says why."""


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar: None, a bool, an int, a float or a string.

    Whole floats are integers, as in the JSON that the API server gets. Infinity and NaN are returned as they are,
    although JSON has neither; the caller refuses them.
    """
    return _as_json(resolve_plain(text))


def tagged_scalar(tag: str, text: str) -> Scalar:
    """Return the value of a scalar with an explicit tag, such as ``!!str 1``.

    Args:
        tag: in full, such as ``tag:yaml.org,2002:str``. A tag that YAML doesn't know leaves the text a string.
        text: the scalar's text, without quotes.

    Raises:
        ScalarError: the text is nothing that the tag allows.
    """
    if tag == _BINARY:
        return _binary(text)
    if tag not in _RESOLVED_TAGS:
        return text
    if tag == _TIME:
        if not _TIMESTAMP.fullmatch(text):
            raise ScalarError(f"{text!r} is no timestamp")
        return text
    value = resolve_plain(text)
    if tag == _FLOAT_TAG and isinstance(value, int) and not isinstance(value, bool) and value <= _INT64_MAX:
        value = float(value)
    if _tag_of(value) != tag:
        raise ScalarError(f"{text!r} is no {tag.removeprefix(_TAG_PREFIX)}")
    return _as_json(value)


def key_text(value: Scalar) -> str:
    """Return the string that the key ``value`` of a mapping becomes: JSON has string keys only.

    Raises:
        ScalarError: null is no key.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and _INT64_MIN <= value <= _INT64_MAX:
        return str(value)
    if isinstance(value, float):
        return _float32_text(value)
    raise ScalarError("a key of a mapping must be a string")


def resolve_plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar before it becomes JSON: ``1.0`` is a float here, as kubectl's keys are."""
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if first == ".":
        return _float_or_text(text.replace("_", ""), text) if _POINT_FLOAT.fullmatch(text) else text
    if not (first.isascii() and first.isdigit()) and first not in "+-":
        return text
    digits = text.replace("_", "")
    match = _INTEGER.fullmatch(digits)
    if match:
        sign, *groups = match.groups()
        base, found = next((b, g) for b, g in zip(_BASES, groups, strict=True) if g is not None)
        value = -int(found, base) if sign == "-" else int(found, base)
        unsigned_fits = not sign and value <= _UINT64_MAX
        if _INT64_MIN <= value <= _INT64_MAX or unsigned_fits:
            return value
    match = _SIGN_AFTER_PREFIX.fullmatch(digits)
    if match and _INT64_MIN <= int(match[1], 2) <= _INT64_MAX:
        return int(match[1], 2)
    return _float_or_text(digits, text) if _FLOAT.fullmatch(digits) else text


def _float_or_text(digits: str, text: str) -> Scalar:
    """A number too large for a double stays text in Go."""
    value = float(digits)
    return text if math.isinf(value) else value


def _as_json(value: Scalar) -> Scalar:
    """What JSON leaves of a number: Go writes 1.0 as ``1``, and the server reads an integer where 64 bits hold it."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _JSON_EXPONENT_FROM:
        value = int(Decimal(repr(value)))  # the shortest digits, then zeros, are what JSON holds
    if isinstance(value, int) and not isinstance(value, bool) and not _INT64_MIN <= value <= _INT64_MAX:
        return float(value)
    return value


def _tag_of(value: Scalar) -> str:
    if value is None:
        return _NULL
    return {bool: _BOOL, int: _INT, float: _FLOAT_TAG, str: _STR}[type(value)]


def _binary(text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode(errors="replace")
    except binascii.Error:
        raise ScalarError("is not base64") from None


def _float32_text(value: float) -> str:
    """The shortest text that a 32-bit float reads back: what kubectl makes of a key that is a float."""
    if math.isnan(value):
        return ".nan"
    try:
        single = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        single = math.copysign(math.inf, value)
    if math.isinf(single):
        return ".inf" if single > 0 else "-.inf"
    for precision in range(9):
        shortest = f"{single:.{precision}e}"
        if struct.unpack("f", struct.pack("f", float(shortest)))[0] == single:
            break
    mantissa, exponent = shortest.split("e")
    if -4 <= int(exponent) < 6:
        return f"{float(shortest):.{max(0, precision - int(exponent))}f}"
    return f"{mantissa}e{int(exponent):+03d}"
