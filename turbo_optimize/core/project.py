"""What a project file says: ops, their backends, what may be edited and searched. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from turbo_optimize.core.frozen import Frozen

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]  # becomes part of a branch's name


class ParamSpace(Frozen):
    """One launch parameter or structural switch of a kernel and its legal values."""

    values: tuple[int | bool | str, ...] = Field(min_length=1)


class Direction(Frozen):
    """What `search` may move together in one round, with why it should pay (knowledge behind the ranking)."""

    name: str
    params: tuple[str, ...] = Field(min_length=1)
    sections: tuple[str, ...] = ()  # empty: every section of the space, one round each
    category: str = "tile_launch"
    bottleneck: tuple[str, ...] = ()
    expected_gain_pct: float = 5.0
    risk: Literal["low", "high"] = "low"
    signal: str = ""
    bucket: str = "K1"


class Space(Frozen):
    """A kernel's declared search space: a JSON file {section: {param: value}} that the kernel reads at import."""

    file: str
    sections: tuple[str, ...]
    params: dict[str, ParamSpace]
    directions: tuple[Direction, ...]
    fits: str = "none"  # the static resource model in core/space.py
    operand_bytes: int = 2
    accumulators: int = Field(default=1, ge=1)  # fp32 tiles that a program holds at once

    @model_validator(mode="after")
    def _directions_are_declared(self) -> Space:
        for d in self.directions:
            for what, used, known in (("param", d.params, self.params), ("section", d.sections, self.sections)):
                if unknown := [x for x in used if x not in known]:
                    raise ValueError(f"direction {d.name}: no {what} {unknown[0]!r}, there is {', '.join(known)}")
        return self


class Backend(Frozen):
    """One backend of an op: what may be edited, and how to search it."""

    lang: str
    gpus: tuple[str, ...]
    kernel_source: tuple[str, ...] = Field(min_length=1)
    editable: tuple[str, ...] = Field(min_length=1)  # glob patterns relative to the repository root
    rebuild_command: str | None = None
    space: Space | None = None
    unavailable: str | None = None  # the reason, where the project itself knows it


class Op(Frozen):
    """One operator of a project. Commands may use {python}, {tree}, {out}, {shapes}, {device}."""

    schema_class: Literal["gemm", "memory", "attention"]
    metric: str
    execution_mode: Literal["training", "forward"] = "training"
    variants: tuple[str, ...] = Field(default=("default",), min_length=1)
    dtypes: tuple[str, ...] = Field(default=("bf16",), min_length=1)
    peak: str = "bf16"  # which roofline row bounds it
    test_command: str
    benchmark_command: str
    quick_template: str = "quick_test_bench.py.j2"  # in templates/ or relative to the project file
    adapter: str  # python file: make_inputs, forward, step, reference, check (docs/projects.md)
    frozen: tuple[str, ...] = ()  # harness files hashed before and after each run, beside the adapter
    import_roots: tuple[str, ...] = (".",)
    import_name: str  # the module whose path and hash every worker reports
    gpu_shapes: tuple[tuple[int, ...], ...] = ()
    cpu_shapes: tuple[tuple[int, ...], ...] = ()
    backends: dict[Name, Backend] = Field(min_length=1)


class Project(Frozen):
    """A project file: the in-tree library and a foreign repository are described by the same model."""

    name: str
    ops: dict[Name, Op] = Field(min_length=1)
    policy: dict[str, Any] = Field(default_factory=dict)  # overrides on the chosen policy
