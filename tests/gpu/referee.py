"""Candidates of known worth for a campaign on a GPU: nothing, a known slow-down, a known gain, cheats, hostile kernels.

    python -m tests.gpu.referee base REPO            # a commit that makes the operator slower by a known time
    python -m tests.gpu.referee patches REPO FOLDER [nulls] [slow] [gains] [cheats] [hostile] [NAME…]
    python -m tests.gpu.campaign …                   # both, and the campaign

The known time is that of a kernel which does nothing for `PERCENT` of what the step takes at a usual rate: taken away it
is a true gain, lengthened a true loss.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.exploits.exploit import replace_once
from tests.exploits.gpu_fp8 import GPU_FP8, KERNEL, OPS, wrapped_gemm
from tests.exploits.hostile import CODES

PERCENT = 7.0
NULLS = 20
IDLE = "kernels/turbo_kernels/gemm_fp8/triton_idle.py"
IDLE_CODE = f'''"""A kernel that does nothing for a known share of a step: what a campaign then finds or takes away is known."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

PERCENT = {PERCENT}
TFLOPS = 500.0  # a usual rate of a whole step on an H200


@triton.jit
def idle_kernel(out_ptr, ns):
    start = globaltimer()
    now = start
    while now - start < ns:
        now = globaltimer()
    tl.store(out_ptr, now)


def idle(m: int, n: int, k: int, device: torch.device) -> None:
    """Keeps the stream for PERCENT of a training step of this size."""
    if device.type == "cuda":
        ns = int(6.0 * m * n * k / (TFLOPS * 1e12) * 1e9 * PERCENT / 100)
        idle_kernel[(1,)](torch.empty(1, dtype=torch.int64, device=device), ns, num_warps=1)
'''
# In the operator: the forward idles once a step, on the caller's stream, behind its own GEMM.
CALL = '    out = MULTIPLY[config.variant]("forward", qa, qb, out_dtype)\n'
IDLING = CALL + "    idle(a.shape[0], out.shape[1], a.shape[1], a.device)\n"
IMPORT = "from turbo_kernels.gemm_fp8.triton_quant import Quantized, quantize, quantize_weight\n"


def base(root: Path) -> dict[str, str]:
    text = (root / OPS).read_text()
    text = replace_once(text, IMPORT, "from turbo_kernels.gemm_fp8.triton_idle import idle\n" + IMPORT)
    return {IDLE: IDLE_CODE, OPS: replace_once(text, CALL, IDLING)}


def idling(change: Callable[[float], float]) -> Callable[[Path], dict[str, str]]:
    """PERCENT of the tree as it is, changed."""

    def edits(root: Path) -> dict[str, str]:
        text = (root / IDLE).read_text()
        now = float(text.split("\nPERCENT = ")[1].split("\n")[0])
        return {IDLE: replace_once(text, f"\nPERCENT = {now}\n", f"\nPERCENT = {change(now)}\n")}

    return edits


def null(number: int) -> Callable[[Path], dict[str, str]]:
    """The incumbent's kernel with another comment in its body: it is compiled anew and does the same."""
    anchor = "    # Rows past the end read the last one and are never stored: no mask in the loop.\n"

    def edits(root: Path) -> dict[str, str]:
        text = (root / KERNEL).read_text()
        return {
            KERNEL: replace_once(text, anchor, anchor + f"    # Proposal {number} changes nothing but this line.\n")
        }

    return edits


def hostile(code: str) -> Callable[[Path], dict[str, str]]:
    return wrapped_gemm(f"""{code}

    def gemm(name, a, b, out_dtype, scale_strides=None):
        harm(a.q)
        return launch(name, a, b, out_dtype, scale_strides)
""")


def candidates(wanted: list[str]) -> Iterator[tuple[str, Callable[[Path], dict[str, str]]]]:
    kinds: dict[str, list[tuple[str, Callable[[Path], dict[str, str]]]]] = {
        "nulls": [(f"null {i}", null(i)) for i in range(1, NULLS + 1)],
        "slow": [("slower by 2", idling(lambda p: p + 2)), ("slower by 5", idling(lambda p: p + 5))],
        "gains": [("faster by 2", idling(lambda p: 5.0)), ("faster by 5", idling(lambda p: 0.0))],
        "cheats": [(e.name, e.edits) for e in GPU_FP8.values()],
        "hostile": [(name, hostile(code)) for name, _, _, code, _ in CODES],
    }
    by_name = {name: [(name, edits)] for kind in kinds.values() for name, edits in kind}
    for name in wanted or list(kinds):
        yield from (kinds | by_name)[name]


def git(root: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=root, check=True, capture_output=True, text=True).stdout


def write(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).write_text(text)


def patches(root: Path, folder: Path, wanted: list[str]) -> None:
    """One patch a candidate, in order. The second gain is taken from a tree that has the first."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, edits) in enumerate(candidates(wanted), start=1):
        if name == "faster by 5":
            write(root, idling(lambda p: 5.0)(root))
            git(root, "add", "--all")
        write(root, edits(root))
        diff = git(root, "diff")
        git(root, "checkout", "--quiet", "HEAD", "--", ".")
        slug = name.replace(" ", "-")
        (folder / f"{number:04}-{slug}.patch").write_text(f"Subject: [PATCH] {name}\n\n---\n{diff}")


def main() -> None:
    command, root, *rest = sys.argv[1:]
    if command == "base":
        write(Path(root), base(Path(root)))
        git(Path(root), "add", "--all")
        git(Path(root), "commit", "--quiet", "-m", "An operator that idles for a known time")
    else:
        patches(Path(root), Path(rest[0]), rest[1:])


if __name__ == "__main__":
    main()
