"""Loops of a converted program in the form of LiteRT's files: test and body are functions of all that they read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxrnn.verification.litert import package

#: Operations that a function repeats instead of taking their results.
_CONSTANTS = ("arith.constant", "tfl.pseudo_const", "tfl.no_value")


def outline(module: Any, prefix: str) -> None:
    """Replace the test and the body of each loop by calls of functions, whose names begin with a prefix."""
    for number, loop in enumerate([*_loops(module.operation)]):
        _outline(package("litert_converter.mlir.ir"), module, loop, f"{prefix}_{number}")


def _loops(operation: Any) -> Iterator[Any]:
    """Yield loops, the inner before the outer."""
    for region in operation.regions:
        for block in region:
            for each in block:
                yield from _loops(each.operation)
                if each.operation.name == "tfl.while":
                    yield each.operation


def _outline(ir: Any, module: Any, loop: Any, name: str) -> None:
    blocks, captured = [region.blocks[0] for region in loop.regions], []
    insides = [[each.operation for each in block.operations] for block in blocks]

    def is_outside(value: Any, block: Any, inside: list[Any]) -> bool:
        owner = value.owner
        return owner != block if isinstance(owner, ir.Block) else owner.operation not in inside

    def is_constant(value: Any) -> bool:
        return not isinstance(value.owner, ir.Block) and value.owner.operation.name in _CONSTANTS

    for block, inside in zip(blocks, insides, strict=True):
        for value in (value for each in inside for value in each.operands):
            if is_outside(value, block, inside) and not is_constant(value) and value not in captured:
                captured.append(value)
    with ir.Location.unknown(loop.context) as unknown:
        for block, inside in zip(blocks, insides, strict=True):
            arguments = [block.add_argument(value.type, unknown) for value in captured]
            for each in inside:
                for place, value in enumerate(each.operands):
                    if value in captured:
                        each.operands[place] = arguments[captured.index(value)]
                    elif is_outside(value, block, inside):
                        copied = value.owner.operation.clone(ip=ir.InsertionPoint.at_block_begin(block))
                        each.operands[place] = copied.results[0]
        operands = [*loop.operands, *captured]
        types, stateless = [value.type for value in operands], {"is_stateless": ir.BoolAttr.get(False)}
        with ir.InsertionPoint(loop):
            new = ir.Operation.create("tfl.while", types, operands, stateless, regions=2)
        for kind, block, region in zip(("test", "body"), blocks, new.regions, strict=True):
            end = list(block.operations)[-1].operation
            results = [*end.operands, *(list(block.arguments)[len(loop.operands) :] if kind == "body" else ())]
            outs, called = [value.type for value in results], ir.FlatSymbolRefAttr.get(f"{name}_{kind}")
            attributes = {
                "sym_name": ir.StringAttr.get(f"{name}_{kind}"),
                "sym_visibility": ir.StringAttr.get("private"),
            }
            attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, outs))
            with ir.InsertionPoint(module.body):
                function = ir.Operation.create("func.func", attributes=attributes, regions=1)
            block.append_to(function.regions[0])
            with ir.InsertionPoint.at_block_terminator(block):
                ir.Operation.create("func.return", operands=results)
            end.erase()
            with ir.InsertionPoint(ir.Block.create_at_start(region, types, [unknown] * len(types))) as point:
                arguments = list(point.block.arguments)
                call = ir.Operation.create("func.call", outs, arguments, {"callee": called})
                ir.Operation.create("tfl.yield", operands=list(call.results))
        for old, value in zip(loop.results, new.results, strict=False):
            old.replace_all_uses_with(value)
        loop.erase()
