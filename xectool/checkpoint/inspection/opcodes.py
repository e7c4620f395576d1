"""A pickle read opcode by opcode into symbols; no name is imported and nothing is called.

The standard unpickler and this reader must not disagree about what a pickle asks for, so a name counts as asked for as
soon as an opcode can fetch it: also from a part that is thrown away, behind a damaged place, or computed on the stack.
"""

from __future__ import annotations

import pickletools
import struct
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

from xectool.checkpoint.inspection.rebuild import StorageOf, rebuild
from xectool.checkpoint.inspection.stack import MARK, Machine, key_of
from xectool.checkpoint.inspection.symbols import Global, Made, Unknown
from xectool.checkpoint.inspection.window import Window

MAX_OPCODES: Final = 20_000_000
_LARGEST_BITS: Final = 1000  # Python writes no longer number as text and makes no float of it
PICKLE_MAGIC: Final = b"\x80"
_BLOB_STARTS: Final = (PICKLE_MAGIC, b"P", b"c", b"(", b"\x1f", b"B", b"\xfd")

Push = Callable[["Machine", Any, int], None]


@dataclass
class Pickle:
    """What one pickle describes.

    Attributes:
        value: What it would unpickle to, in symbols.
        globals: Every name it can fetch, in order.
        start: Its first byte in the data it was read from.
        end: The byte after it.
        problem: Why reading stopped early; empty for a whole pickle.
        blobs: Byte strings in it that could be pickles or archives themselves.
    """

    value: Any = field(default_factory=Unknown)
    globals: list[Global] = field(default_factory=list)
    start: int = 0
    end: int = 0
    problem: str = ""
    blobs: list[bytes] = field(default_factory=list)


def read_pickle(data: memoryview, start: int = 0, storage_of: StorageOf | None = None) -> Pickle:
    """Read one pickle.

    Args:
        data: Bytes that hold it.
        start: Its first byte.
        storage_of: Returns the storage of a persistent id; None where pickles have none.
    """
    machine, stream, problem = Machine(storage_of), Window(data, start), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in damaged strings
            _run(machine, stream)
    except (ValueError, LookupError, OverflowError, RecursionError, struct.error) as error:
        problem = f"{error} at byte {stream.tell()}"
    problem = problem or machine.problem
    return Pickle(machine.result, machine.globals, start, stream.tell(), problem, machine.blobs)


def _run(machine: Machine, stream: Window) -> None:
    opcodes = pickletools.genops(cast("IO[bytes]", stream))
    for count, (opcode, argument, position) in enumerate(opcodes):
        if count == MAX_OPCODES:
            raise ValueError(f"more than {MAX_OPCODES} opcodes")
        handler = _HANDLERS.get(opcode.name)
        if handler is not None:
            handler(machine, argument, position or 0)


def _literal(machine: Machine, argument: Any, _: int) -> None:
    if isinstance(argument, int) and argument.bit_length() > _LARGEST_BITS:
        argument = Unknown("an absurd number")
    if isinstance(argument, bytes | bytearray) and argument[:1] in _BLOB_STARTS:
        machine.blobs.append(bytes(argument))
    machine.push(argument)


def _constant(value: Any) -> Push:
    return lambda machine, _argument, _position: machine.push(value)


def _fresh(make: Callable[[], Any]) -> Push:
    return lambda machine, _argument, _position: machine.push(make())


def _from_mark(make: Callable[[list[Any]], Any]) -> Push:
    return lambda machine, _argument, _position: machine.push(make(machine.pop_to_mark()))


def _tuple_of(count: int) -> Push:
    return lambda machine, _argument, _position: machine.push(tuple([machine.pop() for _ in range(count)][::-1]))


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(items[::2], items[1::2], strict=False))


def _set_items(target: Any, items: list[Any]) -> None:
    if isinstance(target, dict):
        target.update((key_of(key), value) for key, value in _pairs(items))
    elif isinstance(target, Made):
        target.pairs += _pairs(items)


def _append_items(target: Any, items: list[Any]) -> None:
    if isinstance(target, list):
        target += items
    elif isinstance(target, set):
        target.update(key_of(item) for item in items)
    elif isinstance(target, Made):
        target.values += items


def _set_item(machine: Machine, _: Any, __: int) -> None:
    value, key = machine.pop(), machine.pop()
    _set_items(machine.top(), [key, value])


def _set_many(machine: Machine, _: Any, __: int) -> None:
    items = machine.pop_to_mark()
    _set_items(machine.top(), items)


def _append(machine: Machine, _: Any, __: int) -> None:
    value = machine.pop()
    _append_items(machine.top(), [value])


def _append_many(machine: Machine, _: Any, __: int) -> None:
    items = machine.pop_to_mark()
    _append_items(machine.top(), items)


def _global(machine: Machine, argument: Any, position: int) -> None:
    module, _, name = str(argument).partition(" ")
    machine.push(machine.fetch(module, name, position))


def _stack_global(machine: Machine, _: Any, position: int) -> None:
    name, module = machine.pop(), machine.pop()
    machine.push(machine.fetch(module, name, position))


def _instance(machine: Machine, argument: Any, position: int) -> None:
    module, _, name = str(argument).partition(" ")
    arguments = tuple(machine.pop_to_mark())
    machine.push(rebuild(machine.fetch(module, name, position), arguments))


def _object(machine: Machine, _: Any, __: int) -> None:
    items = machine.pop_to_mark()
    machine.push(rebuild(items[0] if items else Unknown(), tuple(items[1:])))


def _reduce(machine: Machine, _: Any, __: int) -> None:
    arguments, function = machine.pop(), machine.pop()
    machine.push(rebuild(function, arguments))


def _new_object_with_keywords(machine: Machine, _: Any, __: int) -> None:
    keywords, arguments, function = machine.pop(), machine.pop(), machine.pop()
    machine.push(Made(function, (arguments, keywords)))


def _build(machine: Machine, _: Any, __: int) -> None:
    state = machine.pop()
    target = machine.top()
    if isinstance(target, Made):
        target.state = state


def _extension(machine: Machine, argument: Any, position: int) -> None:
    # The registry of copyreg gives these numbers a meaning that lies outside the file.
    found = Global("copyreg", f"extension {argument}", position)
    machine.globals.append(found)
    machine.push(found)


def _memoize(machine: Machine, argument: Any, _: int) -> None:
    machine.memo[len(machine.memo) if argument is None else int(argument)] = machine.top()


def _recall(machine: Machine, argument: Any, _: int) -> None:
    if int(argument) not in machine.memo:
        machine.problem = machine.problem or f"damaged: nothing was stored under number {argument}"
    machine.push(machine.memo.get(int(argument), Unknown("never stored")))


def _persistent_text(machine: Machine, argument: Any, _: int) -> None:
    machine.push(machine.persistent(argument))


def _persistent(machine: Machine, _: Any, __: int) -> None:
    machine.push(machine.persistent(machine.pop()))


def _pop(machine: Machine, _: Any, __: int) -> None:
    if machine.stack:
        machine.stack.pop()


def _pop_mark(machine: Machine, _: Any, __: int) -> None:
    machine.pop_to_mark()


def _duplicate(machine: Machine, _: Any, __: int) -> None:
    machine.push(machine.top())


def _stop(machine: Machine, _: Any, __: int) -> None:
    machine.result = machine.pop()


_LITERALS = (
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE",
    "BINUNICODE8", "FLOAT", "BINFLOAT",
)  # fmt: skip
_HANDLERS: Mapping[str, Push] = {
    **dict.fromkeys(_LITERALS, _literal),
    "NEXT_BUFFER": _constant(Unknown("an out-of-band buffer")),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_LIST": _fresh(list),
    "EMPTY_DICT": _fresh(dict),
    "EMPTY_SET": _fresh(set),
    "EMPTY_TUPLE": _constant(()),
    "MARK": _constant(MARK),
    "LIST": _from_mark(list),
    "TUPLE": _from_mark(tuple),
    "DICT": _from_mark(lambda items: {key_of(key): value for key, value in _pairs(items)}),
    "FROZENSET": _from_mark(lambda items: {key_of(item) for item in items}),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "SETITEM": _set_item,
    "SETITEMS": _set_many,
    "APPEND": _append,
    "APPENDS": _append_many,
    "ADDITEMS": _append_many,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "INST": _instance,
    "OBJ": _object,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_object_with_keywords,
    "BUILD": _build,
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _extension),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _recall),
    "PERSID": _persistent_text,
    "BINPERSID": _persistent,
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": _duplicate,
    "STOP": _stop,
}
