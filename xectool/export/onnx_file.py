"""ONNX: written by PyTorch's exporter with a free batch axis, checked, described, and run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from xectool.checkpoint.inspection.onnx_digest import BLANK, KEY, file_digest_holds, seal
from xectool.checkpoint.inspection.onnx_seals import SEALS_KEY, changed_parts, seals_of
from xectool.errors import OutputsDiffer, in_shell
from xectool.export.description import PRODUCER, Description, changed_since
from xectool.export.formats import Written, register
from xectool.export.graphs import ExportGraph
from xectool.export.installed import require
from xectool.export.onnx_conversion import OPSET, converted
from xectool.export.onnx_faults import onnx_faults
from xectool.export.onnx_providers import unused_provider, wanted_providers
from xectool.export.onnx_rehearsal import rehearse
from xectool.export.ports import Port
from xectool.export.reference import Arrays
from xectool.export.runtime import Runtime, allowed_threads, in_order
from xectool.findings import Finding, Severity

if TYPE_CHECKING:
    import onnx

SINGLE_FILE_LIMIT: Final = 2**31 - 2**20
"""Protobuf's limit of 2 GiB, with room for the graph."""
_RANDOM: Final = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_TRAINING: Final = frozenset({"Dropout", "BatchNormalization"})


@register("onnx", ".onnx")
class OnnxFormat:
    """Graph and weights in one file; ONNX Runtime runs it from C++, Python and others."""

    opset = OPSET

    @staticmethod
    def write(graph: ExportGraph, description: Description, example: tuple[torch.Tensor, ...], path: Path) -> Written:
        """Write a network; weights beyond 2 GiB go to ``<name>.data`` beside it.

        Raises:
            UsageError: onnx or onnxscript is not installed.
            CheckpointError: An operation cannot be exported.
            OutputsDiffer: The file is not what was asked for: a fixed batch, training operators, another name.
        """
        require("onnx", "onnxscript", "onnxruntime", what="an export to ONNX")
        import onnx

        model = converted(graph, example, path)
        _describe(model, description)
        size = model.ByteSize()
        beside = f"{path.name}.data" if size > SINGLE_FILE_LIMIT else ""
        if beside:
            onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=True, location=beside)
        else:
            path.write_bytes(model.SerializeToString(deterministic=True))
        _seal_parts(path)
        seal(path)
        check(path, graph.inputs, graph.outputs)
        what = f"weights of {size / 2**30:.1f} GiB do not fit one ONNX file: copy {beside} with it"
        notes = (
            (Finding("X-07", Severity.WARNING, what, path.name, fix=f"ls -l {in_shell(path.name)}*"),) if beside else ()
        )
        return Written(tuple(path.with_name(name) for name in (path.name, beside) if name), notes)

    @staticmethod
    def open(path: Path, device: str = "cpu") -> Runtime:
        """Return the file, ready to run on ``cpu`` or ``cuda``."""
        return OnnxRuntime(path, device)


class OnnxRuntime(Runtime):
    """An ONNX file in ONNX Runtime.

    Args:
        path: The file.
        device: ``cpu``, ``cuda`` or ``cuda:N``; what is not there is said in :attr:`notes`.

    Raises:
        CheckpointError: The file cannot be run, or xectool did not export it.
        UsageError: onnxruntime is not installed.
    """

    def __init__(self, path: Path, device: str = "cpu") -> None:
        require("onnxruntime", what="running an ONNX file")
        import onnxruntime

        self.path = path
        _require_as_exported(Path(path))
        available = onnxruntime.get_available_providers()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = allowed_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        with onnx_faults(path):
            providers = wanted_providers(device, available)
            self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=providers)
        self.providers = tuple(self.session.get_providers())
        self.description = Description.from_metadata(dict(self.session.get_modelmeta().custom_metadata_map), str(path))
        self.notes = unused_provider(device, available, self.providers)

    def rehearse(self, cases: Mapping[str, Arrays]) -> None:
        """Run inputs in a process of its own.

        Raises:
            OutputsDiffer: ONNX Runtime died; the message says of what, and on which inputs.
        """
        rehearse(self.path, cases)

    def run(self, given: Arrays) -> Arrays:
        """Return the outputs by name, in the file's order."""
        self.check_inputs(given)
        return self.run_unchecked(given)

    def run_unchecked(self, given: Arrays) -> Arrays:
        """Return the outputs; wrong inputs are refused by ONNX Runtime itself.

        Raises:
            CheckpointError: The session refuses.
        """
        with onnx_faults(self.path):
            values = self.session.run(None, given)
        return in_order([item.name for item in self.session.get_outputs()], values)


def _require_as_exported(path: Path) -> None:
    """Refuse a file that is not what was exported: ONNX Runtime takes a flipped bit for a weight.

    Raises:
        CheckpointError: Its digest does not hold.
    """
    if file_digest_holds(path) is False:
        raise changed_since(path, changed_parts(path, memoryview(path.read_bytes())))


def check(path: Path, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
    """Refuse a file that is not valid, whose batch is fixed, that trains, or whose ports are not as documented.

    Raises:
        OutputsDiffer: It is one of these; code X-05, X-06, X-07, X-10, X-11 or X-19 says which.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(path, load_external_data=False)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        first = " ".join(str(error).split())[:300]
        code = "X-07" if "external" in first.lower() or ".data" in first else "X-06"
        raise _refused(code, f"the file is not valid ONNX: {first}", path) from error
    for node in model.graph.node:
        _check_node(node, path)
    _check_ports("X-10", "inputs", inputs, model.graph.input, path)
    _check_ports("X-11", "outputs", outputs, model.graph.output, path)


def _check_node(node: onnx.NodeProto, path: Path) -> None:
    if node.op_type in _RANDOM:
        raise _refused("X-19", f"the graph draws random numbers ({node.op_type})", path)
    training = any(item.name == "training_mode" and item.i for item in node.attribute)
    if node.op_type in _TRAINING and (training or (node.op_type == "Dropout" and len(node.input) > 2)):
        raise _refused("X-04", f"the graph has {node.op_type} in training mode", path)


def _check_ports(
    code: str, kind: str, ports: tuple[Port, ...], found: Iterable[onnx.ValueInfoProto], path: Path
) -> None:
    told, wanted = [_port(item) for item in found], [_wanted(port) for port in ports]
    if [f"{name}: {dtype}[{shape}]" for name, dtype, _, shape in told] != wanted:
        raise _refused(code, f"the {kind} are {[item[:2] for item in told]} instead of {wanted}", path)
    fixed = [name for name, _, batch, _ in told if batch]
    if fixed:
        raise _refused("X-05", f"the batch of {', '.join(fixed)} is fixed to {told[0][2]}", path)


def _describe(model: onnx.ModelProto, description: Description) -> None:
    """Put the description into the model and take out what differs between machines: paths of source files."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    del model.graph.metadata_props[:]
    del model.metadata_props[:]
    model.graph.name = f"{PRODUCER}-{description.kind}"
    model.producer_name, model.producer_version = PRODUCER, description.version
    for key, text in sorted({**description.to_metadata(), KEY: BLANK}.items()):
        item = model.metadata_props.add()
        item.key, item.value = key, text


def _seal_parts(path: Path) -> None:
    """Add a checksum of every part to the metadata of a file; weights beside it stay where they are."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    item = model.metadata_props.add()
    item.key, item.value = SEALS_KEY, seals_of(path)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _port(value: onnx.ValueInfoProto) -> tuple[str, str, int, str]:
    """Return name, type, batch (0 where it is free) and the other sizes of a port."""
    import onnx

    kind = value.type.tensor_type
    sizes = [axis.dim_param or axis.dim_value for axis in kind.shape.dim]
    known: dict[int, str] = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.BOOL: "bool"}
    dtype = known.get(kind.elem_type, str(kind.elem_type))
    batch = sizes[0] if sizes and isinstance(sizes[0], int) else 0
    return value.name, dtype, batch, ", ".join(map(str, sizes[1:]))


def _wanted(port: Port) -> str:
    return f"{port.name}: {port.dtype}[{', '.join(map(str, port.shape))}]"


def _refused(code: str, problem: str, path: Path) -> OutputsDiffer:
    fix = f"do not use this export; nothing was written. xectool explain {code}"
    return OutputsDiffer(problem, where=str(path), fix=fix, code=code)
