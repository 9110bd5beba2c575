"""A model as it is shown at a prompt."""

from __future__ import annotations

from typing import Any

from jaxrnn._files.messages import COLUMNS, LINES, part_of, shortened, without_folders


def shown(model: Any) -> str:
    """What it is called, and its arrays by name."""
    parameters = model.program.parameters
    count = sum(array.size for array in parameters.values())
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    lines = [
        f"Model {shortened(without_folders(model.label))} ({opsets}; {count:,} parameters in {len(parameters)} arrays)"
    ]
    lines += [f"  input   {info}" for info in model.inputs]
    lines += [
        f"  static  {name} = {value.tolist() if value.size <= 8 else part_of(value)}"
        for name, value in model.static.items()
    ]
    lines += [f"  output  {info}" for info in model.outputs]
    lines += [f"  state   {source} <- {updated}" for source, updated in (model.declared_state or {}).items()]
    if len(lines) > LINES:
        lines[LINES:] = [f"  ... and {len(lines) - LINES} more of inputs, outputs and state"]
    return "\n".join(shortened(line, COLUMNS) for line in lines)
