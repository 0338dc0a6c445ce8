"""The rendered quick_test_bench.py: stands alone for people, serves as worker and checker under the runner."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import ConfigError
from turbo_optimize.core.models import Shape
from turbo_optimize.data import data_path
from turbo_optimize.effects.store import write_atomic


def render_harness(c: Campaign, shapes: Sequence[Shape], representative: Sequence[str]) -> None:
    """Renders the op's template: the shipped one, or the project's own at the base commit."""
    name = c.op.quick_template
    shipped = data_path("templates") / name
    text = shipped.read_text() if shipped.is_file() else c.repo.show(c.base, name)
    if text is None:
        raise ConfigError(
            f"{c.manifest.project_file}: quick_template {name} is gone", "it was there at the start: commit it"
        )
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_path("templates")), undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    work = c.schema.work
    values = dict(
        campaign=c.manifest.campaign, op=c.manifest.target_op, variant=c.manifest.target_variant, dtype=c.manifest.dtype,
        gpu=c.manifest.target_gpu, adapter=c.op.adapter, import_roots=list(c.op.import_roots),
        import_name=c.op.import_name, shapes=[s.model_dump() for s in shapes], representative=list(representative),
        columns=list(c.schema.names()), schema_class=c.manifest.schema_class, unit=work.unit, metric=c.manifest.primary_metric,
        execution_mode=c.manifest.execution_mode, worktree=str(c.layout.worktree),
    )  # fmt: skip
    try:
        rendered = env.from_string(text).render(**values)
    except jinja2.TemplateError as e:
        line = f" line {e.lineno}" if isinstance(e, jinja2.TemplateSyntaxError) else ""
        raise ConfigError(f"quick_template {name}{line}: {e.message}", "mend the template and commit it") from None
    write_atomic(c.layout.harness, rendered)
