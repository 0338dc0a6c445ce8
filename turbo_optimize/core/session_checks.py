"""The checks of a candidate's processes: what a timed session and a training run must be. Pure; codes in checks.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turbo_optimize.core.checks import Norms

RECEIPT_SLACK_DB = 3.0
RECEIPT_LEAST_DB = 3.0  # whatever the incumbent's: what was computed from other contents has less than 0
CLOCK_SLACK = 0.10  # a block's claimed time against the runner's own
CLOCK_FLOOR_MS = 5.0  # of a block: what messages and a busy machine may add; the runner's clock decides anyway
EVENT_SLACK = 1.25

LIBRARY_OPS = frozenset(
    f"aten.{n}"
    for n in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "dot", "mv", "addmv", "_scaled_mm", "_scaled_mm_v2")
) | frozenset(
    f"aten.{n}"
    for n in ("_grouped_mm", "_scaled_grouped_mm", "_int_mm", "convolution", "einsum", "tensordot", "_addmm_activation")
) | frozenset(
    f"aten.{n}"
    for n in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "native_layer_norm",
              "_scaled_dot_product_cudnn_attention", "_fused_rms_norm", "native_batch_norm", "_softmax")
)  # fmt: skip
LIBRARY_KERNELS = ("cublas", "cutlass", "nvjet", "cijk", "xmma", "cudnn", "gemmsn", "gemvx", "splitkreduce")


def receipts(db_incumbent: float, db_candidate: float) -> str | None:
    """K06: the outputs of timed calls, at places named after the loop, are as good as the incumbent's."""
    if db_candidate >= max(min(db_incumbent, 60.0) - RECEIPT_SLACK_DB, RECEIPT_LEAST_DB):
        return None
    return f"the outputs of a timed call have {db_candidate:.1f} dB, the incumbent's {db_incumbent:.1f}"


def clock(candidate: Sequence[float], incumbent: Sequence[float], block_ms: float) -> str | None:
    """K11: each block's claimed time over the runner's, of both workers.

    Even the candidate's best block must not say less than the incumbent's median one says: a clock that runs slow does so
    in every block, a disturbed machine in some.
    """
    if not candidate or not incumbent:
        return None
    best, usual = max(candidate), sorted(incumbent)[len(incumbent) // 2]
    if best >= (1 - CLOCK_SLACK) * usual or (usual - best) * block_ms <= CLOCK_FLOOR_MS:
        return None
    return f"its own clock says {best:.2f} times what the runner measures, the incumbent's {usual:.2f}"


def events(ratio: float, incumbent: float) -> str | None:
    """K22: the device-wide wall over the time between the stream's events, beside the incumbent's."""
    if ratio <= EVENT_SLACK * max(incumbent, 1.0):
        return None
    return f"the device works {ratio:.2f} times as long as the stream's events say: work runs beside the timed stream"


def launches(kernels: Sequence[str], ops: Sequence[str], norms: Norms) -> str | None:
    """K20: the target's kernels ran, and no library's in their place. The base's own are no finding."""
    if not norms.kernels and not norms.ops:
        return None
    new_ops = sorted(o for o in ops if o in LIBRARY_OPS and o not in norms.ops)
    known = {k.lower() for k in norms.kernels}
    new = sorted(k for k in kernels if any(x in k.lower() for x in LIBRARY_KERNELS) and k.lower() not in known)
    if new_ops or new:
        return f"a library did the work: {', '.join([*new_ops, *new][:3])}"
    return "no kernel of the target ran" if norms.kernels and not kernels else None


def training(passed: Mapping[str, bool], counts: Sequence[int], weight_cache: bool) -> str | None:
    """K19: outputs stay right while the weight changes in place, and nothing is skipped in a later step."""
    wrong = [step for step, ok in passed.items() if not ok]
    if wrong:
        return f"step {wrong[0]} of a training run is wrong: something of an earlier step was used"
    hits = [i for i, n in enumerate(counts) if n < max(counts) and not (weight_cache and i % 4 == 3)]
    if hits:
        return f"step {hits[0]} of a training run launches {counts[hits[0]]} kernels, others {max(counts)}: a cache hit"
    return None


def crowd(before: tuple[int, int], after: tuple[int, int]) -> str | None:
    """K10: (threads, processes) of a worker, seen from outside, before and after its timed blocks."""
    if after[1] > max(1, before[1]):
        return f"{after[1]} processes where there was {before[1]}"
    return f"{after[0] - before[0]} new threads in the timed blocks" if after[0] > before[0] else None


CACHES = ("triton", "extensions", "inductor", "outputs")  # folders of a scratch that compilers write
CACHE_SUFFIXES = frozenset(
    {
        ".json",
        ".ttir",
        ".ttgir",
        ".llir",
        ".ptx",
        ".cubin",
        ".so",
        ".hsaco",
        ".amdgcn",
        ".source",
        ".lock",
        ".ttsharedir",
    }
)
COMPILER_FOLDERS = (".nv", ".triton", ".cache", ".config")  # what drivers and compilers keep in a home


def left_behind(files: Sequence[str]) -> str | None:
    """K21: files of a worker's scratch, relative, that no compiler writes."""
    for name in sorted(files):
        top, *rest = name.split("/")
        if top in CACHES:
            if top == "triton" and not any(name.endswith(x) for x in CACHE_SUFFIXES):
                return f"a file among the compiled kernels: {name}"
        elif not (top == "home" and rest and rest[0] in COMPILER_FOLDERS):
            return f"a file was left behind: {name}"
    return None
