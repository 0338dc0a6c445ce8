"""Compiles a Build for a GPU that needn't be there, and reads what the compilers say of it: registers, spills, shared
memory, matrix instructions, code size.

Never in a process where TRITON_INTERPRET is set: its kernels can't be compiled. And one AMD architecture a process:
Triton keeps for its lifetime how the first one converts fp8, so that gfx950 after gfx942 gets a software conversion.
"""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import io
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton import compile as triton_compile
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from turbo_kernels.builds import Build


@dataclass(frozen=True)
class Target:
    """`shared_limit_bytes` is the most that one workgroup (AMD: LDS) or block (NVIDIA) may ask for."""

    triton: GPUTarget
    assembly: str
    binary: str
    shared_limit_bytes: int


TARGETS: dict[str, Target] = {
    "gfx942": Target(GPUTarget("hip", "gfx942", 64), "amdgcn", "hsaco", 64 << 10),
    "gfx950": Target(GPUTarget("hip", "gfx950", 64), "amdgcn", "hsaco", 160 << 10),
    "sm_90": Target(GPUTarget("cuda", 90, 32), "ptx", "cubin", 227 << 10),
}
_AMD_HERE: dict[str, str] = {}  # the one AMD architecture of this process
SM_REGISTERS = 65536  # what the threads of one block may hold together

# The wrong FP8 flavour compiles too, silently, into another type's instruction: so operands are told by their names.
_MFMA = re.compile(r"\b(v_mfma_(?:scale_)?f32_\d+x\d+x\d+_?(\w+?))(?:_1k)?\s+([^\n]*)")
_MFMA_KINDS: dict[str, str] = {"f16": "fp16", "f32": "fp32", "fp8_fp8": "fp8", "bf8_bf8": "bf8"}
_F8F6F4: dict[int, str] = {
    0: "fp8",
    1: "bf8",
    2: "fp6",
    3: "bf6",
    4: "fp4",
}  # what cbsz (first operand) and blgp (second) stand for
_WGMMA = re.compile(r"\b(wgmma\.mma_async\.sync\.aligned\.m64n\d+k\d+\.f32\.(\w+)\.(\w+))")
_MMA = re.compile(r"\b(mma\.sync\.aligned\.m\d+n\d+k\d+\.row\.col\.f32\.\w+\.\w+)")  # the slow path on sm_90
_PTX_KINDS: dict[str, str] = {"bf16": "bf16", "f16": "fp16", "tf32": "tf32", "e4m3": "fp8", "e5m2": "bf8"}


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel takes. `registers`: VGPRs and AGPRs together on AMD, a thread's registers on NVIDIA;
    `agprs` and `sgprs` are AMD's alone. `matrix` counts instructions by (operands, name)."""

    registers: int
    agprs: int | None
    sgprs: int | None
    spills: int
    scratch_bytes: int
    shared_bytes: int
    matrix: Mapping[tuple[str, str], int]
    code_bytes: int
    seconds: float
    assembly: str


def compiled(build: Build, arch: str) -> Resources:
    """Compiles anew, whatever the cache holds; Triton's own errors pass through."""
    target, names = TARGETS[arch], build.kernel.arg_names
    if arch.startswith("gfx") and arch != _AMD_HERE.setdefault("arch", arch):
        raise RuntimeError(f"this process has compiled for {_AMD_HERE['arch']}: start another one for {arch}")
    unknown = sorted(set(build.constants) - set(names))  # types may be shared by kernels with other arguments
    if unknown:
        raise ValueError(f"{build.label}: {build.kernel.__name__} has no argument {', '.join(unknown)}")
    types = {n: "constexpr" if n in build.constants else build.types.get(n, "i32") for n in names}
    aligned = [n for n in names if types[n][0] in "*iu" and n not in build.unit]
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    source = ASTSource(fn=build.kernel, signature=types, constexprs=dict(build.constants), attrs=attrs)
    log, start = io.StringIO(), time.perf_counter()
    with _said_by_ptxas(log):
        kernel = triton_compile(source, target=target.triton, options=dict(build.options))
    seconds = time.perf_counter() - start
    text = kernel.asm[target.assembly]
    read = _amd(text) if target.binary == "hsaco" else _nvidia(log.getvalue())
    return Resources(**read, shared_bytes=kernel.metadata.shared, matrix=Counter(_matrix(text)),
                     code_bytes=code_bytes(kernel.asm[target.binary]), seconds=seconds, assembly=text)  # fmt: skip


@contextlib.contextmanager
def _said_by_ptxas(log: io.StringIO) -> Iterator[None]:
    """Triton runs ptxas with -v and can print what it said: the only place that tells of spills before a GPU loads it."""
    before = knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile
    knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
    try:
        with contextlib.redirect_stdout(log):
            yield
    finally:
        knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile = before


def _amd(text: str) -> dict[str, Any]:
    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        if found is None:
            raise ValueError(f"the assembly says nothing of .{name}")
        return int(found[1])

    return {
        "registers": field("vgpr_count"), "agprs": field("agpr_count"), "sgprs": field("sgpr_count"),
        "spills": field("vgpr_spill_count") + field("sgpr_spill_count"),
        "scratch_bytes": field("private_segment_fixed_size"),
    }  # fmt: skip


def _nvidia(log: str) -> dict[str, Any]:
    used = re.search(r"Used (\d+) registers", log)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not used or not frame:
        raise ValueError(f"ptxas said nothing of registers and spills: {log.strip()[:80]!r}")
    stack, stores, loads = map(int, frame.groups())
    return {"registers": int(used[1]), "agprs": None, "sgprs": None, "spills": stores + loads, "scratch_bytes": stack}


def _matrix(text: str) -> Iterator[tuple[str, str]]:
    """(operands, name) of every matrix instruction; `mx` before operands that carry a scale per block."""
    for name, kind, rest in _MFMA.findall(text):
        yield _scaled(name, rest) if kind == "f8f6f4" else _named(kind, _MFMA_KINDS), name
    for name, first, second in _WGMMA.findall(text):
        yield _pair(_named(first, _PTX_KINDS), _named(second, _PTX_KINDS)), name
    for name in _MMA.findall(text):
        yield "mma.sync", name


def _named(kind: str, names: Mapping[str, str]) -> str:
    return names.get(kind, kind)


def _scaled(name: str, rest: str) -> str:
    """Operands of an f8f6f4 instruction, which its modifiers tell."""
    found = {f: re.search(rf"{f}:(\d)", rest) for f in ("cbsz", "blgp")}
    first, second = (_F8F6F4[int(m[1]) if m else 0] for m in found.values())
    return ("mx" if "_scale_" in name else "") + _pair(first, second)


def _pair(first: str, second: str) -> str:
    return first if first == second else f"{first}_{second}"


def code_bytes(elf: bytes) -> int:
    """Bytes of the executable sections (SHF_EXECINSTR) of a 64-bit little-endian ELF file."""
    (table,), (size, count) = struct.unpack_from("<Q", elf, 0x28), struct.unpack_from("<HH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    return sum(length for _, _, flags, _, _, length in sections if flags & 4)


def same(kind: str, wanted: str) -> bool:
    """Mixed operands in either order: AMD's instruction takes them swapped where it computes the transpose. `mxfp8` is
    any scaled instruction on eight bits."""
    if wanted == "mxfp8":
        return kind.startswith("mx") and set(kind.removeprefix("mx").split("_")) <= {"fp8", "bf8"}
    scaled = "mx" if wanted.startswith("mx") else ""
    first, _, second = wanted.removeprefix("mx").partition("_")
    return kind in (wanted, f"{scaled}{second}_{first}")


def problems(build: Build, arch: str, found: Resources) -> list[str]:
    """Why this build must not ship; each a short phrase."""
    limit = TARGETS[arch].shared_limit_bytes
    threads = TARGETS[arch].triton.warp_size * build.options.get("num_warps", 4)
    wrong = []
    if found.spills:
        wrong.append(f"spills {found.spills} {'registers' if arch.startswith('gfx') else 'bytes'}")
    if found.scratch_bytes:
        wrong.append(f"{found.scratch_bytes} bytes of scratch")
    if found.shared_bytes > limit:
        wrong.append(f"{found.shared_bytes} bytes of shared memory, over {limit}")
    if arch.startswith("sm_") and found.registers * threads > SM_REGISTERS:
        wrong.append(f"{found.registers} registers for {threads} threads, over {SM_REGISTERS}")
    if build.matrix and not any(same(kind, build.matrix) for kind, _ in found.matrix):
        others = ", ".join(sorted({name for _, name in found.matrix})) or "none at all"
        wrong.append(f"no matrix instruction on {build.matrix}: {others}")
    return wrong
